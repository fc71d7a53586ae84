"""Test what `regard.torch` has in common with PyTorch's own call, and how it handles tensors."""

import itertools

import pytest

from torch_problems import scaled_dot_product_attention, torch

theirs = torch.nn.functional.scaled_dot_product_attention
EPS = torch.finfo(torch.float64).eps


def drawn(*shapes, dtype=torch.float64):
    random = torch.Generator().manual_seed(7)
    return [torch.randn(shape, generator=random, dtype=torch.float64).to(dtype) for shape in shapes]


SHAPES = (2, 4, 7, 16), (2, 4, 9, 16), (2, 4, 9, 16)
CALLS = {
    "plain": (SHAPES, {}),
    "causal": (SHAPES, {"is_causal": True}),
    "scale": (SHAPES, {"scale": 0.3}),
    "bool mask": (SHAPES, {"attn_mask": torch.arange(9)[None] < 6}),
    "float mask": (
        SHAPES,
        {"attn_mask": torch.linspace(-3, 1, 9, dtype=torch.float64)[None]},
    ),
    "groups": (((2, 6, 7, 16), (2, 2, 9, 16), (2, 2, 9, 16)), {"enable_gqa": True}),
    "groups of fewer keys": (((2, 8, 7, 16), (2, 2, 9, 16), (2, 4, 9, 5)), {"enable_gqa": True}),
    "groups of fewer values": (((2, 8, 7, 16), (2, 4, 9, 16), (2, 1, 9, 16)), {"enable_gqa": True}),
    "groups of 3 and of 2": (((2, 6, 7, 16), (2, 2, 9, 16), (2, 3, 9, 16)), {"enable_gqa": True}),
    "groups of 3 axes": (((4, 7, 16), (1, 9, 16), (2, 9, 5)), {"enable_gqa": True}),
    "all is dropped": (SHAPES, {"dropout_p": 1.0}),
    "all is dropped, one": (SHAPES, {"dropout_p": 1, "is_causal": True}),
    "one key head": (((2, 6, 7, 16), (2, 1, 9, 16), (2, 1, 9, 16)), {}),
    "one query head": (((2, 1, 7, 16), (2, 4, 9, 16), (2, 4, 9, 16)), {}),
    "value_dim": (((2, 4, 7, 16), (2, 4, 9, 16), (2, 4, 9, 5)), {}),
    "three axes": (((4, 7, 16), (4, 9, 16), (4, 9, 16)), {}),
    "two axes": (((7, 16), (9, 16), (9, 16)), {}),
}


@pytest.mark.parametrize("name", CALLS)
def test_pytorchs_arguments_mean_the_same(name):
    shapes, options = CALLS[name]
    tensors = [x.requires_grad_() for x in drawn(*shapes)]
    ours, wanted = scaled_dot_product_attention(*tensors, **options), theirs(*tensors, **options)
    torch.testing.assert_close(ours, wanted, rtol=0, atol=64 * EPS)
    gradients = [torch.autograd.grad(x.sin().sum(), tensors) for x in (ours, wanted)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=256 * EPS)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("value_dim", [16, 5])
@pytest.mark.parametrize("is_traced", [False, True])
def test_output_has_the_layout_of_the_query(order, value_dim, is_traced):
    """All axes but the last one, which is innermost, are permuted in memory."""
    sizes = 2, 4, 7
    (query,) = drawn((*(sizes[i] for i in order), 16))
    query = query.permute(*(order.index(i) for i in range(3)), 3).requires_grad_(is_traced)
    key, value = drawn((2, 4, 9, 16), (2, 4, 9, value_dim))
    output = scaled_dot_product_attention(query, key, value)
    wanted = scaled_dot_product_attention(query.detach().contiguous(), key, value)
    assert torch.equal(output, wanted)
    if value_dim == 16:
        assert output.stride() == query.stride()
    elif order in ((0, 1, 2), (0, 2, 1)):
        assert output.transpose(1, 2).is_contiguous() == (order == (0, 2, 1))
    if is_traced:
        (gradient,) = torch.autograd.grad(output.sum(), query)
        assert gradient.stride() == query.stride()


def test_autocast():
    tensors = [x.requires_grad_() for x in drawn(*SHAPES, dtype=torch.float32)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = scaled_dot_product_attention(*tensors)
        assert theirs(*tensors).dtype == output.dtype == torch.bfloat16
        mixed = scaled_dot_product_attention(tensors[0].half(), *tensors[1:])
        assert mixed.dtype == torch.bfloat16
        doubles = [x.double() for x in tensors]
        assert scaled_dot_product_attention(*doubles).dtype == torch.float64
    assert torch.equal(output, scaled_dot_product_attention(*(x.bfloat16() for x in tensors)))
    assert torch.autograd.grad(output.sum(), tensors)[0].dtype == torch.float32


def test_the_device_meta():
    query, key, value = (torch.empty(s, device="meta") for s in (SHAPES[0], SHAPES[1], (9, 5)))
    output, lse = scaled_dot_product_attention(
        query, key[:, :1], value, return_lse=True, window=(3, 0), key_lengths=4
    )
    assert output.device.type == "meta"
    assert output.shape == (2, 4, 7, 5)
    assert (lse.shape, lse.dtype) == ((2, 4, 7), torch.float32)


def test_dropout_follows_the_generator():
    tensors = drawn(*SHAPES)
    leaves = [x.clone().requires_grad_() for x in tensors]
    with torch.random.fork_rng():
        torch.manual_seed(3)
        first, second = (scaled_dot_product_attention(*tensors, dropout_p=0.5) for _ in range(2))
        torch.manual_seed(3)
        again = scaled_dot_product_attention(*leaves, dropout_p=0.5)
        state = torch.get_rng_state()
        scaled_dot_product_attention(*tensors, dropout_p=0.5, dropout_seed=1)
        scaled_dot_product_attention(*tensors)
        assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_checkpointed_blocks_drop_the_same():
    query, key, value = (x.requires_grad_() for x in drawn(*SHAPES))

    def block(query):
        return scaled_dot_product_attention(query, key, value, dropout_p=0.5)

    gradients = []
    for run in (block, lambda x: torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)):
        with torch.random.fork_rng():
            torch.manual_seed(3)
            gradients.append(torch.autograd.grad(run(query).sum(), query)[0])
    assert torch.equal(*gradients)


@pytest.mark.parametrize("seed", [0, 2**31, 2**63 - 1, 2**63, 2**64 - 1])
def test_seeds(seed):
    tensors = drawn(*SHAPES)
    options = {"dropout_p": 0.5}
    plain = scaled_dot_product_attention(*tensors, **options, dropout_seed=seed)
    tensors[0].requires_grad_()
    recorded = scaled_dot_product_attention(*tensors, **options, dropout_seed=seed)
    signed = torch.tensor(seed if seed < 2**63 else seed - 2**64)
    assert torch.equal(plain, recorded)
    assert torch.equal(
        scaled_dot_product_attention(*tensors, **options, dropout_seed=signed), plain
    )
