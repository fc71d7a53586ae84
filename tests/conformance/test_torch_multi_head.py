"""torch.nn.MultiheadAttention with the parameters of regard.MultiHeadAttention, and the reverse."""

import numpy as np
import pytest

import regard
from reference import error, largest

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: pip install '.[conformance]'"
)
D, HEADS = 32, 4
SIZES = [{}, {"kdim": 20, "vdim": 12}, {"kdim": 20, "vdim": 20}]
VISIBLE = np.random.default_rng(5).random((6, 9)) < 0.7
VISIBLE[:, 0] = True
PADDED = np.arange(9) >= np.array([9, 4, 7])[:, None]


def pair(bias, sizes, precision):
    """Return the same layer twice: PyTorch draws it, and regard copies it."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        theirs = torch.nn.MultiheadAttention(
            D, HEADS, bias=bias, batch_first=True, dtype=precision, **sizes
        ).eval()
        for name, parameter in theirs.named_parameters():
            if "bias" in name:  # initially 0
                torch.nn.init.normal_(parameter)
    ours = regard.MultiHeadAttention(
        D,
        HEADS,
        d_key=sizes.get("kdim"),
        d_value=sizes.get("vdim"),
        qkv_bias=bias,
        out_bias=bias,
        rng=0,
        dtype=str(precision).removeprefix("torch."),
    )
    state = {name: array.numpy() for name, array in theirs.state_dict().items()}
    ours.load_state_dict(
        {f"layers.0.self_attn.{n}": a for n, a in state.items()}, "layers.0.self_attn"
    )
    return ours, theirs


def said(theirs, *inputs, **options):
    with torch.no_grad():
        return [
            x.numpy()
            for x in theirs(*map(torch.from_numpy, inputs), average_attn_weights=False, **options)
        ]


def assert_alike(actual, wanted, exact):
    """Compare sums of some 32 products, twice, with the same sums in float64."""
    for a, w, e in zip(actual, wanted, exact, strict=True):
        assert a.dtype == w.dtype
        assert a.shape == w.shape
        limit = 2 * error(w, e) + 16 * np.finfo(a.dtype).eps * max(1.0, largest(e))
        assert error(a, e) <= limit


def check(bias, sizes, precision, inputs, ours_options, theirs_options):
    ours, theirs = pair(bias, sizes, precision)
    dtype = str(precision).removeprefix("torch.")
    typed = [x.astype(dtype) for x in inputs]
    wanted = said(theirs, *typed, **theirs_options)
    exact = said(theirs.double(), *(x.astype(float) for x in typed), **theirs_options)
    assert_alike(ours(*typed, **ours_options, return_weights=True), wanted, exact)


def normal(shape, seed):
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(6, D), (3, 6, D)])
def test_self_attention(shape, bias, precision):
    x = normal(shape, 0)
    check(bias, {}, precision, [x, x, x], {}, {})


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {}),
        ({"mask": VISIBLE}, {"attn_mask": torch.from_numpy(~VISIBLE)}),
        (
            {"mask": ~PADDED[:, None, None, :]},
            {"key_padding_mask": torch.from_numpy(PADDED)},
        ),
        ({"key_lengths": [9, 4, 7]}, {"key_padding_mask": torch.from_numpy(PADDED)}),
        (
            {"mask": VISIBLE, "key_lengths": [9, 4, 7]},
            {"attn_mask": torch.from_numpy(~VISIBLE), "key_padding_mask": torch.from_numpy(PADDED)},
        ),
    ],
    ids=["all", "mask", "padding", "lengths", "mask and lengths"],
)
def test_cross_attention(ours, theirs, sizes, precision):
    query, key = normal((3, 6, D), 0), normal((3, 9, sizes.get("kdim", D)), 1)
    value = normal((3, 9, sizes.get("vdim", D)), 2)
    check(True, sizes, precision, [query, key, value], ours, theirs)


@pytest.mark.parametrize("per_head", [False, True])
def test_float_masks(per_head):
    x = normal((3, 6, D), 0)
    bias = normal((3, HEADS, 6, 6) if per_head else (6, 6), 4).astype(np.float32)
    theirs = torch.from_numpy(bias.reshape(-1, 6, 6) if per_head else bias)
    # PyTorch requires the mask in the layer's type, so it has one precision, and float64
    # separately.
    ours, layer = pair(True, {}, torch.float32)
    typed = x.astype(np.float32)
    wanted = said(layer, typed, typed, typed, attn_mask=theirs)
    exact = said(layer.double(), *[typed.astype(float)] * 3, attn_mask=theirs.double())
    assert_alike(ours(typed, mask=bias, return_weights=True), wanted, exact)


def test_causal():
    ours, theirs = pair(True, {}, torch.float64)
    x = normal((2, 7, D), 0)
    hidden = torch.from_numpy(~regard.masks.causal(7))
    wanted, _ = said(theirs, x, x, x, attn_mask=hidden)
    causal = regard.MultiHeadAttention(
        D, HEADS, qkv_bias=True, out_bias=True, is_causal=True, rng=0, dtype=np.float64
    )
    causal.load_state_dict(ours.state_dict())
    np.testing.assert_allclose(causal(x), wanted, rtol=0, atol=64 * np.finfo(float).eps)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("bias", [True, False])
def test_pytorch_takes_the_state_back(bias, sizes):
    ours, theirs = pair(bias, sizes, torch.float32)
    state = {name: torch.from_numpy(array) for name, array in ours.state_dict("torch").items()}
    fresh = torch.nn.MultiheadAttention(D, HEADS, bias=bias, batch_first=True, **sizes)
    assert fresh.load_state_dict(state, strict=True)
    for name, parameter in fresh.state_dict().items():
        assert torch.equal(parameter, theirs.state_dict()[name])


def test_a_torch_seed_gives_the_layers_of_pytorch():
    with torch.random.fork_rng():
        torch.manual_seed(7)
        names = ("W_query", "W_key", "W_value", "out_proj")
        wanted = {name: torch.nn.Linear(D, D) for name in names}
    layer = regard.MultiHeadAttention(
        D, HEADS, qkv_bias=True, out_bias=True, rng=regard.TorchGenerator(7)
    )
    state = layer.state_dict()
    for name, linear in wanted.items():
        np.testing.assert_array_equal(state[f"{name}.weight"], linear.weight.detach().numpy())
        np.testing.assert_array_equal(state[f"{name}.bias"], linear.bias.detach().numpy())
