"""Sparse masks give, to the last bit, the results of the same bool tensor."""

import numpy as np
import pytest

import regard
from problem import drawn
from sparse_cases import NAMES, dense, sparse_masks
from torch_problems import scaled_dot_product_attention, torch

from torch._dynamo.testing import CompileCounterWithBackend  # isort: skip
from regard.torch import _arguments, _options  # isort: skip


BATCH, HEADS, Q_LEN, KV_LEN = 2, 3, 21, 47
MASKS = sparse_masks(BATCH, HEADS, Q_LEN, KV_LEN)
each_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=NAMES)


def tensors(dtype=np.float32):
    lengths = (Q_LEN, 8), (KV_LEN, 8), (KV_LEN, 6)
    return [torch.from_numpy(drawn((BATCH, HEADS, *n), dtype, i)) for i, n in enumerate(lengths)]


def arguments(mask, is_pair):
    """Return the sparse mask and the same tensor, each by itself or in a pair with a bias."""
    other = torch.from_numpy(dense(mask, KV_LEN))
    if not is_pair:
        return mask, other
    bias = torch.from_numpy(drawn((HEADS, 1, KV_LEN), np.float32, 9))
    return (mask, bias), (other, bias)


def assert_equal(results, others):
    for one, other in zip(results, others, strict=True):
        assert torch.equal(one, other)


def with_gradients(function, attn_mask):
    leaves = [x.requires_grad_() for x in tensors()]
    if isinstance(attn_mask, tuple):
        bias = attn_mask[1].clone().requires_grad_()
        attn_mask, leaves = (attn_mask[0], bias), [*leaves, bias]
    output, lse = function(*leaves[:3], attn_mask, return_lse=True)
    loss = (output**2).sum() + torch.where(lse == -torch.inf, 0, lse).sin().sum()
    return output, lse, *torch.autograd.grad(loss, leaves)


@pytest.mark.parametrize("mask", [MASKS["ranges of entries"], MASKS["blocks"], MASKS["nothing"]])
def test_second_derivatives_and_tangents(mask):
    query, *others = tensors(np.float64)

    def derivatives(attn_mask):
        def loss(query):
            return (scaled_dot_product_attention(query, *others, attn_mask) ** 2).sum()

        gradient, leaf = torch.func.grad(loss), query.clone().requires_grad_()
        (eager,) = torch.autograd.grad(loss(leaf), leaf, create_graph=True)
        pulled = torch.func.vjp(gradient, query)[1](query)
        moved = torch.func.jvp(gradient, (query,), (query,))[1]
        return *pulled, moved, *torch.autograd.grad(eager, leaf, query)

    assert_equal(derivatives(mask), derivatives(torch.from_numpy(dense(mask, KV_LEN))))


@pytest.mark.parametrize("is_pair", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_compiled_calls(is_pair):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    function = scaled_dot_product_attention
    compiled = torch.compile(function, fullgraph=True, backend=counter)
    for count, name in enumerate(("ranges", "blocks", "one query"), 1):
        sparse, other = arguments(MASKS[name], is_pair)
        assert_equal(with_gradients(compiled, sparse), with_gradients(function, other))
        assert counter.frame_count <= count + 1
    assert_equal([compiled(*tensors(), sparse)], [function(*tensors(), other)])


def test_masks_of_one_kind_share_a_graph():
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(scaled_dot_product_attention, fullgraph=True, backend=counter)
    for width in range(1, 9):
        first = np.arange(Q_LEN)
        mask = regard.masks.Ranges(first, first + width, kv_len=KV_LEN)
        for part in (mask, mask & regard.masks.Ranges(first[::-1], KV_LEN, kv_len=KV_LEN)):
            other = torch.from_numpy(dense(part, KV_LEN))
            expected = scaled_dot_product_attention(*tensors(), other)
            assert torch.equal(compiled(*tensors(), part), expected)
    assert counter.frame_count <= 2


@each_mask
def test_vmap(mask):
    query, key, value = tensors()
    samples = torch.stack([query, query * 2, -query])

    def function(attn_mask):
        return lambda query: scaled_dot_product_attention(query, key, value, attn_mask).sin()

    gradients = torch.func.grad(lambda query: function(mask)(query).sum())
    other = torch.from_numpy(dense(mask, KV_LEN))
    for ours, alone in (
        (function(mask), function(other)),
        (gradients, torch.func.grad(lambda query: function(other)(query).sum())),
    ):
        assert torch.equal(torch.vmap(ours)(samples), torch.stack(list(map(alone, samples))))


@pytest.mark.filterwarnings("error")
@each_mask
def test_the_mask_is_not_copied(mask):
    fields, rows = _options.unpacked(*_options.packed({"mask": mask})), mask._rows
    for name, array in zip(("mask_starts", "mask_spans", "mask_bits"), rows[:3], strict=True):
        assert fields[name].data_ptr() == (array.ctypes.data if array.size else 0)
        assert np.array_equal(fields[name].numpy(), array)


def test_a_cuda_device_has_no_sparse_masks():
    with pytest.raises(TypeError, match="GPU kernels do not read sparse masks"):
        _arguments.masks(MASKS["blocks"], torch.device("cuda"))
