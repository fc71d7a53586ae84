"""`replacing_sdpa` and `install` reach every call of PyTorch's function, and its gradients. Blocks
end in any order, in any thread."""

import contextlib
import gc
import itertools
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch", reason='PyTorch is not installed: pip install ".[torch]"')

import regard.torch  # noqa: E402
from torch_modules import (  # noqa: E402
    MODULES,
    Calls,
    MultiHead,
    by_another_name,
    drawn,
    state_of_replacing,
    x_of,
)

nn, F = torch.nn, torch.nn.functional
mha = torch.backends.mha
EPS = torch.finfo(torch.float64).eps
X = torch.ones(1, 2, 5, 8)


# The number of calls of each that reach regard.
COUNTS = {name: (make, len(names)) for name, (make, names) in MODULES.items()} | {
    "a name": (lambda: Calls(F.scaled_dot_product_attention), 2),
    "operator": (lambda: Calls(torch.ops.aten.scaled_dot_product_attention), 2),
    "weights": (lambda: MultiHead(options={"need_weights": True}), 0),
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
@pytest.mark.parametrize("name", COUNTS)
def test_modules(name, is_training):
    make, count = COUNTS[name]
    module, x = drawn(make).train(is_training), x_of()
    wanted = result_and_gradients(module, x)
    with regard.torch.replacing_sdpa() as calls:
        actual = result_and_gradients(module, x)
    assert (calls.by_regard, calls.by_pytorch) == (count, {})
    assert_near(actual, wanted)
    for mode in (torch.no_grad, torch.inference_mode):
        with regard.torch.replacing_sdpa() as calls, mode():  # eval mode uses the fast path
            assert torch.equal(module(x), actual[0])
        assert calls.by_regard == count


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


def numbers(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


# Calls that regard leaves to PyTorch, and a part of the reason.
LEFT = {
    "int": ([numbers(1, 2, 3, 4, dtype=torch.int32)] * 3, "torch.int32"),
    "shapes": ([numbers(2, 3, 4), numbers(2, 3, 5), numbers(2, 3, 4)], "must share head_dim"),
    "int mask": ([*[numbers(2, 3, 4)] * 3, numbers(3, 3, dtype=torch.int64)], "attn_mask must be"),
}


@pytest.mark.parametrize(("given", "reason"), LEFT.values(), ids=LEFT)
def test_errors_are_pytorchs(given, reason):
    before = state_of_replacing()
    with pytest.raises(RuntimeError) as wanted:
        by_another_name(*given)
    with pytest.raises(RuntimeError) as actual, regard.torch.replacing_sdpa() as calls:
        by_another_name(*given)
    assert str(actual.value) == str(wanted.value)
    assert calls.by_regard == 0
    ((told, count),) = calls.by_pytorch.items()
    assert count == 1
    assert reason in told in repr(calls)
    assert state_of_replacing() == before


def test_install_is_for_all_threads():
    x, before = numbers(2, 3, 4), state_of_replacing()
    calls = regard.torch.install()
    try:
        assert regard.torch.install() is calls
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(by_another_name, *[[x] * 8] * 3))
        with regard.torch.replacing_sdpa() as inner:
            by_another_name(x, x, x)
        assert (calls.by_regard, inner.by_regard) == (9, 1)
    finally:
        regard.torch.uninstall()
    assert state_of_replacing() == before
    by_another_name(x, x, x)
    assert calls.by_regard == 9
    regard.torch.uninstall()


def compiled(function):
    """Compile a function, and collect its graphs."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return aot_eager(graph, inputs)

    aot_eager = torch._dynamo.lookup_backend("aot_eager")
    return torch.compile(function, backend=backend, fullgraph=True), graphs


@pytest.mark.parametrize("first_within", [True, False])
@pytest.mark.parametrize("name", ["function", "multi-head", "norm first"])
def test_compiled(name, first_within):
    """A function keeps one graph of each kind, whichever kind was compiled first."""
    torch._dynamo.reset()
    module, x, count = drawn(COUNTS[name][0]), x_of(), COUNTS[name][1]
    wanted = result_and_gradients(module, x)
    run, graphs = compiled(module)
    for turn in range(4):
        if (turn % 2 == 0) is first_within:
            with regard.torch.replacing_sdpa() as calls:
                actual = run(x)
            assert (calls.by_regard, calls.by_pytorch) == (count, {})
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


def test_nothing_is_kept():
    """The kernel of a block that has ended holds no tensor. Gradients come from regard."""
    with regard.torch.replacing_sdpa():
        x = torch.randn(2, 3, 4, requires_grad=True)
        output = by_another_name(x, x, x)
    kept = weakref.ref(x)
    del x, output
    gc.collect()
    assert kept() is None


@contextlib.contextmanager
def installed():
    yield regard.torch.install()
    regard.torch.uninstall()


def here(function, *given):
    function(*given)


def in_a_thread(function, *given):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(function, *given).result()


@pytest.mark.parametrize("run", [here, in_a_thread])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_blocks_end_in_any_order_and_in_any_thread(order, run):
    before = state_of_replacing()
    makers = [regard.torch.replacing_sdpa, installed, regard.torch.replacing_sdpa]
    blocks = [make() for make in makers]
    calls = [block.__enter__() for block in blocks]
    wanted = [0, 0, 0]
    is_open = [True, True, True]
    for number in (*order, None):
        by_another_name(X, X, X)
        wanted = [count + one for count, one in zip(wanted, is_open, strict=True)]
        assert [each.by_regard for each in calls] == wanted
        if number is not None:
            run(blocks[number].__exit__, None, None, None)
            is_open[number] = False
    assert state_of_replacing() == before


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("values", [[], [False], [True], [True, False], [False, True]])
def test_what_the_user_sets_in_a_block_stays(values, before):
    mha.set_fastpath_enabled(before)
    try:
        with regard.torch.replacing_sdpa():
            assert not mha.get_fastpath_enabled()
            for value in values:
                mha.set_fastpath_enabled(value)
        assert mha.get_fastpath_enabled() is [before, *values][-1]
    finally:
        mha.set_fastpath_enabled(True)
