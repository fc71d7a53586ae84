"""Test what `regard.torch` has in common with PyTorch's own call, and how it handles tensors."""

import itertools
import warnings

import pytest

import regard
from torch_problems import scaled_dot_product_attention, torch

from torch.utils.flop_counter import (  # isort: skip
    FlopCounterMode,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

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
    "float mask": (SHAPES, {"attn_mask": torch.linspace(-3, 1, 9, dtype=torch.float64)[None]}),
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
    torch.testing.assert_close(*gradients, rtol=0, atol=256 * EPS)


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


def packed(*three, **options):
    starts = torch.tensor([0, 3, 7])
    three = (x[0, :, :7].transpose(0, 1) for x in three)
    return regard.torch.scaled_dot_product_attention_ragged(*three, starts, starts, **options)


@pytest.mark.parametrize("call", [scaled_dot_product_attention, packed])
def test_dropout_follows_the_generator(call):
    tensors = drawn(*SHAPES)
    leaves = [x.clone().requires_grad_() for x in tensors]
    with torch.random.fork_rng():
        torch.manual_seed(3)
        first, second = (call(*tensors, dropout_p=0.5) for _ in range(2))
        torch.manual_seed(3)
        again = call(*leaves, dropout_p=0.5)
        state = torch.get_rng_state()
        call(*tensors, dropout_p=0.5, dropout_seed=1)
        call(*tensors)
        assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


bias = pytest.importorskip("torch.nn.attention.bias")
CAUSAL_BIASES = {"upper left": bias.causal_upper_left, "lower right": bias.causal_lower_right}
each_bias = pytest.mark.parametrize("variant", CAUSAL_BIASES)


def of_lengths(variant, q_len, kv_len):
    """Return query, key and value, and a `CausalBias`, whose memory holds nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of fully masked rows, as there are here
        mask = CAUSAL_BIASES[variant](q_len, kv_len)
    return drawn((2, 4, q_len, 16), (2, 2, kv_len, 16), (2, 2, kv_len, 5)), mask


@each_bias
@pytest.mark.parametrize("lengths", [(7, 7), (3, 9), (9, 3), (1, 6), (70, 300), (300, 70)])
def test_a_causal_bias_means_what_pytorch_says(variant, lengths):
    """This also holds if the first rows are fully masked, and if regard replaces PyTorch's
    function."""
    tensors, mask = of_lengths(variant, *lengths)
    for tensor in tensors:
        tensor.requires_grad_()
    wanted = theirs(*tensors, mask, enable_gqa=True)
    alone = scaled_dot_product_attention(*tensors, mask, enable_gqa=True)
    with regard.torch.replacing_sdpa():
        replaced = theirs(*tensors, mask, enable_gqa=True)
    assert type(alone) is type(replaced) is torch.Tensor
    torch.testing.assert_close(alone, replaced, rtol=0, atol=64 * EPS)
    torch.testing.assert_close(alone, wanted, rtol=0, atol=64 * EPS)
    gradients = [torch.autograd.grad(x.sin().sum(), tensors) for x in (alone, wanted)]
    torch.testing.assert_close(*gradients, rtol=0, atol=256 * EPS)


@each_bias
def test_other_options_hold_beside_a_causal_bias(variant):
    """Missing keys shift nothing; windows count from the positions that the bias gives the
    queries."""
    tensors, mask = of_lengths(variant, 4, 9)
    options = {"enable_gqa": True, "key_lengths": torch.tensor([9, 7]), "window": (3, None)}
    places = {"is_causal": True, "query_offset": 5 if variant == "lower right" else 0}
    output = scaled_dot_product_attention(*tensors, mask, **options)
    assert torch.equal(output, scaled_dot_product_attention(*tensors, **places, **options))


def test_a_compiled_function_reads_each_causal_bias():
    torch._dynamo.reset()

    def function(*tensors):
        return scaled_dot_product_attention(*tensors, enable_gqa=True)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for variant, lengths in itertools.product(CAUSAL_BIASES, [(3, 9), (4, 9), (9, 3)]):
        tensors, mask = of_lengths(variant, *lengths)
        assert torch.equal(compiled(*tensors, mask), function(*tensors, mask))


def operations(function):
    with FlopCounterMode(display=False) as counter:
        result = function()
    return counter.get_total_flops(), result


@pytest.mark.parametrize("kv_len", [9, 0])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"dropout_p": 0.5}], ids=str)
def test_pytorch_counts_operations_as_its_own(options, kv_len):
    shapes = (2, 4, 5, 8), (2, 2, kv_len, 8), (2, 2, kv_len, 6)
    tensors = [x.requires_grad_() for x in drawn(*shapes)]
    count, output = operations(
        lambda: scaled_dot_product_attention(*tensors, enable_gqa=True, **options)
    )
    assert count == sdpa_flop_count(*shapes)
    count, _ = operations(lambda: torch.autograd.grad(output.sum(), tensors))
    assert count == sdpa_backward_flop_count(output.shape, *shapes)


def test_pytorch_counts_the_operations_of_each_packed_sequence():
    starts = torch.tensor([0, 3, 7]), torch.tensor([0, 5, 6])
    tensors = [x.requires_grad_() for x in drawn((7, 4, 8), (6, 4, 8), (6, 4, 8))]
    count, output = operations(
        lambda: regard.torch.scaled_dot_product_attention_ragged(*tensors, *starts)
    )
    shapes = [[(1, 4, n, 8) for n in lengths] for lengths in ((3, 5, 5), (4, 1, 1))]
    assert count == sum(sdpa_flop_count(*each) for each in shapes)
    count, _ = operations(lambda: torch.autograd.grad(output.sum(), tensors))
    assert count == sum(sdpa_backward_flop_count(each[0], *each) for each in shapes)
