"""PyTorch's `CausalBias`, whose memory holds nothing, has the same meaning as in PyTorch's call."""

import itertools
import warnings

import pytest

import regard
from torch_problems import scaled_dot_product_attention, torch

bias = pytest.importorskip("torch.nn.attention.bias")
theirs = torch.nn.functional.scaled_dot_product_attention
EPS = torch.finfo(torch.float64).eps
MAKERS = {"upper left": bias.causal_upper_left, "lower right": bias.causal_lower_right}
each_variant = pytest.mark.parametrize("variant", MAKERS)


def made(variant, q_len, kv_len):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of fully masked rows, as there are here
        return MAKERS[variant](q_len, kv_len)


def drawn(q_len, kv_len):
    random = torch.Generator().manual_seed(5)
    shapes = (2, 4, q_len, 16), (2, 2, kv_len, 16), (2, 2, kv_len, 5)
    return [torch.randn(s, generator=random, dtype=torch.float64) for s in shapes]


@each_variant
@pytest.mark.parametrize("lengths", [(7, 7), (3, 9), (9, 3), (1, 6), (6, 1), (70, 300), (300, 70)])
@pytest.mark.parametrize("is_recorded", [False, True])
def test_results_are_pytorchs(variant, lengths, is_recorded):
    """This also holds if the first rows are fully masked, and if regard replaces PyTorch's
    function."""
    tensors = [x.requires_grad_(is_recorded) for x in drawn(*lengths)]
    mask = made(variant, *lengths)
    wanted = theirs(*tensors, mask, enable_gqa=True)
    alone = scaled_dot_product_attention(*tensors, mask, enable_gqa=True)
    with regard.torch.replacing_sdpa():
        replaced = theirs(*tensors, mask, enable_gqa=True)
    assert type(alone) is type(replaced) is torch.Tensor
    torch.testing.assert_close(alone, replaced, rtol=0, atol=64 * EPS)
    torch.testing.assert_close(alone, wanted, rtol=0, atol=64 * EPS)
    if is_recorded:
        gradients = [torch.autograd.grad(x.sin().sum(), tensors) for x in (alone, wanted)]
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=256 * EPS)


@each_variant
def test_other_options_hold_too(variant):
    """Missing keys shift nothing; windows count from the positions that the bias gives the
    queries."""
    tensors, mask = drawn(4, 9), made(variant, 4, 9)
    offset = 5 if variant == "lower right" else 0
    options = {"enable_gqa": True, "key_lengths": torch.tensor([9, 7]), "window": (3, None)}
    places = {"is_causal": True, "query_offset": offset}
    output = scaled_dot_product_attention(*tensors, mask, **options)
    assert torch.equal(output, scaled_dot_product_attention(*tensors, **places, **options))


@pytest.mark.parametrize("dynamic", [None, True])
def test_compiled(dynamic):
    """A function that is compiled once reads each bias that it gets."""
    torch._dynamo.reset()

    def function(*tensors):
        return scaled_dot_product_attention(*tensors, enable_gqa=True)

    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for variant, lengths in itertools.product(MAKERS, [(3, 9), (4, 9), (9, 3)]):
        tensors, mask = drawn(*lengths), made(variant, *lengths)
        assert torch.equal(compiled(*tensors, mask), function(*tensors, mask))
