"""Layers and their gradients, compared with PyTorch's layers of the same parameters."""

import numpy as np
import pytest

import regard

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: pip install '.[conformance]'"
)
D, HEADS = 32, 4
PADDED = np.arange(9) >= np.array([9, 4, 7])[:, None]
VISIBLE = np.random.default_rng(5).random((6, 9)) < 0.7
VISIBLE[:, 0] = True


def normal(shape, seed):
    return np.random.default_rng(seed).standard_normal(shape)


def assert_near(actual, wanted):
    """Allow the rounding of sums of some hundred products in both."""
    wanted = wanted.detach().numpy() if isinstance(wanted, torch.Tensor) else wanted
    assert actual.shape == wanted.shape
    limit = 256 * np.finfo(float).eps * max(1.0, np.abs(wanted).max())
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=limit)


def tensors(arrays):
    return [torch.from_numpy(array).requires_grad_() for array in arrays]


def ours_like(bias, sizes, **options):
    widths = {"d_key": sizes.get("kdim"), "d_value": sizes.get("vdim")}
    return regard.MultiHeadAttention(
        *(D, HEADS), **widths, qkv_bias=bias, out_bias=bias, rng=0, dtype=np.float64, **options
    )


def pair(bias, sizes, **options):
    """Return the same layer twice: PyTorch draws it, and regard copies it. PyTorch takes the state
    back."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        theirs = torch.nn.MultiheadAttention(
            D, HEADS, bias=bias, batch_first=True, dtype=torch.float64, **sizes
        )
        for name, parameter in theirs.named_parameters():
            if "bias" in name:  # initially 0
                torch.nn.init.normal_(parameter)
    ours = ours_like(bias, sizes, **options)
    state = {f"layers.0.attn.{n}": x.numpy() for n, x in theirs.state_dict().items()}
    ours.load_state_dict(state, "layers.0.attn")
    back = {n: torch.from_numpy(x) for n, x in ours.state_dict("torch").items()}
    assert all(torch.equal(back[n], x) for n, x in theirs.state_dict().items())
    assert theirs.load_state_dict(back, strict=True)
    return ours, theirs


def check(layers, inputs, grad, ours_options, theirs_options):
    """Compare weights in evaluation, and output and all gradients in training."""
    ours, theirs = layers
    leaves = tensors(inputs)
    three = leaves if len(leaves) == 3 else leaves * 3
    arguments = inputs if len(inputs) == 3 else inputs[:1]
    wanted, of_heads = theirs(*three, average_attn_weights=False, **theirs_options)
    _, weights = ours.eval()(*arguments, **ours_options, return_weights=True)
    assert_near(weights, of_heads)
    wanted.backward(torch.from_numpy(grad))
    ours.train()
    assert_near(ours(*arguments, **ours_options), wanted)
    gradients = ours.backward(grad)
    gradients = gradients[:3] if len(inputs) == 3 else [gradients]
    for actual, leaf in zip(gradients, leaves, strict=True):
        assert_near(actual, leaf.grad)
    bias = theirs.in_proj_bias is not None
    holder = ours_like(bias, {"kdim": theirs.kdim, "vdim": theirs.vdim})
    holder.load_state_dict({n: p.grad.numpy() for n, p in theirs.named_parameters()})
    for name, gradient in holder.state_dict().items():
        assert_near(ours.grads[name], gradient)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(40, D), (3, 40, D)])
def test_self_attention(shape, bias, is_causal):
    mask = torch.from_numpy(~regard.masks.causal(shape[-2])) if is_causal else None
    layers = pair(bias, {}, is_causal=is_causal)
    check(layers, [normal(shape, 0)], normal(shape, 1), {}, {"attn_mask": mask})


MASK = normal((6, 9), 4)
OF_HEADS = normal((3, HEADS, 6, 9), 4)
MASKS = {
    "all": ({}, {}),
    "bool mask": ({"mask": VISIBLE}, {"attn_mask": torch.from_numpy(~VISIBLE)}),
    "float mask": ({"mask": MASK}, {"attn_mask": torch.from_numpy(MASK)}),
    "mask of heads": (
        {"mask": OF_HEADS},
        {"attn_mask": torch.from_numpy(OF_HEADS.reshape(-1, 6, 9))},
    ),
    "padding": (
        {"mask": ~PADDED[:, None, None, :]},
        {"key_padding_mask": torch.from_numpy(PADDED)},
    ),
    "mask and lengths": (
        {"mask": VISIBLE, "key_lengths": [9, 4, 7]},
        {"attn_mask": torch.from_numpy(~VISIBLE), "key_padding_mask": torch.from_numpy(PADDED)},
    ),
}
SIZES = [{}, {"kdim": 20, "vdim": 12}, {"kdim": 20, "vdim": 20}]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", MASKS)
def test_cross_attention(name, sizes):
    widths = D, sizes.get("kdim", D), sizes.get("vdim", D)
    inputs = [normal((3, n, d), i) for i, (n, d) in enumerate(zip((6, 9, 9), widths, strict=True))]
    check(pair(True, sizes), inputs, normal((3, 6, D), 3), *MASKS[name])


STORED = {
    "float16": torch.Tensor.half,
    "float64": torch.Tensor.double,
    "bfloat16 parameters": lambda x: torch.nn.Parameter(x.bfloat16()),
    "results": lambda x: 2 * torch.nn.Parameter(x),
}


@pytest.mark.parametrize("convert", STORED.values(), ids=STORED)
@pytest.mark.parametrize("make", [regard.MultiHeadAttention, regard.SelfAttention])
def test_tensors_of_other_types_are_loaded(make, convert):
    layer = make(8, 2, qkv_bias=True, rng=0)
    state = {n: convert(torch.randn(x.shape)) for n, x in layer.state_dict().items()}
    layer.load_state_dict(state)
    for name, array in layer.state_dict().items():
        np.testing.assert_array_equal(array, state[name].detach().float().numpy())
