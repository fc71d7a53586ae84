"""Jagged nested tensors have the bits of a call on packed sequences, with gradients."""

import itertools

import numpy as np
import pytest

from problem import drawn
from torch_problems import scaled_dot_product_attention, torch

from torch._dynamo.testing import CompileCounterWithBackend  # isort: skip
from regard.torch import scaled_dot_product_attention_ragged  # isort: skip


HEADS, HEAD_DIM, VALUE_DIM = 4, 8, 6
LENGTHS = {
    "three": ([3, 7, 1], [3, 7, 1]),
    "other keys": ([3, 7, 1], [5, 2, 9]),
    "empty sequences": ([0, 3, 0, 2, 0], [2, 0, 0, 4, 1]),
    "one sequence": ([5], [9]),
    "no queries": ([0, 0], [1, 2]),
    "no sequences": ([], []),
}


def offsets_of(lengths):
    return torch.tensor([0, *itertools.accumulate(lengths)])


def jagged(offsets, heads, dim, dtype=torch.float32, seed=0):
    """Return a leaf of shape (batch, length, heads, dim), as a projection of a model makes it."""
    array = drawn((int(offsets[-1]), heads, dim), np.float64, seed)
    values = torch.from_numpy(array).to(dtype)
    return torch.nested.nested_tensor_from_jagged(values, offsets.clone()).requires_grad_()


def inputs_of(lengths, dtype=torch.float32, kv_heads=HEADS, value_dim=VALUE_DIM):
    """Return query, key and value, where key and value have the same offsets."""
    query = jagged(offsets_of(lengths[0]), HEADS, HEAD_DIM, dtype)
    key = jagged(offsets_of(lengths[1]), kv_heads, HEAD_DIM, dtype, 1)
    values = torch.from_numpy(drawn((sum(lengths[1]), kv_heads, value_dim), np.float64, 2))
    value = torch.nested.nested_tensor_from_jagged(values.to(dtype), key.offsets())
    return query, key, value.requires_grad_()


def packed(query, key, value, **options):
    """Return the values of a call on the packed sequences."""
    tensors = (x.values() for x in (query, key, value))
    return scaled_dot_product_attention_ragged(*tensors, query.offsets(), key.offsets(), **options)


def with_gradients(function, tensors, **options):
    """Return the values of a result, and the gradients of the values of query, key and value."""
    values = function(*tensors, **options)
    gradients = torch.autograd.grad(values.float().sin().sum(), tensors)
    return [values.detach(), *(gradient.values() for gradient in gradients)]


def through_heads(query, key, value, **options):
    output = scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (query, key, value)), **options
    )
    assert output.shape == (*query.transpose(1, 2).shape[:-1], value.shape[-1])
    assert output.is_nested
    assert output.dtype == query.dtype
    # The next step in a model.
    flat = output.transpose(1, 2).flatten(-2)
    assert flat.offsets() is query.offsets()
    return flat.values().reshape(-1, HEADS, value.shape[-1])


OPTIONS = {
    "plain": {},
    "causal": {"is_causal": True},
    "groups": {"scale": 0.3, "enable_gqa": True},
    "window": {"window": (2, 1), "query_offset": 1, "softcap": 2.0},
    "end": {"query_offset": "end", "is_causal": True},
    "sinks": {"sinks": torch.arange(4.0)},
    "dropout": {"dropout_p": 0.5, "dropout_seed": 3},
    "all dropped": {"dropout_p": 1.0},
}


TYPES = itertools.cycle([torch.float32, torch.float64, torch.float16, torch.bfloat16])
EACH = [
    pytest.param(options, lengths, next(TYPES), id=f"{name}-{of_lengths}")
    for name, options in OPTIONS.items()
    for of_lengths, lengths in LENGTHS.items()
]


@pytest.mark.parametrize(("options", "lengths", "dtype"), EACH)
def test_results_and_gradients(options, lengths, dtype):
    tensors = inputs_of(lengths, dtype, kv_heads=2 if "enable_gqa" in options else HEADS)
    ours = with_gradients(through_heads, tensors, **options)
    assert all(map(torch.equal, ours, with_gradients(packed, tensors, **options)))
    with torch.no_grad():
        assert torch.equal(through_heads(*tensors, **options), ours[0])


def test_other_ways_to_make_them():
    """Tensors come from lists, from views of one projection, and with heads first in memory."""
    parts = [torch.from_numpy(drawn((n, 3, HEADS, HEAD_DIM), np.float32, n)) for n in (3, 5)]
    both = torch.nested.nested_tensor([part.flatten(1) for part in parts], layout=torch.jagged)
    query, key, value = (
        part.unflatten(-1, [HEADS, HEAD_DIM]).transpose(1, 2) for part in both.chunk(3, dim=-1)
    )
    ours = scaled_dot_product_attention(query, key, value, is_causal=True)
    for one, part in zip(ours.unbind(), parts, strict=True):
        three = part.permute(1, 2, 0, 3)
        assert torch.equal(one, scaled_dot_product_attention(*three, is_causal=True))
    first = torch.nested.nested_tensor_from_jagged(
        query.values().contiguous(), query.offsets(), jagged_dim=2
    )
    again = scaled_dot_product_attention(first, key, value, is_causal=True)
    assert torch.equal(again.values(), ours.values())
    lists = [
        torch.nested.nested_tensor([p[:, i] for p in parts], layout=torch.jagged) for i in range(3)
    ]
    assert len({id(x.offsets()) for x in lists}) == 3
    separate = scaled_dot_product_attention(*(x.transpose(1, 2) for x in lists), is_causal=True)
    assert torch.equal(separate.values(), ours.values())


def test_one_head_without_an_axis():
    lengths = offsets_of([3, 4])
    tensors = [
        torch.nested.nested_tensor_from_jagged(torch.from_numpy(drawn((7, d), np.float32)), lengths)
        for d in (8, 8, 6)
    ]
    output, lse = scaled_dot_product_attention(*tensors, is_causal=True, return_lse=True)
    assert output.shape == (*tensors[0].shape[:-1], 6)
    assert lse.shape == tensors[0].shape[:-1]
    for i, (one, of_one) in enumerate(zip(output.unbind(), lse.unbind(), strict=True)):
        parts = (x.unbind()[i] for x in tensors)
        alone = scaled_dot_product_attention(*parts, is_causal=True, return_lse=True)
        assert all(map(torch.equal, (one, of_one), alone))


def test_compiled():
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")

    def block(query, key, value):
        heads = (x.transpose(1, 2) for x in (query, key, value))
        output = scaled_dot_product_attention(*heads, is_causal=True)
        return output.transpose(1, 2).flatten(-2).values() * 2

    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=counter)
    for name in ("three", "empty sequences", "other keys"):
        tensors = inputs_of(LENGTHS[name])
        results = (with_gradients(each, tensors) for each in (compiled, block))
        assert all(map(torch.equal, *results))
    assert counter.frame_count <= 3
