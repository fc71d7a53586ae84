"""The biases of xFormers as regard's masks and options.

Values and gradients in float64 are compared with the plain formula under a mask from a predicate,
and the bits with the call with that dense mask. The patterns of FlexAttention are in
tests/conformance/test_flex_attention.py.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest

import gradient_reference
import reference
import regard
from reference import assert_same_bits
from regard import masks

EXACT = {"rtol": 1e-10, "atol": 1e-12}
HEADS, KV_HEADS = 4, 2


def both(query, key, value, grad, mask, options):
    """Return the output, the lse and the gradients of query, key and value."""
    output, lse = regard.scaled_dot_product_attention(
        query, key, value, mask, **options, return_lse=True
    )
    gradients = regard.scaled_dot_product_attention_backward(
        grad, query, key, value, output, lse, mask, **options
    )
    return output, lse, gradients.query, gradients.key, gradients.value


def assert_formula(found, query, key, value, grad, seen, bias=0.0, options=None):
    """Compare values and gradients with the plain formula, in which a bool array hides."""
    mask = (seen, np.broadcast_to(np.float64(bias), seen.shape))
    options = options or {}
    exact = reference.attention(query, key, value, mask, **options)
    grads = gradient_reference.backward(grad, query, key, value, mask, **options)
    wanted = exact.output, exact.lse, grads.query, grads.key, grads.value
    names = ("output", "lse", "query", "key", "value")
    for name, one, other in zip(names, found, wanted, strict=True):
        np.testing.assert_allclose(one, other, **EXACT, err_msg=name)


# The biases of xFormers. Its lengths of queries and keys are the lengths of consecutive sequences.
Q_LENS, K_LENS, ROOM = [20, 1, 33, 7], [41, 9, 33, 40], 45
Q_STARTS, K_STARTS = (np.cumsum([0, *lengths]) for lengths in (Q_LENS, K_LENS))
PADDED = ROOM * np.arange(5)
GAPPY = np.array([0, 60, 70, 110, 150])


def whole(i, j, q, k):
    return (i >= 0) & (j >= 0)


def causal(i, j, q, k):
    return i >= j


def bottom_right(i, j, q, k):
    return i + k - q >= j


def near(i, j, q, k):
    return (i + k - q >= j) & (j > i + k - q - 12)


def local(i, j, q, k):
    return (j - (i + k - q) <= 3) & (i + k - q - j <= 8)


class Packed(NamedTuple):
    """An xFormers bias: where keys begin, a rule within a block, and regard's options."""

    starts: Any
    rule: Any
    options: dict[str, Any]


END = {"query_offset": "end"}
LENGTHS = {"key_lengths": K_LENS}
PACKED = {
    "BlockDiagonalMask": Packed(K_STARTS, whole, {}),
    "BlockDiagonalCausalMask": Packed(K_STARTS, causal, {"is_causal": True}),
    "BlockDiagonalCausalFromBottomRightMask": Packed(
        K_STARTS, bottom_right, {"is_causal": True, **END}
    ),
    "BlockDiagonalCausalLocalAttentionMask": Packed(
        K_STARTS, lambda i, j, q, k: (i >= j) & (i - j < 12), {"window": (11, 0)}
    ),
    "BlockDiagonalCausalLocalAttentionFromBottomRightMask": Packed(
        K_STARTS, near, {"window": (11, 0), **END}
    ),
    "BlockDiagonalPaddedKeysMask": Packed(PADDED, whole, LENGTHS),
    "BlockDiagonalCausalWithOffsetPaddedKeysMask": Packed(
        PADDED, bottom_right, {"is_causal": True, **END, **LENGTHS}
    ),
    "BlockDiagonalLocalAttentionPaddedKeysMask": Packed(
        PADDED, local, {"window": (8, 3), **END, **LENGTHS}
    ),
    "BlockDiagonalCausalLocalAttentionPaddedKeysMask": Packed(
        PADDED, near, {"window": (11, 0), **END, **LENGTHS}
    ),
    "BlockDiagonalGappyKeysMask": Packed(GAPPY, whole, LENGTHS),
    "BlockDiagonalCausalWithOffsetGappyKeysMask": Packed(
        GAPPY, bottom_right, {"is_causal": True, **END, **LENGTHS}
    ),
}


def block_diagonal(starts, rule):
    """Return the dense mask of packed sequences."""
    seen = np.zeros((Q_STARTS[-1], starts[-1]), bool)
    for (begin, end), first, keys in zip(pairwise(Q_STARTS), starts, K_LENS, strict=False):
        i, j = np.ogrid[: end - begin, :keys]
        seen[begin:end, first : first + keys] = rule(i, j, end - begin, keys)
    return seen


def packed_arrays(keys, dtype=np.float64):
    random = np.random.default_rng(1)
    shapes = (Q_STARTS[-1], HEADS, 16), (keys, KV_HEADS, 16), (keys, KV_HEADS, 8)
    shapes = (*shapes, (Q_STARTS[-1], HEADS, 8))
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


def ragged(query, key, value, grad, starts, options):
    given = query, key, value
    starts = {"query_starts": Q_STARTS, "key_starts": starts}
    output, lse = regard.scaled_dot_product_attention_ragged(
        *given, **starts, **options, return_lse=True
    )
    gradients = regard.scaled_dot_product_attention_ragged_backward(
        grad, *given, output=output, lse=lse, **starts, **options
    )
    return output, lse, gradients.query, gradients.key, gradients.value


def heads_first(arrays):
    return [np.moveaxis(array, 0, 1) for array in arrays]


@pytest.mark.parametrize("name", PACKED)
def test_packed_formula(name, target):
    case = PACKED[name]
    arrays = packed_arrays(case.starts[-1])
    found = ragged(*arrays, case.starts, case.options)
    assert_formula(
        heads_first(found), *heads_first(arrays), block_diagonal(case.starts, case.rule)[None]
    )


@pytest.mark.parametrize("rule", [whole, bottom_right], ids=["all", "causal"])
def test_keys_in_pages(rule, target):
    """PagedBlockDiagonalPaddedKeysMask and its CausalWithOffset variant: sequences own pages of the
    keys, in any order. Arrays in the mask give the owner and the number of each key."""
    size, tables = 15, [[7, 0, 3], [5], [2, 8, 1], [9, 4, 6]]
    owner, number = np.full((2, 10 * size), -1)
    for sequence, pages in enumerate(tables):
        for at, page in enumerate(pages):
            owner[page * size : (page + 1) * size] = sequence
            number[page * size : (page + 1) * size] = at * size + np.arange(size)
    lengths = np.array(K_LENS)
    owner[(number >= lengths[owner]) | (owner < 0)] = -1
    asking = np.repeat(np.arange(4), Q_LENS)
    local = np.arange(Q_STARTS[-1]) - Q_STARTS[asking]
    own, keys = np.array(Q_LENS)[asking], lengths[asking]

    def rule_of_pages(i, j):
        return (owner[j] == asking[i]) & rule(local[i], number[j], own[i], keys[i])

    mask = masks.from_function(rule_of_pages, Q_STARTS[-1], 10 * size, block=(16, size))
    logical = block_diagonal(K_STARTS, rule)
    seen = np.zeros((Q_STARTS[-1], 10 * size), bool)
    for sequence in range(4):
        at = np.nonzero(owner == sequence)[0]
        seen[:, at] = logical[:, K_STARTS[sequence] + number[at]]
    for dtype in (np.float64, np.float32):
        arrays = heads_first(packed_arrays(10 * size, dtype))
        found = both(*arrays, mask, {})
        if dtype == np.float64:
            assert_formula(found, *arrays, seen[None])
        assert_same_bits(found, both(*arrays, seen, {}))
