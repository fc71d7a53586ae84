"""The gradients of layers, compared with PyTorch's autograd, in float64."""

import numpy as np
import pytest

import regard

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: pip install '.[conformance]'"
)
D, HEADS = 32, 4
PADDED = np.arange(9) >= np.array([9, 4, 7])[:, None]


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


def pair(bias, sizes, **options):
    """Return PyTorch's layer and regard's in train mode, with the same parameters."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        theirs = torch.nn.MultiheadAttention(
            D, HEADS, bias=bias, batch_first=True, dtype=torch.float64, **sizes
        )
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
        dtype=np.float64,
        **options,
    )
    ours.load_state_dict({n: p.detach().numpy() for n, p in theirs.named_parameters()})
    return ours.train(), theirs


def in_our_names(layer, theirs):
    """Return PyTorch's gradients, under the names of `grads`."""
    biases = "in_proj_bias" in dict(theirs.named_parameters()) and theirs.in_proj_bias is not None
    holder = regard.MultiHeadAttention(
        D,
        HEADS,
        d_key=theirs.kdim,
        d_value=theirs.vdim,
        qkv_bias=biases,
        out_bias=biases,
        rng=0,
        dtype=np.float64,
    )
    holder.load_state_dict({n: p.grad.numpy() for n, p in theirs.named_parameters()})
    return holder.state_dict()


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(40, D), (3, 40, D)])
def test_self_attention(shape, bias, is_causal):
    ours, theirs = pair(bias, {}, is_causal=is_causal)
    x, grad = normal(shape, 0), normal(shape, 1)
    (tensor,) = tensors([x])
    mask = torch.from_numpy(~regard.masks.causal(shape[-2])) if is_causal else None
    wanted, _ = theirs(tensor, tensor, tensor, attn_mask=mask, need_weights=False)
    wanted.backward(torch.from_numpy(grad))
    assert_near(ours(x), wanted)
    assert_near(ours.backward(grad), tensor.grad)
    for name, gradient in in_our_names(ours, theirs).items():
        assert_near(ours.grads[name], gradient)


@pytest.mark.parametrize("sizes", [{}, {"kdim": 20, "vdim": 12}, {"kdim": 20, "vdim": 20}])
@pytest.mark.parametrize(
    ("options", "their_options"),
    [
        ({}, {}),
        ({"mask": normal((6, 9), 4)}, {"attn_mask": torch.from_numpy(normal((6, 9), 4))}),
        (
            {"mask": ~PADDED[:, None, None, :]},
            {"key_padding_mask": torch.from_numpy(PADDED)},
        ),
        ({"key_lengths": [9, 4, 7]}, {"key_padding_mask": torch.from_numpy(PADDED)}),
    ],
    ids=["all", "float mask", "padding", "lengths"],
)
def test_cross_attention(options, their_options, sizes):
    ours, theirs = pair(True, sizes)
    inputs = [
        normal((3, 6, D), 0),
        normal((3, 9, sizes.get("kdim", D)), 1),
        normal((3, 9, sizes.get("vdim", D)), 2),
    ]
    grad = normal((3, 6, D), 3)
    theirs_inputs = tensors(inputs)
    wanted, _ = theirs(*theirs_inputs, need_weights=False, **their_options)
    wanted.backward(torch.from_numpy(grad))
    assert_near(ours(*inputs, **options), wanted)
    for actual, tensor in zip(ours.backward(grad)[:3], theirs_inputs, strict=True):
        assert_near(actual, tensor.grad)
    for name, gradient in in_our_names(ours, theirs).items():
        assert_near(ours.grads[name], gradient)


def half_turned(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


@pytest.mark.parametrize("length", [1, 50])
def test_grouped_heads_with_norms_and_rotation(length):
    """The layer is the attention of Qwen 3, as its model computes it."""
    ours = regard.MultiHeadAttention(
        D, HEADS, num_kv_heads=2, head_dim=16, is_causal=True, rotary=True, qk_norm="rms", rng=0,
        dtype=np.float64,
    ).train()  # fmt: skip
    for parameter in ours.parameters().values():
        parameter += 0.2 * normal(parameter.shape, 7)
    state = {
        name: torch.from_numpy(array).requires_grad_() for name, array in ours.state_dict().items()
    }
    x, grad = normal((2, length, D), 0), normal((2, length, D), 1)
    (tensor,) = tensors([x])
    cos, sin = regard.positional.rotary_cache(np.arange(length), 16)
    cos, sin = (torch.from_numpy(np.concatenate([part, part], axis=-1)) for part in (cos, sin))

    def heads(name, count):
        split = (tensor @ state[f"W_{name}.weight"].T).unflatten(-1, (count, 16))
        if name != "value":
            weight = state[f"{name[0]}_norm.weight"]
            split = torch.nn.functional.rms_norm(split, (16,), weight, eps=1e-6)
        split = split.transpose(-2, -3)
        return split if name == "value" else split * cos + half_turned(split) * sin

    attended = torch.nn.functional.scaled_dot_product_attention(
        heads("query", HEADS), heads("key", 2), heads("value", 2), is_causal=True, enable_gqa=True
    )
    wanted = attended.transpose(-2, -3).flatten(-2) @ state["out_proj.weight"].T
    wanted.backward(torch.from_numpy(grad))
    assert_near(ours(x), wanted)
    assert_near(ours.backward(grad), tensor.grad)
    for name, parameter in state.items():
        assert_near(ours.grads[name], parameter.grad)


@pytest.mark.parametrize("shape", [(30, 8), (2, 3, 30, 8)])
@pytest.mark.parametrize("bias", [False, True])
def test_one_head(bias, shape):
    ours = regard.SelfAttention(8, 5, qkv_bias=bias, rng=0, dtype=np.float64).train()
    state = {
        name: torch.from_numpy(array).requires_grad_() for name, array in ours.state_dict().items()
    }
    x, grad = normal(shape, 0), normal((*shape[:-1], 5), 1)
    (tensor,) = tensors([x])
    heads = (
        torch.nn.functional.linear(tensor, state[f"W_{name}.weight"], state.get(f"W_{name}.bias"))
        for name in ("query", "key", "value")
    )
    wanted = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
    wanted.backward(torch.from_numpy(grad))
    assert_near(ours(x, is_causal=True), wanted)
    assert_near(ours.backward(grad), tensor.grad)
    for name, parameter in state.items():
        assert_near(ours.grads[name], parameter.grad)


@pytest.mark.parametrize("per_entry", [False, True])
def test_head_gates(per_entry):
    """The formula in PyTorch has learned gates and gates given to the call."""
    ours, _ = pair(True, {}, head_gates=True)
    state = ours.parameters()
    state["head_gates"][:] = normal(HEADS, 7)
    x, grad = normal((3, 9, D), 0), normal((3, 9, D), 1)
    given = normal((3, HEADS) if per_entry else (HEADS,), 5)
    own = {name: torch.from_numpy(array.copy()).requires_grad_() for name, array in state.items()}
    tensor, gates = tensors([x, given])
    q, k, v = (
        (tensor @ own[f"W_{name}.weight"].T + own[f"W_{name}.bias"])
        .unflatten(-1, (HEADS, -1))
        .transpose(1, 2)
        for name in ("query", "key", "value")
    )
    heads = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
    factors = own["head_gates"] * (gates[:, None] if per_entry else gates)
    joined = (heads * factors[..., None]).flatten(-2)
    wanted = joined @ own["out_proj.weight"].T + own["out_proj.bias"]
    wanted.backward(torch.from_numpy(grad))
    assert_near(ours(x, head_gates=given), wanted)
    gradients = ours.backward(grad)
    assert_near(gradients.query, tensor.grad)
    assert_near(gradients.head_gates, gates.grad)
    for name, gradient in ours.grads.items():
        assert_near(gradient, own[name].grad)
