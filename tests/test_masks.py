"""Masks as arrays, and as attention reads them."""

import numpy as np
import pytest

import regard
from reference import assert_same_bits
from regard import masks

FAR = 2**63 - 1


def by_definition(q_len, kv_len, offset):
    rows = [[j <= i + int(offset) for j in range(kv_len)] for i in range(q_len)]
    return np.array(rows, bool).reshape(q_len, kv_len)


@pytest.mark.parametrize(
    "offset",
    [0, 1, 4, -1, -3, 100, -100, FAR, -FAR - 1, 2**64 - 1, 10**30, -(10**30), np.int8(2)],
)
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 1), (3, 3), (2, 5), (5, 2), (0, 3), (3, 0)])
def test_causal(q_len, kv_len, offset):
    actual = masks.causal(q_len, kv_len, query_offset=offset)
    assert_same_bits(actual, by_definition(q_len, kv_len, offset))


def test_causal_is_square_by_default():
    assert_same_bits(masks.causal(5), np.tri(5, dtype=bool))
    assert_same_bits(masks.causal(np.uint8(5)), np.tri(5, dtype=bool))


@pytest.mark.parametrize(
    "offsets",
    [
        [0, 3],
        [[0, 3, -2], [7, 1, 100]],
        np.array([5, 127], np.int8),
        np.array([0, 2**64 - 1], np.uint64),
        np.array([FAR, -FAR - 1]),
        np.zeros((2, 0), int),
    ],
)
def test_causal_with_an_offset_per_batch_entry(offsets):
    actual = masks.causal(3, 300, query_offset=offsets)
    offsets = np.asarray(offsets)
    assert actual.shape == (*offsets.shape, 1, 3, 300)
    assert actual.dtype == np.bool_
    for index in np.ndindex(offsets.shape):
        assert_same_bits(actual[index][0], by_definition(3, 300, offsets[index]))


def test_causal_with_a_0d_offset_is_2d():
    assert_same_bits(masks.causal(3, 5, query_offset=np.array(2)), by_definition(3, 5, 2))


@pytest.mark.parametrize("offset", [0, 2, -1, [3, 1]])
def test_causal_mask_is_is_causal(offset, dtype, target):
    random = np.random.default_rng(0)
    query, key, value = (random.standard_normal((2, 2, n, 4)).astype(dtype) for n in (3, 5, 5))
    mask = masks.causal(3, 5, query_offset=offset)
    wanted = regard.scaled_dot_product_attention(
        query, key, value, is_causal=True, query_offset=offset, return_weights=True
    )
    for form in (mask, masks.as_additive(mask), masks.as_additive(mask, np.float64)):
        actual = regard.scaled_dot_product_attention(query, key, value, form, return_weights=True)
        for a, w in zip(actual, wanted, strict=True):
            np.testing.assert_allclose(a, w, rtol=0, atol=4 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, "float64"])
@pytest.mark.parametrize("shape", [(), (0,), (4,), (2, 1, 3, 5)])
def test_as_additive(shape, dtype):
    mask = np.random.default_rng(1).random(shape) < 0.5
    before = mask.copy()
    actual = masks.as_additive(mask, dtype)
    assert_same_bits(actual, np.where(mask, 0, -np.inf).astype(dtype))
    assert_same_bits(mask, before)


def test_as_additive_of_lists_is_float32():
    wanted = np.array([0, -np.inf], np.float32)
    assert_same_bits(masks.as_additive([True, False]), wanted)


def test_as_additive_is_the_notebooks_triangle():
    with np.errstate(divide="ignore"):
        assert_same_bits(masks.as_additive(masks.causal(4), np.float64), np.log(np.tri(4)))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: masks.causal(2.0), TypeError, "q_len must be an int, got float"),
        (lambda: masks.causal(True), TypeError, "q_len must be an int, got bool"),
        (lambda: masks.causal(-1), ValueError, "q_len must be at least 0, got -1"),
        (lambda: masks.causal(2, "3"), TypeError, "kv_len must be an int, got str"),
        (lambda: masks.causal(2, [3]), TypeError, "kv_len must be an int, got list"),
        (lambda: masks.causal(2, -3), ValueError, "kv_len must be at least 0, got -3"),
        (
            lambda: masks.causal(2, query_offset=1.0),
            TypeError,
            "query_offset must be an int or an integer array, got float64",
        ),
        (
            lambda: masks.causal(2, query_offset=True),
            TypeError,
            "query_offset must be an int or an integer array, got bool",
        ),
        (
            lambda: masks.as_additive(np.tri(3)),
            TypeError,
            "mask must be bool (True = may attend), got float64",
        ),
        (
            lambda: masks.as_additive([1, 0]),
            TypeError,
            "mask must be bool (True = may attend), got int64",
        ),
        (
            lambda: masks.as_additive([True], np.int32),
            TypeError,
            "dtype must be floating-point, got int32",
        ),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error) as raised:
        call()
    assert str(raised.value) == message
