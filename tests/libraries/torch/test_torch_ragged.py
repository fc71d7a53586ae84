"""Packed sequences of tensors have the bits of a call for each sequence, with gradients."""

import itertools

import numpy as np
import pytest

import regard
from packed_tensors import (
    HEADS,
    KEYS,
    LONGEST,
    OPTIONS,
    QUERIES,
    packed,
    tensor,
    tensors,
)
from torch_problems import scaled_dot_product_attention, torch

from regard.torch import scaled_dot_product_attention_ragged  # isort: skip

# The axes of the options that may have one row, or one number, for each sequence.
AXES = {"query_offset": 1, "key_lengths": 1, "left_padding": 1, "alibi_slopes": 2}
each_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def sequences():
    return zip(itertools.pairwise(QUERIES), itertools.pairwise(KEYS), strict=True)


def one_by_one(query, key, value, attn_mask=None, **options):
    """Make a dense call for each sequence."""
    results = []
    for number, ((first, last), (first_key, last_key)) in enumerate(sequences()):
        own = dict(options)
        for name, axes in AXES.items():
            option = own.get(name)
            if isinstance(option, torch.Tensor) and option.ndim == axes:
                own[name] = option[number] if axes > 1 else int(option[number])
        if "dropout_p" in own:
            own["dropout_origin"] = (number, 0, 0)
        mask = attn_mask
        if mask is not None:
            mask = mask.expand(QUERIES[-1], HEADS, LONGEST)[first:last, :, : last_key - first_key]
            mask = mask.transpose(0, 1)
        parts = query[first:last], key[first_key:last_key], value[first_key:last_key]
        output, lse = scaled_dot_product_attention(
            *(part.transpose(0, 1) for part in parts),
            mask,
            enable_gqa=True,
            return_lse=True,
            **own,
        )
        results.append((output.transpose(0, 1), lse.transpose(0, 1)))
    return [torch.cat(each) for each in zip(*results, strict=True)]


def results_of(function, attn_mask, options, requires_grad):
    """Return output and lse, and the gradients of all inputs that have one."""
    inputs = tensors()
    options = {
        name: option.clone() if isinstance(option, torch.Tensor) else option
        for name, option in options.items()
    }
    leaves = [
        *inputs,
        *(x for n, x in options.items() if n in ("alibi_slopes", "distance_bias", "sinks")),
    ]
    if attn_mask is not None and attn_mask.is_floating_point():
        attn_mask = attn_mask.clone()
        leaves.append(attn_mask)
    for leaf in leaves:
        leaf.requires_grad_(requires_grad)
    output, lse = function(*inputs, attn_mask, **options)
    if not requires_grad:
        return output, lse
    loss = (output**2).sum() + torch.where(lse == -torch.inf, 0, lse).sin().sum()
    return output, lse, *torch.autograd.grad(loss, leaves)


@each_option
def test_results_are_those_of_each_sequence(options):
    wanted = results_of(one_by_one, None, options, False)
    for one, other in zip(results_of(packed, None, options, False), wanted, strict=True):
        assert torch.equal(one, other)


def assert_close(found, wanted):
    """Compare the bits of outputs, lse and everything that belongs to one sequence; sums over
    sequences agree up to rounding."""
    for i, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert one.dtype == other.dtype
        if i < 5:
            assert torch.equal(one, other), i
        else:
            bound = 32 * torch.finfo(one.dtype).eps * other.abs().max()
            torch.testing.assert_close(one, other, rtol=0, atol=float(bound))


@each_option
def test_gradients_are_those_of_each_sequence(options):
    wanted = results_of(one_by_one, None, options, True)
    assert_close(results_of(packed, None, options, True), wanted)


MASKS = {
    "bool": tensor(QUERIES[-1], HEADS, LONGEST) > -0.5,
    "bool of heads": tensor(1, HEADS, 1) > -0.5,
    "float": tensor(QUERIES[-1], HEADS, LONGEST),
    "float of queries": tensor(QUERIES[-1], 1, LONGEST),
}


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_masks_have_a_row_for_each_query(mask, requires_grad):
    wanted = results_of(one_by_one, mask, {"is_causal": True}, requires_grad)
    assert_close(results_of(packed, mask, {"is_causal": True}, requires_grad), wanted)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_sparse_mask(requires_grad):
    """The mask has the axis of heads first."""
    dense = MASKS["bool"]
    sparse = regard.masks.Blocks.from_dense(dense.transpose(0, 1).numpy(), block=(4, 8))
    query, key, value = (x.requires_grad_(requires_grad) for x in tensors())
    ours, other = packed(query, key, value, sparse), packed(query, key, value, dense)
    for one, two in zip(ours, other, strict=True):
        assert torch.equal(one, two)
    if requires_grad:
        gradients = [
            torch.autograd.grad(x[0].sin().sum(), (query, key, value)) for x in (ours, other)
        ]
        assert all(map(torch.equal, *gradients))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("order", ["rows first", "heads first", "one tensor"])
def test_types_and_strides(dtype, order):
    """The bits equal the results for contiguous tensors, and the output has the memory layout of
    the query."""
    dtype = getattr(torch, dtype)
    inputs = [x.to(dtype) for x in tensors(kv_heads=HEADS)]
    starts = [0, 4, 11]
    query, key, value = inputs[0], inputs[1][:11], inputs[1][11:22]
    wanted = scaled_dot_product_attention_ragged(query, key, value, starts, starts)
    if order == "heads first":
        query, key, value = (
            x.transpose(0, 1).contiguous().transpose(0, 1) for x in (query, key, value)
        )
    elif order == "one tensor":
        query, key, value = torch.stack([query, key, value], dim=2).unbind(2)
    found = scaled_dot_product_attention_ragged(query, key, value, starts, starts)
    assert found.dtype == dtype
    assert torch.equal(found, wanted)
    assert torch.empty_like(query).stride() == found.stride()
    narrow = scaled_dot_product_attention_ragged(query, key, value[..., :3], starts, starts)
    assert torch.equal(narrow, wanted[..., :3])
    assert (narrow.stride(0) < narrow.stride(1)) == (order == "heads first")


@pytest.mark.parametrize("starts", [[0], [0, 0], [0, 0, 0]])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_no_tokens(starts, requires_grad):
    query, key, value = (torch.zeros(0, HEADS, n, requires_grad=requires_grad) for n in (8, 8, 6))
    output, lse = scaled_dot_product_attention_ragged(
        query, key, value, starts, torch.tensor(starts), return_lse=True
    )
    assert (output.shape, lse.shape) == ((0, HEADS, 6), (0, HEADS))
    if requires_grad:
        (gradient,) = torch.autograd.grad(output.sum(), key)
        assert gradient.shape == key.shape


STARTS = {
    "list": list,
    "range-like": tuple,
    "array": np.array,
    "int32": lambda starts: torch.tensor(starts, dtype=torch.int32),
    "strided": lambda starts: torch.tensor(starts).repeat_interleave(2)[::2],
}


@pytest.mark.parametrize("make", STARTS.values(), ids=STARTS)
def test_starts_of_any_kind(make):
    for requires_grad in (False, True):
        inputs = [x.requires_grad_(requires_grad) for x in tensors(kv_heads=HEADS)]
        wanted = scaled_dot_product_attention_ragged(*inputs, QUERIES, KEYS)
        assert torch.equal(
            scaled_dot_product_attention_ragged(*inputs, make(QUERIES), make(KEYS)), wanted
        )


def test_head_dim_0_and_dropout_of_all():
    query, key, value = tensors(kv_heads=HEADS)
    with pytest.raises(ValueError, match="must have a head_dim of at least 1"):
        packed(query[..., :0], key[..., :0], value)
    assert not packed(query, key, value, dropout_p=1.0)[0].any()


def test_heads_broadcast_or_repeat():
    query, key, value = tensors(kv_heads=HEADS)
    starts = QUERIES, KEYS
    one = scaled_dot_product_attention_ragged(query, key[:, :1], value[:, :1], *starts)
    four = scaled_dot_product_attention_ragged(
        query, key[:, :1].repeat(1, 4, 1), value[:, :1].repeat(1, 4, 1), *starts
    )
    assert torch.equal(one, four)
    mixed = scaled_dot_product_attention_ragged(query, key[:, :2], value, *starts, enable_gqa=True)
    repeated = key[:, :2].repeat_interleave(2, dim=1)
    assert torch.equal(mixed, scaled_dot_product_attention_ragged(query, repeated, value, *starts))


def test_autocast_converts():
    inputs = tensors(kv_heads=HEADS)
    with torch.autocast("cpu", torch.bfloat16):
        output = scaled_dot_product_attention_ragged(*inputs, QUERIES, KEYS)
    converted = (x.bfloat16() for x in inputs)
    assert torch.equal(output, scaled_dot_product_attention_ragged(*converted, QUERIES, KEYS))


def test_the_seed_is_drawn_from_pytorchs_generator():
    query, key, value = tensors(kv_heads=HEADS)

    def dropped(requires_grad):
        torch.manual_seed(3)
        query.requires_grad_(requires_grad)
        return [packed(query, key, value, dropout_p=0.5)[0] for _ in range(2)]

    first, second = dropped(False)
    assert not torch.equal(first, second)
    assert all(map(torch.equal, dropped(True), (first, second)))
