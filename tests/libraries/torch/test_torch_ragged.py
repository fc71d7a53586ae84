"""Packed sequences have the bits of a call for each sequence, also under vmap and when compiled."""

import itertools

import numpy as np
import pytest

import regard
from problem import drawn
from torch_problems import scaled_dot_product_attention, torch

from torch._dynamo.testing import CompileCounterWithBackend  # isort: skip
from regard.torch import scaled_dot_product_attention_ragged  # isort: skip


HEADS, KV_HEADS = 4, 2
QUERIES, KEYS = [0, 3, 3, 10, 11], [0, 5, 9, 9, 30]
LONGEST = 21


def tensors(dtype=torch.float32, kv_heads=KV_HEADS):
    shapes = (QUERIES[-1], HEADS, 8), (KEYS[-1], kv_heads, 8), (KEYS[-1], kv_heads, 6)
    return [torch.from_numpy(drawn(x, np.float64, i)).to(dtype) for i, x in enumerate(shapes)]


def tensor(*shape):
    return torch.from_numpy(drawn(shape, np.float32, 9))


DROPOUT = {"dropout_p": 0.4, "dropout_seed": 2**64 - 9}
OFFSETS = torch.tensor([1, 2, 0, 20])
BIAS = tensor(QUERIES[-1], HEADS, LONGEST)
# The options of a call; a tensor whose first axis is 4 has one row for each sequence.
OPTIONS = {
    "plain": {},
    "end": {"is_causal": True, "query_offset": "end"},
    "offset of each": {"is_causal": True, "query_offset": OFFSETS},
    "window": {"window": (3, 1), "query_offset": 2},
    "lengths of each": {
        "key_lengths": torch.tensor([4, 4, 0, 13]),
        "left_padding": torch.tensor([1, 0, 0, 2]),
    },
    "scale of heads": {"scale": [0.1, 0.2, 0.3, 0.4], "softcap": [1.0, 2.0, 3.0, 4.0]},
    "slopes of each": {"alibi_slopes": tensor(4, HEADS)},
    "bool mask": {"attn_mask": BIAS > -0.5},
    "bool mask of heads": {"attn_mask": BIAS[:1, :, :1] > -0.5},
    "float mask": {"attn_mask": BIAS, "is_causal": True},
    "float mask of queries": {"attn_mask": BIAS[:, :1]},
    "dropout": DROPOUT,
    "all is dropped": {"dropout_p": 1.0},
    "all": {
        "is_causal": True,
        "query_offset": OFFSETS,
        "window": (9, 0),
        "softcap": 2.0,
        "alibi_slopes": tensor(4, HEADS),
        "distance_bias": tensor(HEADS, 7),
        "sinks": tensor(HEADS),
        **DROPOUT,
    },
}
# The axes of the options that may have one row, or one number, for each sequence.
AXES = {"query_offset": 1, "key_lengths": 1, "left_padding": 1, "alibi_slopes": 2}


def packed(query, key, value, query_starts=QUERIES, key_starts=KEYS, **options):
    options = {"enable_gqa": True, "return_lse": True} | options
    return scaled_dot_product_attention_ragged(
        query, key, value, query_starts, key_starts, **options
    )


def one_by_one(query, key, value, attn_mask=None, **options):
    """Make a dense call for each sequence."""
    results = []
    sequences = zip(itertools.pairwise(QUERIES), itertools.pairwise(KEYS), strict=True)
    for number, ((first, last), (first_key, last_key)) in enumerate(sequences):
        own = options | {"enable_gqa": True, "return_lse": True}
        for name, axes in AXES.items():
            option = own.get(name)
            if isinstance(option, torch.Tensor) and option.ndim == axes:
                own[name] = option[number] if axes > 1 else int(option[number])
        if "dropout_p" in own:
            own["dropout_origin"] = (number, 0, 0)
        if attn_mask is not None:
            mask = attn_mask.expand(QUERIES[-1], HEADS, LONGEST)
            own["attn_mask"] = mask[first:last, :, : last_key - first_key].transpose(0, 1)
        parts = query[first:last], key[first_key:last_key], value[first_key:last_key]
        found = scaled_dot_product_attention(*(part.transpose(0, 1) for part in parts), **own)
        results.append([x.transpose(0, 1) for x in found])
    return [torch.cat(each) for each in zip(*results, strict=True)]


def results_of(function, options, requires_grad, dtype):
    """Return output and lse, and the gradients of all inputs that have one."""
    inputs = tensors(dtype)
    options = {n: x.clone() if isinstance(x, torch.Tensor) else x for n, x in options.items()}
    floats = (x for x in options.values() if isinstance(x, torch.Tensor) and x.is_floating_point())
    leaves = [x.requires_grad_(requires_grad) for x in (*inputs, *floats)]
    output, lse = function(*inputs, **options)
    if not requires_grad:
        return output, lse
    loss = (output**2).sum() + torch.where(lse == -torch.inf, 0, lse).sin().sum()
    return output, lse, *torch.autograd.grad(loss, leaves)


TYPES = itertools.cycle([torch.float32, torch.float64, torch.float16, torch.bfloat16])
EACH = [pytest.param(x, next(TYPES), id=name) for name, x in OPTIONS.items()]


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(("options", "dtype"), EACH)
def test_results_and_gradients_are_those_of_each_sequence(options, dtype, requires_grad):
    """What belongs to one sequence has the same bits; sums over sequences agree up to rounding."""
    ours, wanted = (
        results_of(function, options, requires_grad, dtype) for function in (packed, one_by_one)
    )
    for i, (one, other) in enumerate(zip(ours, wanted, strict=True)):
        assert one.dtype == other.dtype
        bound = 32 * torch.finfo(one.dtype).eps * other.abs().max() if i >= 5 else 0.0
        assert torch.equal(one, other) if i < 5 else (one - other).abs().max() <= bound


@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_sparse_mask_has_the_axis_of_heads_first(requires_grad):
    shown = BIAS > -0.5
    sparse = regard.masks.Blocks.from_dense(shown.transpose(0, 1).numpy(), block=(4, 8))
    inputs = [x.requires_grad_(requires_grad) for x in tensors()]
    ours, other = (packed(*inputs, attn_mask=mask) for mask in (sparse, shown))
    assert all(map(torch.equal, ours, other))
    if requires_grad:
        gradients = [torch.autograd.grad(x[0].sin().sum(), inputs) for x in (ours, other)]
        assert all(map(torch.equal, *gradients))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("order", ["rows first", "heads first", "one tensor"])
def test_types_and_strides(dtype, order):
    """The bits equal the results for contiguous tensors, and the output has the memory layout of
    the query."""
    starts = [0, 4, 11]
    query, key, value = tensors(getattr(torch, dtype), kv_heads=HEADS)
    three = query, key[:11], torch.cat([value, value], dim=-1)[:11, :, :8]
    wanted = scaled_dot_product_attention_ragged(*three, starts, starts)
    if order == "heads first":
        three = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in three]
    elif order == "one tensor":
        three = torch.stack(three, dim=2).unbind(2)
    found = scaled_dot_product_attention_ragged(*three, starts, starts)
    assert torch.equal(found, wanted)
    assert torch.empty_like(three[0]).stride() == found.stride()
    narrow = scaled_dot_product_attention_ragged(*three[:2], three[2][..., :3], starts, starts)
    assert torch.equal(narrow, wanted[..., :3])
    assert (narrow.stride(0) < narrow.stride(1)) == (order == "heads first")


def test_autocast_and_the_device_meta():
    inputs = tensors()
    with torch.autocast("cpu", torch.bfloat16):
        output = packed(*inputs)[0]
    assert torch.equal(output, packed(*(x.bfloat16() for x in inputs))[0])
    starts = [torch.tensor(x, device="meta") for x in (QUERIES, KEYS)]
    output, lse = packed(*(x.to("meta") for x in inputs), *starts)
    assert (output.device.type, output.shape, lse.shape) == ("meta", (11, 4, 6), (11, 4))


@pytest.mark.parametrize("name", ["plain", pytest.param("all", marks=pytest.mark.slow)])
def test_compiled(name):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(packed, fullgraph=True, dynamic=True, backend=counter)
    for starts in ((QUERIES, KEYS), (KEYS, QUERIES), ([0, 2, 5, 6, 9], [0, 1, 8, 8, 12])):
        shapes = (starts[0][-1], 4, 8), (starts[1][-1], 2, 8), (starts[1][-1], 2, 6)
        leaves = [torch.from_numpy(drawn(x, np.float32)).requires_grad_() for x in shapes]
        given = *leaves, *map(torch.tensor, starts)
        results = [each(*given, **OPTIONS[name]) for each in (compiled, packed)]
        for one, other in zip(*results, strict=True):
            assert torch.equal(one, other)
            assert one.stride() == other.stride()
        gradients = [torch.autograd.grad(x[0].sin().sum(), leaves) for x in results]
        assert all(map(torch.equal, *gradients))
    assert counter.frame_count <= 3


def test_exported():
    class Module(torch.nn.Module):
        def forward(self, *given):
            return packed(*given, is_causal=True)[0]

    def given(rows, keys, *starts):
        return torch.ones(rows, 4, 8), torch.ones(keys, 2, 8), torch.ones(keys, 2, 6), *starts

    first = given(11, 30, torch.tensor(QUERIES), torch.tensor(KEYS))
    rows, keys, number = (torch.export.Dim(name, min=2, max=999) for name in ("r", "k", "n"))
    shapes = ({0: rows}, {0: keys}, {0: keys}, {0: number}, {0: number})
    program = torch.export.export(Module(), first, dynamic_shapes=(shapes,))
    assert "regard.attention.default" in str(program.graph)
    for each in (first, given(7, 9, torch.tensor([0, 3, 7]), torch.tensor([0, 9, 9]))):
        assert torch.equal(program.module()(*each), Module()(*each))


@pytest.mark.parametrize("name", ["plain", "dropout", "all"])
def test_vmap_is_a_call_for_each_sample(name):
    query, key, value = tensors()
    samples = torch.stack([query, query * 2, -query])
    starts = torch.tensor([QUERIES, [0, 1, 2, 3, 11], [0, 11, 11, 11, 11]])

    def function(query, starts):
        return packed(query, key, value, starts, **OPTIONS[name])[0]

    def gradient(query, starts):
        return torch.func.grad(lambda query: function(query, starts).sin().sum())(query)

    for each in (function, gradient):
        wanted = torch.stack([each(*sample) for sample in zip(samples, starts, strict=True)])
        assert torch.equal(torch.vmap(each)(samples, starts), wanted)
        assert torch.equal(torch.vmap(each, (0, None))(samples, starts[0])[0], wanted[0])
    assert torch.vmap(function)(samples[:0], starts[:0]).shape == (0, *query.shape[:2], 6)


def test_other_derivatives_are_refused():
    query, key, value = (x.double().requires_grad_() for x in tensors())

    def function(query):
        return packed(query, key, value)[0]

    (first,) = torch.autograd.grad(function(query).sin().sum(), query, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivative"):
        torch.autograd.grad(first.sum(), query)
    with pytest.raises(NotImplementedError, match="forward mode"):
        torch.func.jvp(function, (query.detach(),), (query.detach(),))
