"""Test attention to the pages of other engines."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import error_limits
import reference
import regard
from cache_tokens import normal

LENGTHS = np.array([37, 1, 100, 64])
KV_HEADS, HEADS, DIM, VALUE_DIM = 2, 6, 64, 80
FLOAT8 = ["float8_e4m3fn", "float8_e5m2"]
TYPES = ["float16", "bfloat16", "float32", "float64", "int8", *FLOAT8]
# Sizes that fill the steps of the decode kernel, and others.
SIZES = [1, 2, 5, 16, 24, 32, 100]


class Pool:
    """Texts in pages that are in any order among the pages of others."""

    def __init__(self, size, layout, dtype, *, scales="row", seed=0):
        is_scaled = scales is not None and dtype in ("int8", *FLOAT8)
        columns = -(-int(LENGTHS.max()) // size)
        count = len(LENGTHS) * columns + 3
        rng = np.random.default_rng(seed)
        self.table = rng.permutation(count)[: len(LENGTHS) * columns].reshape(-1, columns)
        self.layout, self.dtype, self.size = layout, np.dtype(dtype), size
        self.pages, self.scales = [], {}
        self.rows = []  # (batch, kv_heads, columns * size, dim), as float64
        for name, dim in (("key_scales", DIM), ("value_scales", VALUE_DIM)):
            pages = rng.standard_normal((count, size, KV_HEADS, dim))
            if dtype == "int8":
                pages = np.rint(40 * pages).clip(-128, 127)
            if is_scaled:
                shape = {"row": pages.shape[:3], "head": (KV_HEADS,), "tensor": ()}[scales]
                factors = rng.uniform(0.01, 0.03, shape).astype(np.float32)
                held = np.broadcast_to(factors[..., None] if factors.ndim else factors, pages.shape)
                self.scales[name] = factors
                if layout == "HND" and scales == "row":
                    self.scales[name] = factors.swapaxes(1, 2).copy()
            pages = pages.astype(dtype)
            wide = pages.astype(np.float64) * (held if is_scaled else 1)
            texts = wide[self.table].reshape(len(LENGTHS), columns * size, KV_HEADS, dim)
            self.rows.append(texts.swapaxes(1, 2))
            self.pages.append(pages if layout == "NHD" else pages.swapaxes(1, 2).copy())

    def attend(self, query, *arguments, **options):
        options = {"layout": self.layout, **self.scales, **options}
        return regard.paged_attention(
            query, *self.pages, self.table, LENGTHS, *arguments, **options
        )

    def text(self, entry, dtype=np.float64):
        """Return the key and value of a text."""
        return [rows[entry, :, : LENGTHS[entry]].astype(dtype) for rows in self.rows]


def query_of(dtype, q_len, seed=1):
    kind = np.float64 if dtype == "float64" else np.float32
    return normal(seed, len(LENGTHS), HEADS, q_len, DIM, dtype=kind)


@pytest.mark.parametrize(
    ("size", "layout", "dtype"),
    [
        (size, ("NHD", "HND")[(i + j) % 2], dtype)
        for i, size in enumerate(SIZES)
        for j, dtype in enumerate(TYPES)
    ],
)
def test_the_answer_is_the_oracles(size, layout, dtype, target):
    """There are one query per text, several, and more than the keys before them."""
    pool = Pool(size, layout, dtype)
    for q_len in (1, 9, 40):
        query = query_of(dtype, q_len)
        offset = np.maximum(LENGTHS - q_len, 0)
        changes = {"softcap": 2.0, "sinks": np.linspace(-1, 1, HEADS)} if q_len == 9 else {}
        output, lse = pool.attend(query, query_offset=offset, return_lse=True, **changes)
        assert output.dtype == query.dtype
        for entry, first in enumerate(offset.tolist()):
            key, value = pool.text(entry, dtype if dtype in TYPES[:4] else query.dtype)
            options = {"is_causal": True, "query_offset": first, **changes}
            want = error_limits.expected(query[entry], key, value, None, **options)
            error_limits.assert_matches(want, output=output[entry], lse=lse[entry])


@pytest.mark.parametrize("dtype", [*TYPES[:4], *FLOAT8])
@pytest.mark.parametrize(("size", "threads"), [(1, 1), (7, 3), (16, 2), (48, 1)])
def test_the_bits_are_those_of_dense_calls(size, threads, dtype, target):
    pool = Pool(size, "NHD", dtype, scales=None)
    for q_len in (1, 3, 30):
        query = query_of(dtype, q_len)
        counts = np.minimum(LENGTHS, [q_len, 1, 0, q_len])
        starts = np.concatenate([[0], counts.cumsum()])
        packed = np.concatenate([query[b, :, :n].swapaxes(0, 1) for b, n in enumerate(counts)])
        window = {"window": (20, 0)} if q_len == 3 else {}
        output = pool.attend(packed, starts, threads=threads, **window)
        assert output.shape == (len(packed), HEADS, VALUE_DIM)
        for entry, (start, end) in enumerate(itertools.pairwise(starts)):
            key, value = pool.text(entry, "float32" if dtype in FLOAT8 else dtype)
            alone = regard.scaled_dot_product_attention(
                query[entry, :, : end - start],
                key,
                value,
                is_causal=True,
                query_offset=int(LENGTHS[entry] - (end - start)),
                **window,
            )
            assert np.array_equal(output[start:end].swapaxes(0, 1), alone)


@pytest.mark.parametrize("scales", ["row", "head", "tensor"])
@pytest.mark.parametrize("dtype", TYPES[4:])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_scales(layout, dtype, scales):
    pool = Pool(16, layout, dtype, scales=scales)
    whole = Pool(16, layout, dtype, scales=scales)
    rows = whole.pages[0].shape[:3]
    for name, factors in pool.scales.items():
        if scales == "head" and layout == "HND":
            factors = factors[:, None]
        whole.scales[name] = np.broadcast_to(factors, rows).copy()
    for q_len in (1, 20):
        query = query_of("float32", q_len)
        assert np.array_equal(
            pool.attend(query, query_offset=0), whole.attend(query, query_offset=0)
        )
    pool.scales = dict.fromkeys(pool.scales, np.ones(KV_HEADS, np.float32))
    expected = pool.attend(query, query_offset=0)
    unaligned = np.frombuffer(bytes(1) + np.ones(2, "f4").tobytes(), "f4", 2, 1)
    for scale in (1, unaligned, np.ones((), ml_dtypes.bfloat16)):
        pool.scales = dict.fromkeys(pool.scales, scale)
        assert np.array_equal(pool.attend(query, query_offset=0), expected)


@pytest.mark.parametrize("where", [(0, 0), (1, 0), (1, VALUE_DIM - 1), (0, 40)])
@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("size", [16, 5])
def test_nan_shows_where_it_is_seen(size, dtype, where, target):
    """Position 50 of the third text has NaN in head 1 of its keys or values."""
    pool, (part, column) = Pool(size, "NHD", dtype), where
    stored = pool.pages[part].view(np.uint8)
    at = (pool.table[2, 50 // size], 50 % size, 1, column)
    for q_len in (1, 40):
        query = query_of("float32", q_len)
        mask = np.random.default_rng(q_len).random((len(LENGTHS), HEADS, q_len, 100)) < 0.8
        mask[2, 4, :, 50], mask[2, 5, :, 50] = True, False
        sees = np.zeros(query.shape[:3], bool)
        sees[2, 3:] = mask[2, 3:, :, 50]
        before, expected = stored[at], pool.attend(query, None, mask, is_causal=False)
        for byte in (0x7F, 0xFF):
            stored[at] = byte
            output = pool.attend(query, None, mask, is_causal=False)
            stored[at] = before
            assert np.array_equal(output[~sees], expected[~sees])
            assert np.isnan(output[sees][:, column]).all()


def test_pages_of_strides_of_their_own():
    """FlashInfer keeps keys and values next to each other, vLLM in halves of one array."""
    pool = Pool(8, "NHD", "float32")
    query = query_of("float32", 1)
    expected = pool.attend(query)
    count = len(pool.pages[0])
    both = np.zeros((count, 2, 8, KV_HEADS, VALUE_DIM), np.float32)
    both[:, 0, ..., :DIM], both[:, 1] = pool.pages
    for key, value in (
        (both[:, 0, ..., :DIM], both[:, 1]),
        (pool.pages[0][::-1][::-1], pool.pages[1]),
    ):
        before = both.copy()
        output = regard.paged_attention(query, key, value, pool.table.astype(np.int32), LENGTHS)
        assert np.array_equal(output, expected)
        assert np.array_equal(both, before)


@pytest.mark.parametrize("dtype", ["float32", *FLOAT8])
def test_options_and_results(dtype):
    pool = Pool(4, "NHD", dtype, scales=None)
    query = query_of("float32", 2)
    mask = np.random.default_rng(0).random((len(LENGTHS), 1, 2, 100)) < 0.7
    options = {"is_causal": False, "softcap": 5.0, "scale": 0.2}
    output, weights, lse = pool.attend(
        query, None, mask, return_weights=True, return_lse=True, query_offset=0, **options
    )
    for entry, length in enumerate(LENGTHS):
        key, value = pool.text(entry, np.float32)
        alone = regard.scaled_dot_product_attention(
            query[entry],
            key,
            value,
            mask[entry, ..., :length],
            return_weights=True,
            return_lse=True,
            **options,
        )
        for actual, part in zip((output, weights[..., :length], lse), alone, strict=True):
            assert np.array_equal(actual[entry], part)
        assert not weights[entry, ..., length:].any()
    out = np.empty_like(output)
    assert pool.attend(query, None, mask, query_offset=0, out=out, **options) is out
    assert np.array_equal(out, output)


def test_tables_are_read_as_far_as_the_lengths_go():
    pool = Pool(16, "NHD", "float32")
    query = query_of("float32", 1)
    expected = pool.attend(query)
    columns = np.arange(pool.table.shape[1])
    for filler in (-1, 10**9):
        pool.table = np.where(columns < -(-LENGTHS // 16)[:, None], pool.table, filler)
        assert np.array_equal(pool.attend(query), expected)
    for wrong in (-1, len(pool.pages[0])):
        pool.table[2, 1] = wrong
        with pytest.raises(IndexError, match="entry 2, column 1"):
            pool.attend(query)
    empty = regard.paged_attention(query[:0], *pool.pages, np.zeros((0, 3), int), [])
    assert empty.shape == (0, HEADS, 1, VALUE_DIM)
    none = [np.zeros((0, *page.shape[1:]), page.dtype) for page in pool.pages]  # strides of 0
    for table in (np.zeros((2, 0), int), np.zeros((2, 3), int)):
        assert not regard.paged_attention(query[:2], *none, table, [0, 0]).any()
    none = regard.paged_attention(np.zeros((0, HEADS, DIM)), *pool.pages, [[0]], [0], starts=[0, 0])
    assert none.shape == (0, HEADS, VALUE_DIM)


@pytest.mark.parametrize("q_len", [0, 1, 3])
def test_texts_without_tokens_see_nothing(q_len):
    """Engines pad a batch with texts of length 0, each with the queries of the others."""
    pool = Pool(16, "NHD", "float32")
    query = query_of("float32", q_len)
    lengths = np.where(np.arange(len(LENGTHS)) == 1, 0, LENGTHS)
    output, lse = regard.paged_attention(query, *pool.pages, pool.table, lengths, return_lse=True)
    assert not output[1].any()
    assert (lse[1] == -np.inf).all()
    others = np.array([0, 2, 3])
    wanted = regard.paged_attention(
        query[others], *pool.pages, pool.table[others], lengths[others], return_lse=True
    )
    reference.assert_same_bits((output[others], lse[others]), wanted)
    packed = query.swapaxes(1, 2).reshape(-1, HEADS, DIM)
    starts = np.arange(len(LENGTHS) + 1) * q_len
    ragged = regard.paged_attention(packed, *pool.pages, pool.table, lengths, starts=starts)
    reference.assert_same_bits(
        ragged.reshape(len(LENGTHS), q_len, HEADS, VALUE_DIM).swapaxes(1, 2), output
    )
