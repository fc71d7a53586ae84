"""`replacing_sdpa` and `install` reach every call of PyTorch's function, and its gradients."""

import gc
import threading
import warnings

import pytest

torch = pytest.importorskip("torch", reason='PyTorch is not installed: pip install ".[torch]"')

import regard.torch  # noqa: E402
from torch_modules import (  # noqa: E402
    HEADS,
    SIZE,
    Decoder,
    Whole,
    by_another_name,
    state_of_replacing,
)

nn, F = torch.nn, torch.nn.functional
EPS = torch.finfo(torch.float64).eps


class Projected(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.project = nn.Linear(SIZE, SIZE)

    def forward(self, x):
        x = self.project(x)
        return self.function(x, x, x, is_causal=True)


class MultiHead(nn.Module):
    """Attention of a sequence to itself, or to its first elements."""

    def __init__(self, keys=None, *, options=None, **words):
        super().__init__()
        self.attention = nn.MultiheadAttention(SIZE, HEADS, **words)
        self.keys, self.options = keys, options or {}

    def forward(self, x):
        other = x if self.keys is None else x[:, : self.keys]
        return self.attention(x, other, other, **{"need_weights": False} | self.options)[0]


class Biased(nn.Module):
    """Attention with a `CausalBias`, whose memory has not been written."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, x):
        return F.scaled_dot_product_attention(x[:, :4], x, x, attn_mask=self.make(4, x.shape[1]))


def causal_bias(name):
    from torch.nn.attention import bias

    return getattr(bias, name)


def encoder_layer(**words):
    return nn.TransformerEncoderLayer(SIZE, HEADS, 32, 0.0, batch_first=True, **words)


PADDING = torch.arange(7)[None] >= torch.tensor([[7], [5], [2]])
CAUSAL = torch.ones(7, 7, dtype=torch.bool).triu(1)
# The number of calls of each that reach regard.
MODULES = {
    "function": (lambda: Projected(F.scaled_dot_product_attention), 1),
    "another name": (lambda: Projected(by_another_name), 1),
    "operator": (lambda: Projected(torch.ops.aten.scaled_dot_product_attention), 1),
    "multi-head": (lambda: MultiHead(batch_first=True), 1),
    "length first": (lambda: MultiHead(), 1),
    "cross": (lambda: MultiHead(4, batch_first=True), 1),
    "padding": (lambda: MultiHead(batch_first=True, options={"key_padding_mask": PADDING}), 1),
    "causal": (
        lambda: MultiHead(batch_first=True, options={"attn_mask": CAUSAL, "is_causal": True}),
        1,
    ),
    "more keys": (lambda: MultiHead(batch_first=True, add_bias_kv=True, add_zero_attn=True), 1),
    "weights": (lambda: MultiHead(batch_first=True, options={"need_weights": True}), 0),
    "encoder layer": (encoder_layer, 1),
    "norm first": (lambda: encoder_layer(norm_first=True), 1),
    "encoder": (lambda: nn.TransformerEncoder(encoder_layer(), 3, enable_nested_tensor=False), 3),
    "decoder": (Decoder, 2),
    "transformer": (Whole, 3),
    "lower right": (lambda: Biased(causal_bias("causal_lower_right")), 1),
    "upper left": (lambda: Biased(causal_bias("causal_upper_left")), 1),
}


def result_and_gradients(module, x):
    x = x.clone().requires_grad_()
    output = module(x)
    gradients = torch.autograd.grad(output.sin().sum(), [x, *module.parameters()])
    return output, *gradients


def assert_near(actual, wanted):
    for one, other in zip(actual, wanted, strict=True):
        assert (one - other).abs().max() <= 2**10 * EPS * max(1, other.abs().max())


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("name", MODULES)
def test_modules(name, is_training):
    make, count = MODULES[name]
    torch.manual_seed(3)
    module = make().double().train(is_training)
    x = torch.randn(3, 7, SIZE, dtype=torch.float64)
    wanted = result_and_gradients(module, x)
    with regard.torch.replacing_sdpa() as calls:
        actual = result_and_gradients(module, x)
    assert (calls.by_regard, calls.by_pytorch) == (count, {})
    assert_near(actual, wanted)
    for mode in (torch.no_grad, torch.inference_mode):
        with regard.torch.replacing_sdpa() as calls, mode():  # eval mode uses the fast path
            assert torch.equal(module(x), actual[0])
        assert calls.by_regard == count


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors():
    """Nested tensors make one packed call."""
    parts = [torch.randn(n, 2, 8, dtype=torch.float64) for n in (3, 5, 1)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    x = nested.transpose(1, 2)
    wanted = F.scaled_dot_product_attention(x, x, x)
    with regard.torch.replacing_sdpa() as calls:
        actual = F.scaled_dot_product_attention(x, x, x)
    assert (calls.by_regard, calls.by_pytorch) == (1, {})
    assert_near([actual.values()], [wanted.values()])
    of_each = [torch.autograd.grad(each.values().sin().sum(), nested) for each in (actual, wanted)]
    assert_near([of_each[0][0].values()], [of_each[1][0].values()])


def test_gradients_after_the_block():
    x = torch.randn(2, 4, 9, 8, dtype=torch.float64, requires_grad=True)
    with regard.torch.replacing_sdpa():
        output = F.scaled_dot_product_attention(x, x, x, is_causal=True)
    (actual,) = torch.autograd.grad(output.cos().sum(), x)
    wanted = F.scaled_dot_product_attention(x, x, x, is_causal=True)
    assert_near([actual], torch.autograd.grad(wanted.cos().sum(), x))


def numbers(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


# Calls that regard leaves to PyTorch, and a part of the reason.
LEFT = {
    "int": (lambda: by_another_name(*[numbers(1, 2, 3, 4, dtype=torch.int32)] * 3), "torch.int32"),
    "types": (
        lambda: by_another_name(
            numbers(2, 3, 4), numbers(2, 3, 4, dtype=torch.float64), numbers(2, 3, 4)
        ),
        "key must have the type of query",
    ),
    "shapes": (
        lambda: by_another_name(numbers(2, 3, 4), numbers(2, 3, 5), numbers(2, 3, 4)),
        "must share head_dim",
    ),
    "int mask": (
        lambda: by_another_name(*[numbers(2, 3, 4)] * 3, numbers(3, 3, dtype=torch.int64)),
        "attn_mask must be",
    ),
    "dropout": (lambda: by_another_name(*[numbers(2, 3, 4)] * 3, dropout_p=1.5), "dropout_p"),
}


@pytest.mark.parametrize("name", LEFT)
def test_errors_are_pytorchs(name):
    call, reason = LEFT[name]
    with pytest.raises((RuntimeError, ValueError)) as wanted:
        call()
    with (
        regard.torch.replacing_sdpa() as calls,
        pytest.raises(wanted.type) as actual,
    ):
        call()
    assert str(actual.value) == str(wanted.value)
    assert calls.by_regard == 0
    ((given, count),) = calls.by_pytorch.items()
    assert count == 1
    assert reason in given
    assert given in repr(calls)


def test_other_devices_are_pytorchs():
    with regard.torch.replacing_sdpa() as calls:
        assert by_another_name(*[torch.ones(2, 3, 4, device="meta")] * 3).is_meta
    assert (calls.by_regard, calls.by_pytorch) == (0, {})


def test_blocks_within_blocks_and_exceptions():
    x, before = numbers(2, 3, 4), state_of_replacing()
    with regard.torch.replacing_sdpa() as outer:
        with regard.torch.replacing_sdpa() as inner:
            by_another_name(x, x, x)
        with pytest.raises(RuntimeError), regard.torch.replacing_sdpa():
            by_another_name(x, x[..., :2], x)
        by_another_name(x, x, x)
    assert (outer.by_regard, inner.by_regard) == (2, 1)
    assert len(outer.by_pytorch) == 1
    by_another_name(x, x, x)
    assert (outer.by_regard, inner.by_regard) == (2, 1)
    assert state_of_replacing() == before


def test_a_block_is_for_its_thread():
    x = numbers(2, 3, 4)
    with regard.torch.replacing_sdpa() as calls:
        thread = threading.Thread(target=by_another_name, args=(x, x, x))
        thread.start()
        thread.join()
    assert calls.by_regard == 0


def test_install_is_for_all_threads():
    x, before = numbers(2, 3, 4), state_of_replacing()
    calls = regard.torch.install()
    try:
        assert regard.torch.install() is calls
        threads = [threading.Thread(target=by_another_name, args=(x, x, x)) for _ in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        with regard.torch.replacing_sdpa() as inner:
            by_another_name(x, x, x)
        assert (calls.by_regard, inner.by_regard) == (9, 1)
    finally:
        regard.torch.uninstall()
    assert state_of_replacing() == before
    by_another_name(x, x, x)
    assert calls.by_regard == 9
    regard.torch.uninstall()


def test_dropout_and_autocast():
    x = torch.randn(2, 4, 9, 8)
    with regard.torch.replacing_sdpa() as calls:
        torch.manual_seed(1)
        one = by_another_name(x, x, x, dropout_p=0.4)
        torch.manual_seed(1)
        assert torch.equal(by_another_name(x, x, x, dropout_p=0.4), one)
        with torch.autocast("cpu"):
            assert by_another_name(x, x, x).dtype is torch.bfloat16
    assert calls.by_regard == 3


def compiled(function):
    """Compile a function, and collect its graphs."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return aot_eager(graph, inputs)

    aot_eager = torch._dynamo.lookup_backend("aot_eager")
    return torch.compile(function, backend=backend, fullgraph=True), graphs


@pytest.mark.parametrize("first_within", [True, False])
@pytest.mark.parametrize("name", ["function", "multi-head", "encoder layer"])
def test_compiled(name, first_within):
    """A function keeps one graph of each kind, whichever kind was compiled first."""
    torch._dynamo.reset()
    module = MODULES[name][0]().double()
    x = torch.randn(3, 7, SIZE, dtype=torch.float64)
    wanted = result_and_gradients(module, x)
    run, graphs = compiled(module)
    for turn in range(4):
        if (turn % 2 == 0) is first_within:
            with regard.torch.replacing_sdpa() as calls:
                actual = run(x)
            assert (calls.by_regard, calls.by_pytorch) == (1, {})
        else:
            actual = run(x)
            with regard.torch.replacing_sdpa() as calls:
                pass
            assert calls.by_regard == 0
        assert_near([actual], wanted[:1])
    assert len(graphs) == 2
    with regard.torch.replacing_sdpa():
        actual = run(x)
    gradients = torch.autograd.grad(actual.sin().sum(), list(module.parameters()))
    assert_near(gradients, wanted[2:])


def test_exported_programs():
    x = torch.randn(2, 4, 9, 8)

    class Model(nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x, x, x, is_causal=True)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(Model(), (x,)).module()
    with regard.torch.replacing_sdpa() as calls:
        output = program(x)
    assert calls.by_regard == 1
    torch.testing.assert_close(output, program(x))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_is_pytorchs():
    x = torch.randn(3, 2, 4, 9, 8, dtype=torch.float64)
    with regard.torch.replacing_sdpa() as calls:
        output = torch.vmap(F.scaled_dot_product_attention)(x, x, x)
    assert calls.by_regard == 0
    assert_near([output], [F.scaled_dot_product_attention(x, x, x)])


def test_functional_gradients():
    x = torch.randn(2, 4, 9, 8, dtype=torch.float64)

    def loss(x):
        return F.scaled_dot_product_attention(x, x, x).sin().sum()

    wanted = torch.func.grad(loss)(x)
    with regard.torch.replacing_sdpa() as calls:
        assert_near([torch.func.grad(loss)(x)], [wanted])
    assert calls.by_regard == 1


def test_nothing_is_kept():
    """The kernel of a block that has ended holds no tensor."""
    with regard.torch.replacing_sdpa():
        x = torch.randn(2, 3, 4, requires_grad=True)
        output = by_another_name(x, x, x)
    import weakref

    kept = weakref.ref(x)
    del x, output
    gc.collect()
    assert kept() is None
