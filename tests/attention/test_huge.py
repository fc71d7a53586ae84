"""Sizes beyond 32 bits. Views with strides of zero are as long as one likes, and what no query sees
is never read; tests/process/test_memory.py tests results that fit nowhere."""

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import regard
from data_kinds import normal
from error_limits import assert_matches, expected
from reference import assert_same_bits, error

sdpa = regard.scaled_dot_product_attention
BEYOND = 2**31 + 5
GIB = 2**30


def spread(value, length, axis=-2):
    """Return a view that repeats `value` `length` times along an axis, with a stride of zero."""
    shape = list(value.shape)
    shape[axis] = length
    return np.broadcast_to(value, shape)


def arrays(dtype=np.float32):
    """Return 70 queries, and a key and a value to repeat."""
    return (x.astype(dtype) for x in (normal(2, 70, 3), normal(2, 1, 3), normal(2, 1, 4, seed=1)))


@pytest.mark.parametrize(
    ("length", "options", "seen"),
    [
        (2**40, {"is_causal": True}, 70),
        (2**40, {"key_lengths": 500}, 500),
        (2**40, {"is_causal": True, "query_offset": -(2**50)}, 0),
    ],
    ids=str,
)
def test_keys_that_no_query_sees_cost_nothing(length, options, seen, storage, target):
    query, key, value = arrays(storage)
    long, short = (
        sdpa(query, spread(key, n), spread(value, n), **given, return_lse=True)
        for n, given in ((length, options), (seen, {**options, "key_lengths": seen}))
    )
    assert_same_bits(long, short)


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_more_mask_elements_than_32_bits_count(kind, target):
    """Each row of the mask repeats one element 2^40 times, with a stride of zero."""
    query, key, value = arrays()
    mask = np.random.default_rng(0).random((70, 1)) < 0.5
    if kind == "float":
        mask = np.where(mask, 0, -np.inf).astype(np.float32)
    for options in ({"is_causal": True, "query_offset": 20}, {"window": (9, 9)}):
        options = {"query_offset": 960, **options}
        long, short = (
            sdpa(query, spread(key, n), spread(value, n), spread(mask, n, -1), **options)
            for n in (2**40, 2000)
        )
        assert_same_bits(long, short)


@pytest.mark.parametrize("offset", [0, 2**31 - 30, 2**39 + 1, 2**40 - 20, 2**40 + 90])
def test_a_window_costs_the_window(offset, dtype, target):
    """Of 2^40 keys, only the keys that some row sees are read, wherever the window is. Slopes
    multiply the distance, not the position. Keys are identified by their index in the array, and
    of equal weights the first keys are returned."""
    query, key, value = arrays(dtype)
    first = max(offset - 100, 0)
    count = max(min(offset + 70 + 3, 2**40) - first, 0)
    options = {
        "window": (100, 3),
        "alibi_slopes": np.array([0.5, 0.125], dtype),
        "softcap": 3.0,
    }
    want = expected(
        *(query, spread(key, count), spread(value, count)), **options, query_offset=offset - first
    )
    options["query_offset"] = offset
    keys, values = spread(key, 2**40), spread(value, 2**40)
    for extra in ({}, {"key_lengths": 2**40}, {"is_causal": False}):
        output, lse = sdpa(query, keys, values, **options, **extra, return_lse=True)
        assert_matches(want, output=output, lse=lse)
    if 0 < offset < 2**40:
        place = {"window": (100, 3), "query_offset": offset}
        found = regard.summarize_attention(query, keys, **place, statistics=["top_k"], top_k=3)
        wanted = first + np.arange(70)[:, None] + np.arange(3)
        assert np.array_equal(found.top_k.keys, np.broadcast_to(wanted, (2, 70, 3)))


def test_sequences_without_end(target):
    """Packed keys extend beyond 32 bits: starts are 64-bit, and hidden keys are not read."""
    query, key, value = normal(6, 2, 3), normal(1, 1, 3), normal(1, 1, 4)
    starts = np.array([0, 2**35, 2**35 + 7, 2**40])
    keys, values = spread(key, 2**40, 0), spread(value, 2**40, 0)
    options = {"query_starts": [0, 2, 4, 6], "key_starts": starts, "key_lengths": [5, 7, 0]}
    output = regard.scaled_dot_product_attention_ragged(query, keys, values, **options)
    assert output.shape == (6, 2, 4)
    assert not output[4:].any()
    wanted = np.broadcast_to(value, (4, 2, 4))
    assert error(output[:4], wanted) <= 8 * np.finfo(np.float32).eps * 4


@pytest.mark.parametrize("batch", [BEYOND, 2**45])
def test_nothing_to_do_in_a_huge_batch(batch, target):
    """An empty result is returned at once, however long its other axes are."""

    def empty(*shape):
        return np.broadcast_to(np.zeros((1, *shape), np.float32), (batch, *shape))

    output, lse = sdpa(empty(2, 0, 4), empty(1, 7, 4)[:1], empty(1, 7, 3)[:1], return_lse=True)
    assert (output.shape, lse.shape) == ((batch, 2, 0, 3), (batch, 2, 0))
    assert regard.matmul(empty(0, 4), np.ones((4, 3), np.float32)).shape == (batch, 0, 3)
    assert regard.matmul(empty(0), np.ones((0, 0), np.float32)).shape == (batch, 0)
    assert regard.softmax(empty(0)).shape == regard.softmax(empty(0), axis=0).shape == (batch, 0)
    assert regard.scale(empty(0, 3), 2.0).shape == (batch, 0, 3)
    assert regard.apply_mask(empty(0, 3), np.ones(3, bool)).shape == (batch, 0, 3)


@pytest.fixture
def sparse(tmp_path):
    """Yield the memory map of a 20 GiB file that stores almost nothing."""
    try:
        memory = np.memmap(tmp_path / "sparse", np.uint8, "w+", shape=(20 * GIB,))
    except OSError as problem:
        pytest.skip(f"no sparse files here: {problem}")
    yield memory
    del memory
    (tmp_path / "sparse").unlink()


def scatter(memory, array, axis, start):
    """Copy an array to memory, with 3 GiB between its entries along one axis."""
    strides = list(np.zeros(array.shape, array.dtype).strides)
    strides[axis] = 3 * GIB
    base = memory[start : start + 4].view(array.dtype)
    moved = as_strided(base, array.shape, strides)
    moved[...] = array
    return moved


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_strides_beyond_32_bits(axis, sparse, target):
    """Every argument and `out` have real offsets of up to 15 GiB."""
    shape = [2, 3, 4, 5]
    shape[axis] = 6
    query, key, value = (normal(*shape, seed=seed) for seed in range(3))
    mask = normal(*shape[:3], shape[2], seed=3)
    wanted = sdpa(query, key, value, mask)
    inputs = [scatter(sparse, x, axis, 4096 * i) for i, x in enumerate((query, key, value, mask))]
    out = scatter(sparse, np.zeros_like(wanted), axis, 4096 * 9)
    assert_same_bits(sdpa(*inputs, out=out), wanted)
    backwards = [np.flip(x, axis) for x in inputs]
    assert_same_bits(sdpa(*backwards), sdpa(*(np.flip(x, axis) for x in (query, key, value, mask))))
    turned = key.swapaxes(-1, -2)
    assert_same_bits(
        regard.matmul(inputs[0], inputs[1].swapaxes(-1, -2)), regard.matmul(query, turned)
    )
    for along in range(4):
        assert_same_bits(regard.softmax(inputs[0], along), regard.softmax(query, along))
    assert_same_bits(regard.scale(inputs[0], 2.0), query * 2)
    assert_same_bits(regard.apply_mask(inputs[0], inputs[1]), query + key)


def test_more_rows_than_64_bits_can_count():
    """The product of the batch axes and the heads wraps around."""
    some = np.broadcast_to(np.zeros(1, np.float32), (2**31, 1, 4, 1, 8))
    others = np.broadcast_to(np.zeros(1, np.float32), (1, 2**31, 4, 1, 8))
    for call in (regard.explain, sdpa):
        with pytest.raises(ValueError, match="batch axes"):
            call(some, others, others)
