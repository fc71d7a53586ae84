"""Packed tokens may have any number for each entry in a step, and have the bits of each text by
itself."""

import itertools

import numpy as np
import pytest

import regard
from cache_model import Model, assert_answers, normal, packed_tokens, tokens
from element_types import type_named
from file_caches import loaded
from messages import says
from reference import assert_same_bits

# Mixtures of prompts, chunks of prompts, single tokens and nothing; and equal numbers.
STEPS = ([70, 0, 3, 200], [1, 40, 1, 1], [1, 1, 1, 1], [0, 1, 96, 0], [5, 5, 5, 5], [9, 8, 1, 0])

CACHES = {
    "growing": {},
    "capacity": {"capacity": 900},
    "pages": {"page_size": 16},
    "window": {"keep_last": 20, "keep_first": 3, "page_size": 16},
    "short window": {"keep_last": 5},
    "file": {"path": True, "page_size": 16},
}
OPTIONS = {
    "plain": {},
    "lse": {"return_lse": True},
    "square": {"is_causal": False},
    "narrow": {"window": (7, 0)},
    "wide": {"window": (60, 2), "is_causal": False},
    "scores": {"softcap": 3.0, "alibi_slopes": [0.5, 0.1, 0.0, 1.0], "sinks": [0.0, 1.0, -1, 0.3]},
    "per head": {
        "scale": [0.1, 0.2, 0.3, 0.4],
        "distance_bias": np.linspace(-1, 1, 28).reshape(4, 7),
    },
    "precision": {"precision": "bfloat16"},
    "weights": {"return_weights": True, "return_lse": True},
}
DTYPES = ("float32", "float16", "bfloat16", "float64", "int8")
CASES = [
    (kind, option, DTYPES[number % 5], (1, 2, 4)[number % 3], (1, 2, 7)[number % 3])
    for number, (kind, option) in enumerate(itertools.product(CACHES, OPTIONS))
]


def made(kind, path, batch, kv_heads, dtype):
    options = dict(CACHES[kind])
    in_file = options.pop("path", False)
    cache = regard.KVCache(batch, kv_heads, 8, 5, dtype=dtype, **options)
    return loaded(cache, path) if in_file else cache


@pytest.mark.parametrize(("kind", "option", "dtype", "kv_heads", "threads"), CASES)
def test_each_text_has_the_bits_that_it_has_alone(
    kind, option, dtype, kv_heads, threads, tmp_path, target, layer
):
    options = dict(OPTIONS[option])
    if dtype == "float64":
        options.pop("precision", None)
    stored = "int8" if dtype == "int8" else type_named(dtype)
    given = np.dtype("float32") if dtype == "int8" else np.dtype(stored)
    together = made(kind, tmp_path / "together", 4, kv_heads, stored)
    alone = [made(kind, tmp_path / str(b), 1, kv_heads, stored) for b in range(4)]
    for number, counts in enumerate(STEPS):
        key, value, starts = packed_tokens(number, counts, kv_heads=kv_heads, dtype=given)
        query = normal(90 + number, starts[-1], 4, 8, dtype=given)
        together.append_ragged(key, value, starts)
        results = together.attend_ragged(query, starts, threads=threads, **options)
        results = results if isinstance(results, tuple) else (results,)
        assert together.lengths.tolist() == [
            len(one) + n for one, n in zip(alone, counts, strict=True)
        ]
        for b, (start, end) in enumerate(itertools.pairwise(starts)):
            if start == end:
                continue
            alone[b].append(*(x[start:end].swapaxes(0, 1) for x in (key, value)))
            wanted = alone[b].attend(query[start:end].swapaxes(0, 1), **options)
            wanted = wanted if isinstance(wanted, tuple) else (wanted,)
            for result, want in zip(results, wanted, strict=True):
                own = result[start:end].swapaxes(0, 1)
                if own.ndim == 3 and want.shape[-1] == len(alone[b]) and "weights" in option:
                    own = own[..., : len(alone[b])]
                assert_same_bits(np.ascontiguousarray(own), np.ascontiguousarray(want))


@pytest.mark.parametrize("kind", CACHES)
def test_the_oracle(kind, tmp_path, target):
    window = {name: CACHES[kind].get(name) for name in ("keep_last", "keep_first")}
    cache = made(kind, tmp_path / "cache", 3, 2, np.float32)
    model = Model(3, 2, 8, 5, np.dtype("float32"), window["keep_last"], window["keep_first"] or 0)
    for number, counts in enumerate(([30, 1, 0], [1, 25, 60], [1, 1, 1], [0, 0, 2])):
        for each in (cache, model):
            each.append_ragged(*packed_tokens(number, counts))
        if number:
            assert_answers(cache, model, normal(1, 3, 4, 1, 8, dtype=np.float32))


MASKS = {
    "bool": lambda random, n, keys: random.random((n, 4, keys)) < 0.7,
    "bool of keys": lambda random, n, keys: random.random(keys) < 0.7,
    "bias": lambda random, n, keys: random.standard_normal((n, 1, keys)).astype("f4"),
    "sparse": lambda random, n, keys: regard.masks.Blocks.from_dense(
        random.random((n, keys)) < 0.7, block=(16, 16)
    ),
    "pair": lambda random, n, keys: (
        random.random((n, 1, keys)) < 0.7,
        random.standard_normal((1, 4, keys)).astype("f4"),
    ),
}


def part_of(mask, rows, kv_len):
    """Return the rows of a mask (tokens, heads, keys) that belong to one entry, (heads, rows,
    keys)."""
    if isinstance(mask, tuple):
        return tuple(part_of(part, rows, kv_len) for part in mask)
    if isinstance(mask, regard.masks.SparseMask):
        mask = mask.to_dense()[:, None]
    whole = mask if mask.ndim == 3 else mask[None, None]
    own = whole[rows] if whole.shape[0] > 1 else whole
    return own.swapaxes(0, 1)[..., :kv_len]


@pytest.mark.parametrize("keep_last", [None, 20])
@pytest.mark.parametrize("name", MASKS)
def test_masks(name, keep_last, target):
    together = regard.KVCache(3, 2, 8, keep_last=keep_last, keep_first=3 if keep_last else 0)
    alone = [together.fork() for _ in range(3)]
    key, value, starts = packed_tokens(0, [40, 1, 7], value_dim=8)
    together.append_ragged(key, value, starts)
    query = normal(2, starts[-1], 4, 8, dtype=np.float32)
    mask = MASKS[name](np.random.default_rng(1), starts[-1], len(together))
    options = {} if keep_last is None else {"window": (9, None)}
    output = together.attend_ragged(query, starts, mask, **options)
    for b, (start, end) in enumerate(itertools.pairwise(starts)):
        alone[b].reorder([b])
        alone[b].append(*(x[start:end].swapaxes(0, 1) for x in (key, value)))
        own = part_of(mask, slice(start, end), end - start)
        want = alone[b].attend(query[start:end].swapaxes(0, 1), own, **options)
        assert_same_bits(np.ascontiguousarray(output[start:end].swapaxes(0, 1)), want)


def test_queries_of_earlier_tokens(target):
    """The positions of the first queries may be given. Without them, the queries belong to the last
    tokens."""
    cache = regard.KVCache(2, 1, 8, 5)
    cache.append(*tokens(0, 2, 50, kv_heads=1))
    query = normal(1, 7, 2, 8, dtype=np.float32)
    late = cache.attend_ragged(query, [0, 3, 7])
    given = cache.attend_ragged(query, [0, 3, 7], query_offset=[47, 46])
    assert_same_bits(late, given)
    early = cache.attend_ragged(query, [0, 3, 7], query_offset=[5, 0])
    want = cache.attend(query[:3].swapaxes(0, 1)[None].repeat(2, 0), query_offset=[5, 9])
    assert_same_bits(np.ascontiguousarray(early[:3].swapaxes(0, 1)), want[0])


def test_results_into_an_array(target):
    cache = regard.KVCache(2, 2, 8, 5)
    cache.append_ragged(*packed_tokens(0, [9, 4], dtype=np.float32))
    query, out = normal(1, 13, 4, 8, dtype=np.float32), np.full((13, 4, 5), 7, np.float32)
    assert cache.attend_ragged(query, [0, 9, 13], out=out) is out
    assert_same_bits(out, cache.attend_ragged(query, [0, 9, 13]))


def test_what_is_explained(target):
    """The cost of a step is the cost of its parts, and no padding is computed."""
    counts, lengths = [64, 1, 1, 1, 0], [500, 300, 700, 20, 40]
    cache = regard.KVCache(5, 2, 64)
    cache.append_ragged(*packed_tokens(0, lengths, head_dim=64, value_dim=64))
    starts = [0, *itertools.accumulate(counts)]
    query = np.zeros((starts[-1], 4, 64), np.float32)
    whole = cache.explain(query, starts=starts)
    parts = []
    for b, count in enumerate(counts):
        one = cache.fork()
        one.reorder([b])
        parts.append(one.explain(np.zeros((4, count, 64), np.float32)))
    assert whole.flops == sum(part.flops for part in parts)
    assert whole.scores == sum(part.scores for part in parts)
    assert whole.tiles_computed == sum(part.tiles_computed for part in parts)
    assert (whole.kernel, parts[1].kernel) == ("forward", "decode")
    assert "3 sequences with few query rows: kernel decode" in whole.notes
    rows = sum(lengths) * 2 * 128 * 4
    assert whole.bytes == query.nbytes + rows + query.nbytes
    single = cache.explain(query[:5], starts=range(6))
    assert single.kernel == "decode"
    assert not any("sequences" in note for note in single.notes)


@pytest.mark.parametrize("threads", [1, 3])
def test_prompts_beside_single_tokens_in_plain_arrays(threads, target):
    """Packed sequences without a cache use the same two kernels."""
    lengths = [1, 90, 2, 0, 4, 30]
    starts = [0, *itertools.accumulate(lengths)]
    key_lengths = [300, 90, 700, 10, 5, 64]
    key_starts = [0, *itertools.accumulate(key_lengths)]
    query = normal(0, starts[-1], 6, 16, dtype=np.float32)
    key, value = (normal(s, key_starts[-1], 3, 16, dtype=np.float32) for s in (1, 2))
    options = {"is_causal": True, "query_offset": "end", "softcap": 4.0}
    call = regard.scaled_dot_product_attention_ragged
    output = call(query, key, value, starts, key_starts, threads=threads, **options)
    for b in range(6):
        q, k = slice(*starts[b : b + 2]), slice(*key_starts[b : b + 2])
        arrays = (x.swapaxes(0, 1) for x in (query[q], key[k], value[k]))
        want = regard.scaled_dot_product_attention(*arrays, **options)
        assert_same_bits(np.ascontiguousarray(output[q].swapaxes(0, 1)), want)
    plan = regard.explain(query, key, value, query_starts=starts, key_starts=key_starts, **options)
    assert plan.kernel == "forward"
    assert "3 sequences with few query rows: kernel decode" in plan.notes


def test_overflow_is_told_and_undone(recwarn):
    cache = regard.KVCache(2, 2, 8, 5, dtype=np.float16)
    key, value, starts = packed_tokens(0, [3, 1])
    key[2, 0, 0] = 1e6
    with pytest.warns(RuntimeWarning, match="overflow in key"):
        cache.append_ragged(key, value, starts)
    assert cache.lengths.tolist() == [3, 1]
    assert np.isinf(cache.keys[0, 0, 2, 0])
    with np.errstate(over="raise"), pytest.raises(FloatingPointError, match="overflow in key"):
        cache.append_ragged(key, value, starts)
    assert cache.lengths.tolist() == [3, 1]


KEY, VALUE = normal(0, 5, 2, 8), normal(1, 5, 2, 5)
BAD_APPENDS = {
    "starts of fewer": ((KEY, VALUE, [0, 5]), ValueError, says("starts", "(3,)", "(2,)")),
    "starts that do not begin": ((KEY, VALUE, [1, 2, 5]), ValueError, says("starts", "0", "1")),
    "starts that decrease": ((KEY, VALUE, [0, 6, 5]), ValueError, says("starts", "decrease", "6")),
    "starts that end early": ((KEY, VALUE, [0, 2, 4]), ValueError, says("starts", "key", "5", "4")),
    "starts of fractions": ((KEY, VALUE, [0, 2.5, 5]), TypeError, says("starts", "integer")),
    "starts of pairs": ((KEY, VALUE, [[0, 2, 5]]), ValueError, says("starts", "(1, 3)")),
    "no starts": ((KEY, VALUE, None), TypeError, says("starts")),
    "padded": ((KEY[None], VALUE, [0, 2, 5]), ValueError, says("key", "tokens")),
    "heads": ((KEY[:, :1], VALUE, [0, 2, 5]), ValueError, says("key", "(5, 1, 8)")),
    "columns": ((KEY, VALUE[..., :4], [0, 2, 5]), ValueError, says("value", "(5, 2, 4)")),
    "other tokens": ((KEY, VALUE[:4], [0, 2, 5]), ValueError, says("value", "(4, 2, 5)")),
    "too many": ((KEY, VALUE, [0, 0, 5]), ValueError, says("capacity")),
    "text": ((KEY.astype(str), VALUE, [0, 2, 5]), TypeError, says("key")),
}


@pytest.mark.parametrize("name", BAD_APPENDS)
def test_bad_tokens_change_nothing(name):
    arguments, kind, message = BAD_APPENDS[name]
    cache = regard.KVCache(2, 2, 8, 5, capacity=7)
    cache.append_ragged(KEY[:4], VALUE[:4], [0, 1, 4])
    held = cache.keys
    with pytest.raises(kind, match=message):
        cache.append_ragged(*arguments)
    assert cache.lengths.tolist() == [1, 3]
    assert_same_bits(cache.keys, held)


QUERY = normal(2, 5, 4, 8)
BAD_QUERIES = {
    "starts": ((QUERY, [0, 5]), {}, ValueError, says("starts", "(3,)")),
    "no starts": ((QUERY, None), {}, TypeError, says("starts", "None")),
    "more than tokens": ((QUERY, [0, 2, 5]), {}, ValueError, says("query_offset", "2", "1")),
    "padded": ((QUERY[None], [0, 2, 5]), {}, ValueError, says("query", "(tokens, heads, 8)")),
    "heads": ((QUERY[:, :3], [0, 1, 5]), {}, ValueError, says("query", "3")),
    "mask": ((QUERY[:4], [0, 1, 4], np.ones((4, 9, 3), bool)), {}, ValueError, says("mask")),
    "an option": ((QUERY, [0, 1, 5]), {"head": 3}, TypeError, says("head")),
    "key_lengths": ((QUERY, [0, 1, 5]), {"key_lengths": 3}, TypeError, says("key_lengths")),
    "int8": ((QUERY[:4], [0, 1, 4]), {"precision": "int8"}, ValueError, says("precision")),
}


@pytest.mark.parametrize("name", BAD_QUERIES)
def test_bad_queries(name):
    arguments, options, kind, message = BAD_QUERIES[name]
    cache = regard.KVCache(2, 2, 8, 5)
    cache.append_ragged(KEY[:4], VALUE[:4], [0, 1, 4])
    with pytest.raises(kind, match=message):
        cache.attend_ragged(*arguments, **options)


def test_nothing_to_do():
    cache = regard.KVCache(3, 2, 8, 5)
    cache.append_ragged(KEY[:0], VALUE[:0], [0, 0, 0, 0])
    assert cache.attend_ragged(QUERY[:0], [0, 0, 0, 0]).shape == (0, 4, 5)
    with pytest.raises(ValueError, match="empty"):
        cache.attend_ragged(QUERY, [0, 0, 5, 5])
    cache.append_ragged(KEY, VALUE, [0, 5, 5, 5])
    assert cache.attend_ragged(QUERY[:0], [0, 0, 0, 0]).shape == (0, 4, 5)
    blind = cache.attend_ragged(QUERY, [0, 0, 5, 5], is_causal=False)
    assert not blind.any()
