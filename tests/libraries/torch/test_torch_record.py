"""Test recordings of PyTorch modules: their contents, their size limits, and what is recorded."""

import math
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'regard[torch]'")

import regard.torch  # noqa: E402
from explicit_weights import keep_weights, weights_of  # noqa: E402

by_another_name = torch.nn.functional.scaled_dot_product_attention
nn, F = torch.nn, torch.nn.functional
SIZE, HEADS = 16, 4
EPS = np.finfo(np.float64).eps


class Calls(nn.Module):
    """Attention by calls of a function: self-attention, then attention with grouped heads."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.project = nn.Linear(SIZE, SIZE)

    def forward(self, x):
        x = self.project(x)[:, None]
        x = self.function(x, x, x, is_causal=True)
        return self.function(x, x[..., :4, :], x[..., :4, :], scale=0.3)


class MultiHead(nn.Module):
    def __init__(self, keys=None, *, options=None, **words):
        super().__init__()
        self.attention = nn.MultiheadAttention(SIZE, HEADS, **words)
        self.keys, self.options = keys, options or {}

    def forward(self, x):
        other = x if self.keys is None else x[:, : self.keys]
        return self.attention(x, other, other, **self.options)[0]


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(SIZE, HEADS, 32, dropout=0, batch_first=True)

    def forward(self, x):
        return self.layer(x, x[:, :3])


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Transformer(SIZE, HEADS, 1, 1, 32, dropout=0, batch_first=True)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return self.model(x, x, tgt_mask=mask, tgt_is_causal=True)


class PaddedEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(SIZE, HEADS, 32, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x):
        return self.encoder(x, src_key_padding_mask=PADDING)


PADDING = torch.arange(7)[None] >= torch.tensor([[7], [5], [2]])
CAUSAL = torch.ones(7, 7, dtype=torch.bool).triu(1)
FAST = {"need_weights": False}
# Each module with the names of its layers.
MODULES = {
    "function": (lambda: Calls(by_another_name), ["Calls", "Calls:2"]),
    "multi-head": (lambda: MultiHead(batch_first=True, options=FAST), ["attention"]),
    "cross": (lambda: MultiHead(4, batch_first=True, options=FAST), ["attention"]),
    "padding": (
        lambda: MultiHead(batch_first=True, options={"key_padding_mask": PADDING} | FAST),
        ["attention"],
    ),
    "causal": (
        lambda: MultiHead(
            batch_first=True, options={"attn_mask": CAUSAL, "is_causal": True} | FAST
        ),
        ["attention"],
    ),
    "more keys": (
        lambda: MultiHead(batch_first=True, add_bias_kv=True, add_zero_attn=True, options=FAST),
        ["attention"],
    ),
    "encoder": (
        lambda: nn.TransformerEncoderLayer(SIZE, HEADS, 32, 0.0, batch_first=True),
        ["self_attn"],
    ),
    # Without a recording, this module would pack the texts into a nested tensor.
    "padded encoder": (PaddedEncoder, ["encoder.layers.0.self_attn", "encoder.layers.1.self_attn"]),
    "decoder": (Decoder, ["layer.self_attn", "layer.multihead_attn"]),
    "transformer": (
        Whole,
        [
            "model.encoder.layers.0.self_attn",
            "model.decoder.layers.0.self_attn",
            "model.decoder.layers.0.multihead_attn",
        ],
    ),
}


def drawn(make):
    torch.manual_seed(3)
    return make().double()


def x_of(*shape):
    return torch.randn(*shape or (3, 7, SIZE), dtype=torch.float64)


def own_weights(layer):
    return regard.scaled_dot_product_attention(
        layer.query, layer.key, layer.key, layer.mask, **layer.options, return_weights=True
    )[1]


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("name", MODULES)
def test_weights(name, is_training, monkeypatch):
    explicit = keep_weights(monkeypatch)
    make, names = MODULES[name]
    module, x = drawn(make), x_of()
    if name == "function":
        module.function = F.scaled_dot_product_attention
    with torch.no_grad():
        output = module(x)  # train mode has no fast path around the function
    monkeypatch.undo()
    if name == "function":
        module.function = by_another_name
    recording, recorded_output = regard.torch.record(
        module.train(is_training), x, return_output=True
    )
    assert list(recording.names) == names
    assert len(explicit) == len(names)
    for layer, wanted in zip(recording, explicit, strict=True):
        assert np.abs(own_weights(layer) - wanted).max() <= 64 * EPS
    assert (recorded_output - output).abs().max() <= 2**10 * EPS


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize(
    "words", [{}, {"batch_first": True}, {"add_zero_attn": True}, {"dropout": 0.5}]
)
def test_multi_head_attention_that_returns_weights(words, is_training, average):
    module = drawn(lambda: nn.MultiheadAttention(SIZE, HEADS, **words)).train(is_training)
    x, memory = x_of(), x_of()
    torch.manual_seed(1)
    with torch.no_grad():
        wanted = module(x, memory, memory, average_attn_weights=average)
    torch.manual_seed(1)
    recording, actual = regard.torch.record(
        module, x, memory, memory, average_attn_weights=average, return_output=True
    )
    for one, other in zip(actual, wanted, strict=True):
        assert torch.equal(one, other)
    assert recording.names == ("MultiheadAttention",)
    weights = own_weights(recording[0])
    if average:
        weights = weights.mean(axis=1)
    if not (is_training and "dropout" in words):
        assert np.abs(weights - wanted[1].numpy()).max() <= 64 * EPS


def test_two_axes_and_grouped_heads():
    class Module(nn.Module):
        def forward(self, x):
            one = x[0, 0]
            by_another_name(one, one, one)
            by_another_name(x, x[:, :2], x[:, :2], enable_gqa=True)
            return by_another_name(x, x[:, :1], x[:, :1])  # one key head for all

    x = x_of(2, 4, 5, 8)
    recording = regard.torch.record(Module(), x)
    assert [layer.query.shape for layer in recording] == [(1, 5, 8), (2, 4, 5, 8), (2, 4, 5, 8)]
    assert [layer.key.shape[-3] for layer in recording] == [1, 2, 1]
    for layer, heads in zip(recording[1:], (2, 1), strict=True):
        key = x[:, :heads].repeat_interleave(4 // heads, dim=1)
        assert np.abs(own_weights(layer) - weights_of(x, key).numpy()).max() <= 64 * EPS


def test_options_of_regard_and_masks_of_all_kinds():
    mask = regard.masks.sliding(7, window=(2, 0))
    bias = torch.randn(3, 1, 7, 7, dtype=torch.float64).expand(3, 4, 7, 7)
    options = {
        "window": (3, 1),
        "key_lengths": torch.tensor([7, 5, 2]),
        "softcap": 5.0,
        "sinks": torch.randn(4, dtype=torch.float64, requires_grad=True),
        "alibi_slopes": np.linspace(0, 1, 4),
        "is_causal": True,
        "query_offset": "end",
        "dropout_p": 0.5,
        "threads": 1,
    }

    class Module(nn.Module):
        def forward(self, x):
            return regard.torch.scaled_dot_product_attention(x, x, x, (mask, bias), **options)

    x = x_of(3, 4, 7, 8)
    (layer,) = regard.torch.record(Module(), x)
    assert layer.mask[0] is mask
    assert layer.mask[1].shape == (3, 1, 7, 7)  # broadcast data is stored once
    assert layer.options.keys() == options.keys() - {"dropout_p", "threads"}
    del options["dropout_p"], options["threads"]
    options["sinks"] = options["sinks"].detach().numpy()
    options["key_lengths"] = [7, 5, 2]
    arrays = x.numpy()
    wanted = regard.scaled_dot_product_attention(
        arrays, arrays, arrays, (mask, bias.numpy()), **options, return_weights=True
    )[1]
    assert np.array_equal(own_weights(layer), wanted)


def test_what_is_recorded_are_copies():
    class Module(nn.Module):
        def forward(self, x, mask, slopes):
            output = regard.torch.scaled_dot_product_attention(x, x, x, mask, alibi_slopes=slopes)
            for each in (x, mask, slopes):
                each.zero_()
            return output

    x, mask, slopes = x_of(2, 4, 5, 8), torch.randn(5, 5), torch.rand(4)
    wanted = x.numpy().copy(), mask.numpy().copy(), slopes.numpy().copy()
    (layer,) = regard.torch.record(Module(), x, mask, slopes)
    assert not x.any()
    assert not mask.any()
    for actual, expected in zip(
        (layer.query, layer.mask, layer.options["alibi_slopes"]), wanted, strict=True
    ):
        assert np.array_equal(actual, expected)
    assert layer.query.flags.c_contiguous
    with pytest.raises(ValueError, match="read-only"):
        layer.query[:] = 0


def test_equal_masks_are_stored_once():
    class Module(nn.Module):
        def forward(self, x):
            for _ in range(3):
                mask = torch.ones(7, 7, dtype=torch.bool).tril()
                x = by_another_name(x, x, x, mask)
            return by_another_name(x, x, x, ~mask)

    recording = regard.torch.record(Module(), x_of(1, 1, 7, 8))
    masks = [layer.mask for layer in recording]
    assert np.shares_memory(masks[0], masks[2])
    assert not np.shares_memory(masks[0], masks[3])
    assert not np.array_equal(masks[0], masks[3])
    assert recording.nbytes == 4 * 2 * 7 * 8 * 8 + 2 * 49


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", np.float32, torch.float16])
def test_storage(dtype):
    if "bfloat16" in str(dtype):
        pytest.importorskip("ml_dtypes")
    module, x = drawn(Decoder), x_of()
    whole, stored = regard.torch.record(module, x), regard.torch.record(module, x, dtype=dtype)
    for wide, narrow in zip(whole, stored, strict=True):
        assert np.array_equal(narrow.key, wide.key.astype(narrow.key.dtype))
    assert whole.nbytes == stored.nbytes * 8 // stored[0].key.itemsize
    assert stored[0].key.itemsize in (2, 4)


def test_numbers_that_do_not_fit_into_float16():
    class Module(nn.Module):
        def forward(self, x):
            return by_another_name(x, x, x)

    x = torch.full((1, 1, 2, 4), 1e5)
    with pytest.raises(ValueError, match=r"dtype must hold the numbers of Module.*'bfloat16'"):
        regard.torch.record(Module(), x, dtype="float16")
    x[0, 0, 0, 0] = math.inf
    assert len(regard.torch.record(Module(), x, dtype="float32")) == 1


@pytest.mark.parametrize(
    ("layers", "names"),
    [
        (0, [0]),
        ([2, 0], [0, 2]),
        (range(1, 3), [1, 2]),
        ("model.decoder", [1, 2]),
        ("model.encoder.", [0]),
        (["model.encoder.layers.0.self_attn", 2], [0, 2]),
        (np.int64(1), [1]),
    ],
)
def test_some_layers(layers, names):
    module, x = drawn(Whole), x_of()
    whole = regard.torch.record(module, x)
    some = regard.torch.record(module, x, layers=layers)
    assert list(some.names) == [whole.names[i] for i in names]
    assert some.names == whole.select(layers).names
    assert all(np.array_equal(some[name].key, whole[name].key) for name in some.names)


class Counting(nn.Module):
    """Count the runs of the module, and optionally look at the elements of a tensor."""

    def __init__(self, looks):
        super().__init__()
        self.looks, self.runs, self.layer = looks, 0, nn.MultiheadAttention(SIZE, HEADS)
        self.state = torch.zeros(1)

    def forward(self, x):
        self.runs += 1
        self.state += 1
        self.made = x * 2  # a copy must leave nothing here
        if self.looks and x.sum() == 0:
            return x
        for _ in range(10):
            x = self.layer(x, x, x)[0]
        return x


def test_a_recording_that_would_not_fit_says_so_before_anything_is_computed():
    module = Counting(looks=False).double()
    size = 10 * 2 * 3 * 7 * SIZE * 8
    message = (
        rf"the recording would have {size / 1000:.3g} kB \(10 layers of query \(7, 4, 3, 4\) and "
        r"key \(7, 4, 3, 4\)\), and max_bytes is 1 kB: raise max_bytes, name fewer layers with "
        "layers=, or pass a narrower dtype="
    )
    with pytest.raises(ValueError, match=message):
        regard.torch.record(module, x_of(), max_bytes=1000)
    assert module.runs == 0
    assert not module.state.any()
    assert not hasattr(module, "made")
    with pytest.raises(ValueError, match="the recording would have"):
        regard.torch.record(module, x_of(), max_bytes=size - 1)
    assert len(regard.torch.record(module, x_of(), max_bytes=size)) == 10
    assert module.runs == 1
    assert type(module.made) is torch.Tensor
    assert len(regard.torch.record(module, x_of(), max_bytes=size // 4, dtype="float16")) == 10
    assert len(regard.torch.record(module, x_of(), max_bytes=size // 10, layers=3)) == 1


def test_where_the_size_is_not_known_in_advance_it_ends_when_it_is_too_large():
    module = Counting(looks=True).double()
    size = 10 * 2 * 3 * 7 * SIZE * 8
    with pytest.raises(ValueError, match=r"with the layer 'layer:8', after 7 others"):
        regard.torch.record(module, x_of(), max_bytes=size * 3 // 4)
    assert module.runs == 1
    assert len(regard.torch.record(module, x_of(), max_bytes=size)) == 10
    hooked = Counting(looks=False).double()
    seen = []
    hooked.layer.register_forward_hook(lambda module, args, output: seen.append(type(args[0])))
    with pytest.raises(ValueError, match="'layer:8'"):
        regard.torch.record(hooked, x_of(), max_bytes=size * 3 // 4)
    assert seen == [torch.Tensor] * 7


def test_a_large_mask_is_refused_before_it_is_copied():
    class Module(nn.Module):
        def forward(self, x):
            return by_another_name(x, x, x, torch.zeros(4, 500, 500))

    with pytest.raises(ValueError, match=r"would have 4\.06 MB with the layer 'Module'"):
        regard.torch.record(Module(), torch.zeros(4, 500, 4), max_bytes=10**6)


def test_a_model_that_catches_errors_does_not_hide_them():
    class Module(nn.Module):
        def forward(self, x):
            try:
                return by_another_name(x, x, x, torch.zeros(4, 500, 500))
            except ValueError:
                return x

    with pytest.raises(ValueError, match="would have"):
        regard.torch.record(Module(), torch.zeros(4, 500, 4), max_bytes=10**6)


def test_other_threads_are_not_recorded():
    first, second = drawn(Decoder), drawn(Decoder)
    inside, outside, results = threading.Event(), threading.Event(), {}

    class Waiting(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = first

        def forward(self, x):
            inside.set()
            assert outside.wait(60)
            return self.model(x)

    def record():
        results["recording"] = regard.torch.record(Waiting(), x_of(), max_bytes=None)

    thread = threading.Thread(target=record)
    thread.start()
    assert inside.wait(60)
    x = x_of(1, 2, 5, 8)
    by_regard = regard.torch.scaled_dot_product_attention(x, x, x)
    second(x_of())
    results["other"] = regard.torch.record(second, x_of(2, 4, SIZE))
    outside.set()
    thread.join()
    assert by_regard.shape == x.shape
    assert results["recording"].names == ("model.layer.self_attn", "model.layer.multihead_attn")
    assert results["recording"][0].query.shape == (3, 4, 7, 4)
    assert results["other"].names == ("layer.self_attn", "layer.multihead_attn")
    assert results["other"][0].query.shape == (2, 4, 4, 4)
    assert not regard.torch._observing.OBSERVERS


def test_nothing_stays_after_an_error():
    class Failing(nn.Module):
        def forward(self, x):
            by_another_name(x, x, x)
            raise RuntimeError("broken")

    x = x_of(1, 2, 5, 8)
    with pytest.raises(RuntimeError, match="broken"):
        regard.torch.record(Failing(), x)
    assert not regard.torch._observing.OBSERVERS
    assert torch.is_grad_enabled()
    from torch.overrides import _get_current_function_mode_stack

    assert not _get_current_function_mode_stack()


def test_a_recording_within_a_recording():
    inner = drawn(Decoder)

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            self.recording = regard.torch.record(self.inner, x, max_bytes=None)
            return self.inner(x)

    outer = Outer()
    recording = regard.torch.record(outer, x_of(), max_bytes=None)
    assert recording.names == ("inner.layer.self_attn", "inner.layer.multihead_attn")
    assert outer.recording.names == ("layer.self_attn", "layer.multihead_attn")


def test_compiled_modules_are_recorded():
    module, x = drawn(Decoder), x_of()
    wanted = regard.torch.record(module, x)
    runs = []

    def backend(graph, inputs):
        runs.append(1)
        return graph

    compiled = torch.compile(module, backend=backend)
    compiled(x)
    count = len(runs)
    assert count
    recording = regard.torch.record(compiled, x)
    assert recording.names == wanted.names
    assert all(np.array_equal(a.key, b.key) for a, b in zip(recording, wanted, strict=True))
    torch._dynamo.reset()
    compiled(x)
    assert len(runs) == 2 * count  # the compiler works again


class Plain(nn.Module):
    def forward(self, x):
        return by_another_name(x, x, x)


class Explicit(nn.Module):
    def forward(self, x):
        return torch.softmax(x @ x.mT, dim=-1) @ x


X = torch.ones(1, 2, 5, 8)
ERRORS = [
    (
        lambda: regard.torch.record(by_another_name, X),
        TypeError,
        "module must be a torch.nn.Module",
    ),
    (lambda: regard.torch.record(Explicit(), X), ValueError, "nothing was recorded: Explicit"),
    (lambda: regard.torch.record(Plain(), X, layers=1), ValueError, "less than 1, the number of"),
    (lambda: regard.torch.record(Plain(), X, layers=-1), ValueError, "layers must be at least 0"),
    (lambda: regard.torch.record(Plain(), X, layers="a"), ValueError, "got 'a'; there are Plain"),
    (lambda: regard.torch.record(Plain(), X, layers=""), ValueError, "must name layers, got ''"),
    (lambda: regard.torch.record(Plain(), X, layers=[]), ValueError, "at least one layer"),
    (lambda: regard.torch.record(Plain(), X, layers=slice(2)), TypeError, "pass range"),
    (lambda: regard.torch.record(Plain(), X, layers=1.5), TypeError, "a number, a name"),
    (lambda: regard.torch.record(Plain(), X, layers=[True]), TypeError, "layers must be an int"),
    (lambda: regard.torch.record(Plain(), X, dtype="int8"), TypeError, "got 'int8'"),
    (lambda: regard.torch.record(Plain(), X, dtype=torch.int8), TypeError, "got torch.int8"),
    (lambda: regard.torch.record(Plain(), X, max_bytes="2 GB"), TypeError, "max_bytes must be an"),
    (lambda: regard.torch.record(Plain(), X, max_bytes=-1), ValueError, "max_bytes must be at"),
    (lambda: regard.torch.record(Plain(), X, tokens=[1, 2]), ValueError, r"the layers have 5 keys"),
    (lambda: regard.torch.record(Plain(), X, tokens=3), ValueError, "tokens must have an axis"),
    (lambda: regard.torch.record(Plain(), X, tokens=[1.5] * 5), TypeError, "integers or of texts"),
    (lambda: regard.torch.record(Plain(), X, return_output=1), TypeError, "return_output must be"),
    (lambda: regard.torch.record(Plain()), TypeError, "missing 1 required positional argument"),
    (lambda: regard.torch.record(Plain(), X.to("meta")), ValueError, "nothing was recorded"),
    (
        lambda: regard.torch.record(ByRegard(), X.to("meta"), max_bytes=None),
        NotImplementedError,
        "meta device",
    ),
    (
        lambda: regard.torch.record(Vmapped(), X),
        NotImplementedError,
        "tensors without their own memory",
    ),
    (
        lambda: regard.torch.record(Packed(), X),
        NotImplementedError,
        "Packed calls attention with packed sequences or nested tensors",
    ),
    (
        lambda: regard.torch.record(Trying(), X),
        ValueError,
        "PyTorch computed some calls: query must be a tensor of float32.*got torch.int32",
    ),
]


class Trying(nn.Module):
    def forward(self, x):
        try:
            return by_another_name(x.int(), x.int(), x.int())
        except RuntimeError:
            return by_another_name(x, x, x)


class ByRegard(nn.Module):
    def forward(self, x):
        return regard.torch.scaled_dot_product_attention(x, x, x)


class Packed(nn.Module):
    def forward(self, x):
        starts = torch.tensor([0, 2, 5])
        packed = x[0].transpose(0, 1)
        return regard.torch.scaled_dot_product_attention_ragged(*[packed] * 3, starts, starts)


class ScriptedAttention(nn.Module):
    def forward(self, x):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)


class Vmapped(nn.Module):
    def forward(self, x):
        return torch.func.vmap(lambda y: regard.torch.scaled_dot_product_attention(y, y, y))(x)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_scripted_and_exported_modules_are_recorded():
    scripted = torch.jit.script(ScriptedAttention())
    exported = torch.export.export(Plain(), (X,)).module()
    for module in (scripted, exported):
        (layer,) = regard.torch.record(module, X)
        assert np.array_equal(layer.query, X.numpy())


@pytest.mark.parametrize("number", range(len(ERRORS)))
def test_errors(number):
    call, error, message = ERRORS[number]
    with pytest.raises(error, match=message):
        call()
    assert not regard.torch._observing.OBSERVERS


def test_tokens():
    texts = list("abcdefg")
    recording = regard.torch.record(drawn(Decoder), x_of(), tokens=texts)
    own, cross = recording
    assert own.query_tokens.tolist() == own.key_tokens.tolist() == texts
    assert cross.query_tokens.tolist() == texts
    assert cross.key_tokens is None
    assert recording.tokens is None
    assert recording[:1].tokens.tolist() == texts
    numbers = np.arange(21).reshape(3, 7)
    recording = regard.torch.record(drawn(Decoder), x_of(), tokens=numbers)
    assert recording.entry(1)[0].key_tokens.tolist() == numbers[1].tolist()
