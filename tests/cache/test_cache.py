"""A cache without a window gives the bits of one call with all keys, however they came."""

import numpy as np
import pytest

import regard
from cache_model import Model, assert_answers, normal, tokens
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
    given = np.dtype(given) if given[0] == "f" else regard._cache.geometry.stored_type(given)
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
def test_an_empty_cache_answers_nothing(window, storage, target):
    cache = regard.KVCache(2, 2, 8, 5, dtype=storage, window=window)
    output, lse = cache.attend(normal(0, 2, 4, 3, 8).astype(storage), return_lse=True)
    assert output.shape == (2, 4, 3, 5)
    assert not output.any()
    assert (lse == -np.inf).all()
    sinks = np.arange(4.0)
    for offset in (None, 0, 5):
        given = {"sinks": sinks, "return_lse": True, "query_offset": offset}
        output, lse = cache.attend(normal(0, 2, 4, 3, 8), **given)
        assert not output.any()
    assert np.allclose(lse, sinks[:, None], rtol=1.5 * np.finfo(lse.dtype).eps, atol=0)
    cache.append(*tokens(0, 2, 0))
    assert (len(cache), bool(cache)) == (0, False)


def test_a_batch_of_one_needs_no_axis(target):
    for window in (None, 3):
        cache, same = (regard.KVCache(1, 2, 8, 5, window=window) for _ in range(2))
        for step in range(8):
            key, value = tokens(step, 1, 1)
            cache.append(key, value)
            same.append(key[0], value)
            query = normal(step, 1, 4, 1, 8)
            got = same.attend(query[0], return_lse=True)
            want = tuple(part[0] for part in cache.attend(query, return_lse=True))
            assert_same_bits(got, want)


def test_growth_is_amortised_and_capacity_is_not_exceeded():
    cache, rooms = regard.KVCache(1, 1, 4), []
    for _ in range(1000):
        cache.append(np.ones((1, 1, 4)), np.ones((1, 1, 4)))
        rooms.append(cache.nbytes)
    assert len(set(rooms)) <= 8
    assert max(rooms) <= 2 * 1000 * 2 * 4 * 4
    assert regard.KVCache(1, 1, 4, capacity=1000).nbytes == 1000 * 2 * 4 * 4


@pytest.mark.parametrize("sizes", [{}, {"dtype": "int8"}, {"page_size": 16}])
def test_keys_are_not_copied_by_a_call(sizes, monkeypatch):
    cache, seen = regard.KVCache(2, 2, 8, 5, **sizes), []
    cache.append(*tokens(0, 2, 9))
    call = regard._core.attention_cached

    def look(query, key, value, *rest, **options):
        seen.extend([key, value])
        return call(query, key, value, *rest, **options)

    monkeypatch.setattr("regard._core.attention_cached", look)
    cache.attend(normal(0, 2, 2, 1, 8))
    held = cache._content.state.pool if sizes.get("page_size") else cache._content.slots
    for array, stored in zip(seen, held.rows.arrays, strict=False):
        assert np.shares_memory(array, stored)


@pytest.mark.parametrize("page_size", [None, 16])
@pytest.mark.parametrize("window", [None, 4])
def test_beams(window, page_size, storage, target):
    if window and page_size:
        pytest.skip("a window's slots are not in pages")
    sizes = {"window": window, "sink_tokens": 2 if window else 0}
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
@pytest.mark.parametrize("where", ["memory", "file", "pages"])
@pytest.mark.parametrize("dtype", ["float64", "int8"])
def test_forks_do_not_see_each_other(dtype, where, who, change, tmp_path):
    sizes = {"file": {"path": tmp_path / "cache"}, "pages": {"page_size": 16}}.get(where, {})
    first = regard.KVCache(2, 2, 8, 5, capacity=40, dtype=dtype, **sizes)
    model = Model(2, 2, 8, 5, np.dtype(dtype))
    first.append(*tokens(0, 2, 9))
    model.append(*tokens(0, 2, 9))
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


def test_a_fork_copies_only_while_both_live():
    cache = regard.KVCache(1, 1, 4, capacity=50)
    fork = cache.fork()
    key = cache._content.slots.rows.key
    assert fork._content.slots.rows.key is key
    fork.append(np.ones((1, 1, 4)), np.ones((1, 1, 4)))
    assert fork._content.slots.rows.key is not key
    cache.append(np.ones((1, 1, 4)), np.ones((1, 1, 4)))
    assert cache._content.slots.rows.key is key
    last = cache.fork()
    del cache
    last.append(np.ones((1, 1, 4)), np.ones((1, 1, 4)))
    assert last._content.slots.rows.key is key


def test_a_prompt_is_shared_through_merging(target):
    """One cache of the prompt, one of the continuations."""
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
