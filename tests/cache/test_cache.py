"""Options and explanations of attention to a cache, and caches that are empty, unequal or full."""

import dataclasses

import numpy as np
import pytest

import regard
from cache_kinds import loaded, new_cache
from cache_model import Model, assert_alike, assert_answers
from cache_tokens import normal, packed_tokens, tokens
from element_types import each_in_one_type
from inside_cache import assert_owners_are_right
from messages import says
from reference import assert_same_bits

sdpa = regard.scaled_dot_product_attention


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


@each_in_one_type(list(OPTIONS), "storage")
def test_every_option_of_the_call(case, storage, target):
    options = OPTIONS[case]
    rows = [rows.astype(storage) for rows in tokens(0, 2, 30)]
    query = normal(1, 2, 6, 4, 8).astype(storage)
    want = sdpa(query, *rows, **{"query_offset": 26, "is_causal": True} | options)
    for page_size in (None, 16):
        cache = regard.KVCache(2, 2, 8, 5, dtype=storage, page_size=page_size)
        cache.append(*rows)
        assert_same_bits(cache.attend(query, **options), want)
    if not options.keys() & {"return_weights"}:
        out = np.full_like(want, 9)
        assert cache.attend(query, **options, out=out) is out
        assert_same_bits(out, want)


@pytest.mark.parametrize("window", [None, 3])
def test_an_empty_cache_is_not_attended_to(window):
    cache = regard.KVCache(2, 2, 8, 5, keep_last=window)
    for step in range(2):
        for call in (cache.attend, cache.explain):
            for options in ({}, {"query_offset": 0}):
                with pytest.raises(ValueError, match="cache is empty"):
                    call(normal(0, 2, 4, 3, 8), **options)
        assert cache.attend(normal(0, 2, 4, 0, 8)).shape == (2, 4, 0, 5)
        assert (len(cache), bool(cache), cache.keys.shape) == (0, False, (2, 2, 0, 8))
        cache.append(*tokens(0, 2, 4 * step))
        cache.truncate(0)


@pytest.mark.parametrize("page_size", [None, 16])
@pytest.mark.parametrize(
    ("appends", "q_len"), [([[5, 3]], 4), ([[5, 0]], 2), ([[4, 4], [2, 0]], 2), ([[5, 3]], 5)]
)
def test_queries_of_an_append_with_unequal_lengths_need_an_offset(appends, q_len, page_size):
    cache, model = new_cache(2, 2, 8, 5, page_size=page_size)
    for step, counts in enumerate(appends):
        offset = cache.lengths
        for each in (cache, model):
            each.append(*tokens(step, 2, max(counts)), counts)
    query = normal(0, 2, 4, q_len, 8)
    for call in (cache.attend, cache.explain):
        with pytest.raises(ValueError, match="query_offset must be given"):
            call(query)
    assert_answers(cache, model, query, offsets=offset)
    assert_answers(cache, model, query[:, :, :1])  # the last token of each text
    same = cache.fork([0, 0])  # the entry that got all of its tokens, twice
    same.attend(query)
    cache.truncate(cache.lengths)  # specifies where the tokens end
    cache.attend(query)


@pytest.mark.parametrize("in_file", [False, True])
def test_no_entries(in_file, tmp_path):
    cache = regard.KVCache(0, 2, 8, 5)
    assert (cache.batch, len(cache), cache.lengths.tolist(), cache.nbytes) == (0, 0, [], 0)
    assert cache.keys.shape == (0, 2, 0, 8)
    cache.append(np.ones((0, 2, 3, 8)), np.ones((0, 2, 3, 5)))
    cache.append_ragged(np.ones((0, 2, 8)), np.ones((0, 2, 5)), [0])
    assert len(cache) == 0
    assert cache.attend(np.ones((0, 4, 3, 8))).shape == (0, 4, 3, 5)
    assert cache.attend_ragged(np.ones((0, 4, 8)), [0]).shape == (0, 4, 5)
    assert cache.explain(np.ones((0, 4, 3, 8))).flops == 0
    cache.truncate(0)
    cache.reorder([])
    if in_file:
        cache = loaded(cache, tmp_path / "cache")
        assert cache.lengths.tolist() == []
    model = Model(0, 2, 8, 5)
    for each in (cache, model):
        text = each.fork([-1, -1])
        text.append(*tokens(0, 2, 30))
        assert each.adopt(text, 1) == 0
        assert each.adopt(text) == 1
    assert_alike(cache, model)
    cache.drop([1, 0, 0])
    assert cache.batch == 0


def test_a_budget():
    """A full pool raises before anything changes, and dropped entries make room."""
    page = 16 * (8 + 5) * 2 * 4
    cache, model = new_cache(2, 2, 8, 5, page_size=16, max_bytes=4 * page)
    for each in (cache, model):
        each.append(*tokens(0, 2, 20))
    fork = cache.fork()
    for refused in (
        lambda: cache.append(*tokens(1, 2, 20)),
        lambda: fork.append(*tokens(1, 2, 1)),
        lambda: cache.append_ragged(*packed_tokens(1, [13, 0])),
    ):
        with pytest.raises(MemoryError, match=says("max_bytes", "pages")):
            refused()
        for each in (cache, fork):
            assert_alike(each, model)
    fork.close()
    for each in (cache, model):
        each.drop(0)
        each.append(*tokens(2, 1, 44))
    assert_alike(cache, model)
    assert_owners_are_right([cache])
    small = regard.KVCache(0, 2, 8, 5, page_size=16, max_bytes=page)
    with pytest.raises(MemoryError, match=says("max_bytes")):  # and neither cache changes
        small.adopt(cache)
    assert small.batch == 0
    assert_alike(cache, model)
    assert_owners_are_right([small, cache])


def test_beams_need_a_page_for_each_but_one():
    """The last of the beams that share a page, which is not full, keeps it."""
    page = 16 * (8 + 5) * 2 * 4
    cache = regard.KVCache(1, 2, 8, 5, page_size=16, max_bytes=4 * page)
    cache.append(*tokens(0, 1, 20))
    cache.reorder([0, 0, 0])
    cache.append(*tokens(1, 3, 1))
    assert cache.lengths.tolist() == [21] * 3


EXPLAINED = {
    "plain": {},
    "offset": {"query_offset": [3, 7]},
    "square": {"is_causal": False},
    "window": {"window": (20, 0), "softcap": 3.0},
    "alibi and sinks": {"alibi_slopes": [0.5] * 6, "sinks": [0.0] * 6, "scale": 0.1},
    "one thread": {"threads": 1},
}


STORED = ["float32", "float64", "float16", "int8", "pages", "int8 pages"]
EXPLAINED_CASES = [
    (options, STORED[(number + shift) % 6], q_len, [400, (400, 250)[(number + shift) % 2]])
    for number, options in enumerate(EXPLAINED)
    for shift, q_len in enumerate((1, 30, 1, 30))
]


@pytest.mark.parametrize(("name", "kind", "q_len", "lengths"), EXPLAINED_CASES)
def test_explanations_are_as_for_plain_arrays(name, kind, q_len, lengths, target):
    options = EXPLAINED[name]
    dtype = np.dtype("float32" if kind == "pages" else kind.removesuffix(" pages"))
    cache = regard.KVCache(2, 3, 8, 5, dtype=dtype, page_size=16 if "pages" in kind else None)
    key, value = tokens(0, 2, 400, kv_heads=3)
    cache.append(key, value, lengths)
    as_read = np.float32 if dtype == np.int8 else dtype
    query = normal(1, 2, 6, q_len, 8).astype(as_read)
    got = cache.explain(query, **options)
    given = {"is_causal": True, "query_offset": np.array(lengths) - q_len} | options
    given |= {"key_lengths": None if lengths[0] == lengths[1] else lengths}
    want = regard.explain(query, key.astype(as_read), value.astype(as_read), **given)
    own = {"instruction", "bytes", "workspace_bytes", "notes", "of_plan"}
    for size in {field.name for field in dataclasses.fields(got)} - own:
        assert getattr(got, size) == getattr(want, size), size
    row = (8 + 5) * dtype.itemsize + (8 if dtype == np.int8 else 0)
    output = 2 * 6 * q_len * 5 * query.itemsize
    assert got.bytes == query.nbytes + output + sum(lengths) * 3 * row
    assert cache.attend(query, **options).dtype == got.result_type
    notes = " ".join(got.notes)
    assert ("8-bit integers" in notes) == ("int8" in kind)
    assert f"pages of {16 if 'pages' in kind else 192} tokens" in notes
