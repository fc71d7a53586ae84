"""A cache gives the bits of one call with all keys, whatever the order of appends and the pages."""

import numpy as np
import pytest

import regard
from cache_model import Model, assert_answers, normal, tokens
from file_caches import loaded
from reference import assert_same_bits, result_type

sdpa = regard.scaled_dot_product_attention
CHUNKS = {"token by token": (1,) * 40, "chunks": (13, 1, 20, 0, 6), "at once": (40,)}


def whole(query, key, value, dtype, **options):
    return sdpa(query, key.astype(dtype), value.astype(dtype), is_causal=True, **options)


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize("capacity", [None, 40])
def test_any_chunks_have_the_bits_of_one_call(chunks, capacity, storage, target):
    key, value = tokens(0, 2, 40)
    query = normal(1, 2, 6, 40, 8).astype(storage)
    cache = regard.KVCache(2, 2, 8, 5, dtype=storage, capacity=capacity)
    want, lse = whole(query, key, value, storage, return_lse=True)
    for start, stop in zip(np.cumsum((0, *chunks)), np.cumsum(chunks), strict=False):
        cache.append(key[:, :, start:stop], value[:, :, start:stop])
        result = cache.attend(query[:, :, start:stop], return_lse=True)
        assert_same_bits(result, (want[:, :, start:stop], lse[:, :, start:stop]))
    assert len(cache) == 40
    assert cache.lengths.tolist() == [40, 40]


OPTIONS = {
    "plain": {},
    "all": {"is_causal": False},
    "offset": {"query_offset": 7},
    "offsets": {"query_offset": [3, 20]},
    "window": {"window": (5, 2), "is_causal": False},
    "bool mask": {"mask": normal(5, 2, 6, 4, 30) > 0},
    "float mask": {"mask": normal(5, 4, 30)},
    "scores": {"scale": 0.5, "softcap": 2.0, "alibi_slopes": normal(6, 6), "sinks": normal(7, 6)},
    "distances": {"distance_bias": normal(8, 6, 21), "query_offset": [3, 20]},
    "numbers of heads": {"scale": normal(9, 6), "softcap": [np.inf, 0.5, 1.0, 2.0, 1e30, np.inf]},
    "numbers of entries": {"scale": normal(9, 2, 6), "distance_bias": normal(8, 2, 1, 7)},
    "everything": {"return_weights": True, "return_lse": True, "threads": 2},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_option_of_the_call(options, storage, target):
    key, value = tokens(0, 2, 30)
    query = normal(1, 2, 6, 4, 8).astype(storage)
    cache = regard.KVCache(2, 2, 8, 5, dtype=storage)
    cache.append(key, value)
    want = (
        whole(query, key, value, storage, **{"query_offset": 26} | options)
        if "is_causal" not in options
        else sdpa(
            query, key.astype(storage), value.astype(storage), **{"query_offset": 26} | options
        )
    )
    assert_same_bits(cache.attend(query, **options), want)
    if not options.keys() & {"return_weights"}:
        out = np.full_like(want, 9)
        assert cache.attend(query, **options, out=out) is out
        assert_same_bits(out, want)


@pytest.mark.parametrize("given", ["float16", "float32", "float64", "bfloat16"])
def test_any_type_is_stored_as_the_caches(given, storage, target):
    if "bfloat16" in (given, storage.name):
        pytest.importorskip("ml_dtypes")
    given = np.dtype(given if given[0] == "f" else pytest.importorskip("ml_dtypes").bfloat16)
    key, value = (array.astype(given) for array in tokens(0, 2, 9))
    query = normal(1, 2, 2, 1, 8, dtype=np.float32)
    cache = regard.KVCache(2, 2, 8, 5, dtype=storage.name)
    cache.append(key, value)
    got = cache.attend(query)
    assert got.dtype == result_type(query, np.empty(0, storage))
    assert_same_bits(got, whole(query, key, value, storage, query_offset=8))


def test_ragged_entries_have_the_bits_of_each_alone(storage, target):
    cache, model = regard.KVCache(3, 2, 8, 5, dtype=storage), Model(3, 2, 8, 5, storage)
    for step, (new, lengths) in enumerate(
        [(5, [5, 2, 0]), (1, None), (4, [0, 4, 1]), (3, [0, 0, 0]), (20, [20, 1, 7])]
    ):
        key, value = tokens(step, 3, new)
        query, offset = normal(step + 50, 3, 4, new, 8).astype(storage), cache.lengths
        cache.append(key, value, lengths=lengths)
        model.append(key, value, lengths)
        got = cache.attend(query, query_offset=offset, return_lse=True)
        for b in range(3):
            alone = sdpa(
                query[b],
                model.keys[b],
                model.values[b],
                is_causal=True,
                query_offset=int(offset[b]),
                return_lse=True,
            )
            assert_same_bits(tuple(part[b] for part in got), alone)
        assert_answers(cache, model, normal(step + 90, 3, 4, 1, 8).astype(storage))


@pytest.mark.parametrize("window", [None, 3])
def test_an_empty_cache_is_not_attended_to(window):
    cache = regard.KVCache(2, 2, 8, 5, keep_last=window)
    for step in range(2):
        for call in (cache.attend, cache.explain):
            for options in ({}, {"query_offset": 0}):
                with pytest.raises(ValueError, match="the cache is empty: append keys and values"):
                    call(normal(0, 2, 4, 3, 8), **options)
        assert cache.attend(normal(0, 2, 4, 0, 8)).shape == (2, 4, 0, 5)
        assert (len(cache), bool(cache), cache.keys.shape) == (0, False, (2, 2, 0, 8))
        cache.append(*tokens(0, 2, 4 * step))
        cache.truncate(0)


def test_an_entry_without_tokens_sees_nothing():
    cache = regard.KVCache(2, 2, 8, 5)
    cache.append(*tokens(0, 2, 4), lengths=[4, 0])
    output, lse = cache.attend(normal(0, 2, 4, 1, 8), return_lse=True)
    assert output[0].all()
    assert not output[1].any()
    assert (lse[1] == -np.inf).all()


RAGGED = [
    # appends, number of queries, whether their positions are clear
    ([[5, 3]], 1, True),
    ([[5, 0]], 1, True),
    ([[5, 3]], 3, True),
    ([[5, 3]], 4, False),
    ([[5, 3]], 5, False),
    ([[5, 0]], 2, False),
    ([[5, 3], [1, 1]], 5, True),
    ([[4, 4], [2, 0]], 2, False),
    ([[2, 0], [4, 4]], 4, True),
]


@pytest.mark.parametrize("page_size", [None, 16])
@pytest.mark.parametrize(("appends", "q_len", "is_clear"), RAGGED)
def test_queries_of_an_append_with_unequal_lengths_need_an_offset(
    appends, q_len, is_clear, page_size
):
    cache, model = (
        regard.KVCache(2, 2, 8, 5, page_size=page_size),
        Model(2, 2, 8, 5, np.dtype("f4")),
    )
    for step, counts in enumerate(appends):
        offset = cache.lengths
        for each in (cache, model):
            each.append(*tokens(step, 2, max(counts)), counts)
    query = normal(0, 2, 4, q_len, 8)
    if is_clear:
        assert_answers(cache, model, query)
    else:
        for call in (cache.attend, cache.explain):
            with pytest.raises(
                ValueError, match=r"query_offset must be given: .* \[\d, \d\] tokens"
            ):
                call(query)
        same = cache.fork()
        same.reorder([0, 0])  # the entry that got all of its tokens, twice
        same.attend(query)
        cache.truncate(cache.lengths)  # specifies where the tokens end
        cache.attend(query)
    assert_answers(cache, model, query, offsets=offset)


def test_a_batch_of_one_needs_no_axis(target):
    for window in (None, 3):
        cache, same = (regard.KVCache(1, 2, 8, 5, keep_last=window) for _ in range(2))
        for step in range(8):
            key, value = tokens(step, 1, 1)
            cache.append(key, value)
            same.append(key[0], value)
            query = normal(step, 1, 4, 1, 8)
            got = same.attend(query[0], return_lse=True)
            want = tuple(part[0] for part in cache.attend(query, return_lse=True))
            assert_same_bits(got, want)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8"])
@pytest.mark.parametrize("sizes", [{}, {"page_size": 16}, {"keep_last": 20, "keep_first": 3}])
def test_stored_keys_and_values_can_be_read(dtype, sizes):
    """Rows are returned as they are stored, and are 0 beyond an entry's length and for evicted
    tokens."""
    cache = regard.KVCache(2, 2, 8, 5, dtype=dtype, **sizes)
    model = Model(2, 2, 8, 5, np.dtype(dtype))
    for step, counts in enumerate([[40, 30], [50, 2], [1, 1], [1, 1]]):
        for each in (cache, model):
            each.append(*tokens(step, 2, max(counts)), counts)
    found = cache.keys, cache.values
    kept = np.ones((2, len(cache)), bool)
    if "keep_last" in sizes:  # pages of 32, the first with the sink tokens
        kept[0, 32:64] = False
    for got, want in zip(found, model.held(), strict=True):
        assert got.dtype == ("float32" if dtype == "int8" else dtype)
        want = np.where(kept[:, None, :, None], want, 0)
        if dtype == "int8":  # rotated back in float32
            np.testing.assert_allclose(got, want, 0, 1e-5)
        else:
            assert_same_bits(got, want.astype(dtype))
    found[0][...] = 9  # a copy
    assert_same_bits(cache.values, found[1])
    assert not (cache.keys == 9).any()


def test_texts_join_and_leave_a_batch(target):
    cache, model = regard.KVCache(2, 2, 8, 5, page_size=16), Model(2, 2, 8, 5, np.dtype("f4"))
    for each in (cache, model):
        each.append(*tokens(0, 2, 30), [30, 17])
        each.reorder([1, -1, -1])
    assert cache.lengths.tolist() == [17, 0, 0]
    query = normal(0, 3, 4, 1, 8).astype("f4")
    assert_answers(cache, model, query)
    for step, counts in enumerate([[0, 20, 5], [1, 1, 1], [1, 1, 1]]):
        for each in (cache, model):
            each.append(*tokens(step, 3, max(counts)), counts)
        assert_answers(cache, model, query)
    for each in (cache, model):
        each.reorder([2])
    assert_answers(cache, model, query[:1])
    cache.reorder([-1])
    assert len(cache) == 0


@pytest.mark.parametrize("page_size", [None, 16])
@pytest.mark.parametrize("window", [None, 4])
def test_beams(window, page_size, storage, target):
    sizes = {"keep_last": window, "keep_first": 2 if window else 0}
    cache = regard.KVCache(2, 2, 8, 5, dtype=storage, page_size=page_size, **sizes)
    model = Model(2, 2, 8, 5, storage, **sizes)
    for step, indices in enumerate([[0, 1], [1, 0], [1, 1, 0, 0], [3, 0, 2], [2, 2, 2], [0]]):
        key, value = tokens(step, cache.lengths.size, 3)
        lengths = [1 + (step + b) % 3 for b in range(cache.lengths.size)]
        cache.append(key, value, lengths)
        model.append(key, value, lengths)
        cache.reorder(indices)
        model.reorder(indices)
        query = normal(step, len(indices), 4, 1, 8).astype(storage)
        assert_answers(cache, model, query)


@pytest.mark.parametrize("change", ["append", "reorder", "truncate"])
@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("where", ["capacity", "file", "pages", "window"])
@pytest.mark.parametrize("dtype", ["float64", "int8"])
def test_forks_do_not_see_each_other(dtype, where, who, change, tmp_path):
    window = {"keep_last": 7, "keep_first": 2} if where == "window" else {}
    sizes = {"page_size": 16} if where == "pages" else window
    first = regard.KVCache(2, 2, 8, 5, capacity=40, dtype=dtype, **sizes)
    model = Model(2, 2, 8, 5, np.dtype(dtype), **window)
    first.append(*tokens(0, 2, 9))
    model.append(*tokens(0, 2, 9))
    first = loaded(first, tmp_path / "cache") if where == "file" else first
    caches, models = [first, first.fork()], [model, model.fork()]
    query = normal(0, 2, 4, 1, 8)
    one, plain = caches[who], models[who]
    if change == "reorder":
        one.reorder([1, 0])
        plain.reorder([1, 0])
    if change == "truncate":
        one.truncate(4)
        plain.truncate([4, 4])
    for step in range(3):
        for each, told in ((one, plain), (caches[1 - who], models[1 - who])):
            for cache, model in zip(caches, models, strict=True):
                assert_answers(cache, model, query)
            new = tokens(10 * step + len(each), 2, 2)
            each.append(*new)
            told.append(*new)


def test_a_prompt_is_shared_through_merging(target):
    """One cache holds the prompt, the other the continuations."""
    prompt, tails = regard.KVCache(1, 2, 8, 5), regard.KVCache(3, 2, 8, 5)
    both = regard.KVCache(3, 2, 8, 5)
    (key, value), (more, others) = tokens(0, 1, 20), tokens(1, 3, 4)
    prompt.append(key, value)
    tails.append(more, others)
    both.append(*(np.repeat(array, 3, axis=0) for array in (key, value)))
    both.append(more, others)
    query = normal(2, 3, 4, 1, 8, dtype=np.float64)
    beside = query.swapaxes(0, 2)[0].swapaxes(0, 1)[None]  # of all continuations, (1, 3, 4, 8)
    shared = prompt.attend(beside.swapaxes(1, 2), is_causal=False, return_lse=True)
    shared = shared[0][0].swapaxes(0, 1)[:, :, None], shared[1][0].swapaxes(0, 1)[:, :, None]
    own = tails.attend(query, return_lse=True)
    output, _ = regard.merge_attention_states(*zip(shared, own, strict=True))
    np.testing.assert_allclose(output, both.attend(query), rtol=0, atol=64 * 2.0**-52)
