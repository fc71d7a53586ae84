"""Test recordings of PyTorch modules: their contents, their size limits, and what is recorded."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason='PyTorch is not installed: pip install ".[torch]"')

import regard.torch  # noqa: E402
from explicit_weights import keep_weights, weights_of  # noqa: E402
from torch_modules import (  # noqa: E402
    HEADS,
    PADDING,
    SIZE,
    Calls,
    Decoder,
    MultiHead,
    PaddedEncoder,
    Whole,
    by_another_name,
    drawn,
    x_of,
)

nn, F = torch.nn, torch.nn.functional
EPS = np.finfo(np.float64).eps


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


class Plain(nn.Module):
    def forward(self, x):
        return by_another_name(x, x, x)


class ScriptedAttention(nn.Module):
    def forward(self, x):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)


X = torch.ones(1, 2, 5, 8)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_scripted_and_exported_modules_are_recorded():
    scripted = torch.jit.script(ScriptedAttention())
    exported = torch.export.export(Plain(), (X,)).module()
    for module in (scripted, exported):
        (layer,) = regard.torch.record(module, X)
        assert np.array_equal(layer.query, X.numpy())


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
