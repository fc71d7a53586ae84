"""Test attention over Dask arrays against the oracle, for chunks of any sizes, and test the
graph."""

import itertools

import numpy as np
import pytest

pytest.importorskip("dask.array", reason='pip install ".[dask]"')

import dask
import dask.array as da
from dask.base import tokenize

import regard
import regard.dask
from cases import Problem
from dask_chunks import cut
from element_types import each_in_one_type
from gradient_cases import drawn
from option_cases import MIXES
from reference import assert_same_bits, expected

attend = regard.dask.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def scheduler():
    with dask.config.set(scheduler="synchronous"):
        yield


@each_in_one_type(MIXES[::24], "dtype")
def test_dropout_drops_what_a_single_call_drops(case, dtype):
    """Values that form an identity matrix show which weights remain."""
    problem = case.build(dtype)
    kv_len = problem.key.shape[-2]
    eye = np.broadcast_to(np.eye(kv_len, dtype=dtype), (*problem.value.shape[:-1], kv_len))
    options = problem.options | {"dropout_p": 0.4, "dropout_seed": 5, "dropout_origin": (3, 1, 6)}
    problem = Problem(problem.query, problem.key, eye, options)
    single = regard.scaled_dot_product_attention(*problem.arrays, **options)
    assert (single == 0).any()
    for name in ("one way", "another way", "a third way"):
        whole = cut(problem, name)
        weights = attend(*whole.arrays, **whole.options, split_every=2).compute()
        assert np.array_equal(weights == 0, single == 0)
        np.testing.assert_allclose(weights, single, rtol=200 * np.finfo(dtype).eps)


def test_one_chunk_gives_the_bits_of_a_single_call():
    arrays = drawn((3, 2, 4, 70, 16), np.float32)
    wanted = regard.scaled_dot_product_attention(*arrays, is_causal=True, return_lse=True)
    whole = attend(*(da.from_array(x, chunks=-1) for x in arrays), is_causal=True, return_lse=True)
    assert_same_bits(dask.compute(*whole), wanted)


def test_what_is_hidden_may_be_anything():
    """NaN in a key that a row does not see changes no bit, whether or not the key has its own
    chunk."""
    query, key, value = drawn((3, 2, 40, 8), np.float32)
    options = {"key_lengths": 33, "left_padding": 6, "is_causal": True, "query_offset": -8}
    poisoned = [x.copy() for x in (key, value)]
    for array in poisoned:
        array[:, :6] = np.nan
        array[:, 32:] = np.inf
    clean, dirty = (
        attend(*(da.from_array(x, chunks=(2, 10, 8)) for x in (query, *kv)), **options).compute()
        for kv in ((key, value), poisoned)
    )
    assert_same_bits(dirty, clean)
    assert not clean[:, :14].any()  # they see no valid key
    assert clean[:, 14:].all()


def causal(length, q_chunk, kv_chunk, **options):
    query = da.zeros((12, length, 64), chunks=(12, q_chunk, 64), dtype=np.float32)
    key = da.ones((12, length, 64), chunks=(12, kv_chunk, 64), dtype=np.float32)
    return attend(query, key, key, **options)


def tasks(array, prefix=""):
    return sum(str(key[0]).startswith(prefix) for key in array.__dask_graph__())


def test_hidden_pairs_are_not_in_the_graph():
    """131,072 causal keys in chunks of 4096 need no more than 1400 tasks in all."""
    whole = causal(2**17, 4096, 4096, is_causal=True)
    assert tasks(whole, "attention-part-") == 32 * 33 // 2
    assert tasks(whole) <= 1400
    assert tasks(causal(2**17, 4096, 4096), "attention-part-") == 32 * 32
    window = causal(2**17, 4096, 4096, is_causal=True, window=(8192, 0))
    assert tasks(window, "attention-part-") == 1 + 2 + 30 * 3
    assert tasks(causal(2**17, 4096, 4096, key_lengths=5000), "attention-part-") == 32 * 2
    assert tasks(causal(2**17, 4096, 4096, key_lengths=4096), "attention-part-") == 32
    padded = causal(2**17, 4096, 4096, left_padding=2**17 - 4096)
    assert tasks(padded, "attention-part-") == 32
    assert tasks(causal(2**17, 4096, 4096, left_padding=2**17), "attention-part-") == 0
    decode = attend(
        da.zeros((12, 1, 64), chunks=-1), *[da.zeros((12, 2**17, 64), chunks=(12, 4096, 64))] * 2
    )
    assert tasks(decode, "attention-part-") == 32
    assert tasks(decode, "attention-merge-") == 4


@pytest.mark.parametrize("number", range(len(MIXES)))
def test_the_graph_has_just_the_pairs_that_positions_leave(number):
    """The pairs are found one by one, from the positions of every query and key."""
    problem = MIXES[number].build(np.dtype(np.float32))
    options = {
        name: value
        for name, value in problem.options.items()
        if name in ("is_causal", "window", "query_offset", "key_lengths", "left_padding")
    }
    whole = cut(problem, MIXES[number].name)
    seen = expected(*problem.arrays, **options).seen
    *batch, heads, queries, _ = whole.output_chunks
    axes = (*batch, heads, queries, whole.arrays[1].chunks[-2])
    sums = np.asarray(seen)
    for axis, chunks in enumerate(axes):
        starts = np.cumsum([0, *chunks])
        parts = [sums.take(range(*ends), axis) for ends in itertools.pairwise(starts)]
        sums = np.concatenate([part.any(axis=axis, keepdims=True) for part in parts], axis)
    graph = attend(*whole.arrays, **options)
    assert tasks(graph, "attention-part-") == sums.sum()


def test_equal_calls_share_their_names():
    arrays = [da.ones((4, 20, 8), chunks=(2, 10, 8)) for _ in range(3)]
    slopes = np.array([0.1, 0.2, 0.3, 0.4])
    calls = [
        {},
        {"is_causal": True},
        {"window": (3, 0)},
        {"alibi_slopes": slopes},
        {"alibi_slopes": 2 * slopes},
        {"sinks": slopes},
        {"dropout_p": 0.1, "dropout_seed": 1},
        {"dropout_p": 0.1, "dropout_seed": 2},
        {"dropout_p": 0.1, "dropout_seed": 2, "dropout_origin": (1, 0, 0)},
        {"key_lengths": 7},
        {"left_padding": 7},
        {"query_offset": 7},
        {"scale": 7.0},
        {"softcap": 7.0},
        {"mask": np.ones((20, 20), bool)},
        {"mask": np.zeros((20, 20))},
        {"split_every": 2},
    ]
    names = [attend(*arrays, **options).name for options in calls]
    assert len(set(names)) == len(calls)
    assert [attend(*arrays, **options).name for options in calls] == names
    assert tokenize(attend(*arrays)) == tokenize(attend(*arrays))


def test_nothing_is_computed_before_it_is_asked_for():
    def fail(block):
        raise RuntimeError("a chunk was computed")

    arrays = [da.ones((4, 20, 8), chunks=(2, 10, 8)).map_blocks(fail, dtype=float)] * 3
    mask = da.ones((20, 20), chunks=10, dtype=bool).map_blocks(fail, dtype=bool)
    output, lse = attend(*arrays, mask, return_lse=True)
    regard.dask.scaled_dot_product_attention_backward(output, *arrays, output, lse, mask)
    with pytest.raises(RuntimeError, match="a chunk was computed"):
        output.compute()


def test_arrays_of_other_layouts_and_types():
    """Chunks may be views, hold integers, or have another byte order."""
    arrays = drawn((3, 2, 30, 8), np.float64)
    for change in (
        lambda x: x.astype(">f4"),
        lambda x: (9 * x).astype(np.int8),
        lambda x: np.asfortranarray(x),
        lambda x: np.repeat(x, 3, axis=1)[:, ::3],
        lambda x: np.broadcast_to(x[:1], x.shape),
    ):
        changed = [change(x) for x in arrays]
        wanted = regard.scaled_dot_product_attention(*changed)
        pieces = [da.from_array(x, chunks=(1, 30, 8), asarray=False) for x in changed]
        output = attend(*pieces)
        assert output.dtype == wanted.dtype
        assert_same_bits(output.compute(), wanted)


def test_parts_of_results_can_be_computed_alone():
    """A slice of the output computes only the tasks that it needs."""
    arrays = [da.from_array(x, chunks=(2, 25, 8)) for x in drawn((3, 2, 100, 8), np.float32)]
    output = attend(*arrays, is_causal=True)
    part = output[:, :20]
    (optimized,) = dask.optimize(part)
    assert tasks(optimized, "attention-part-") <= 1
    assert_same_bits(part.compute(), output.compute()[:, :20])


@pytest.mark.parametrize(
    "options",
    [
        {"key_lengths": np.array([60, 5], np.uint8)},
        {"left_padding": np.array([1, 30], np.uint8)},
        {"query_offset": np.array([100, 3], np.int8), "is_causal": True},
        {"query_offset": np.array([3, 3], np.uint64), "is_causal": True},
        {"query_offset": "end", "is_causal": True, "key_lengths": np.array([60, 5], np.uint16)},
        {"query_offset": 2**63 - 1, "is_causal": True},
        {"query_offset": -(2**63), "window": (None, 7)},
        {"dropout_p": 0.3, "dropout_seed": 1, "dropout_origin": (2**63 - 1,) * 3},
    ],
    ids=str,
)
def test_integers_of_any_width(options):
    random = np.random.default_rng(0)
    arrays = [random.standard_normal((2, 4, 60, 16)) for _ in range(3)]
    chunked = [da.from_array(x, chunks=(2, 4, 20, 16)) for x in arrays]
    want = regard.scaled_dot_product_attention(*arrays, **options)
    got = regard.dask.scaled_dot_product_attention(*chunked, **options).compute(scheduler="sync")
    assert np.allclose(got, want, rtol=0, atol=1e-13)


@pytest.mark.parametrize("offset", [-(2**63), -(2**63) + 30, -(2**61) - 3, 2**61 + 3, 2**63 - 1])
@pytest.mark.parametrize("window", [(None, 2**63 - 1), (2**63 - 1, None), (2**62 + 1, 3)])
def test_offsets_at_the_ends_of_64_bits(offset, window):
    """A window as long as the distance of an offset from the keys ends among the keys."""
    query, key, value = np.random.default_rng(0).standard_normal((3, 2, 20, 4))
    options = {"query_offset": offset, "window": window}
    output = attend(*(da.from_array(x, chunks=(2, 6, 4)) for x in (query, key, value)), **options)
    want = regard.scaled_dot_product_attention(query, key, value, **options)
    assert np.allclose(output.compute(), want, rtol=0, atol=1e-14)


def test_a_stream_of_the_parts_of_dask_arrays():
    """`KeyValueChunks` computes one part after another."""
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal((2, n, 4)) for n in (3, 20, 20))
    lazy = (da.from_array(array, chunks=(1, 6, 4)) for array in (key, value))
    output = regard.attend_stream(query, regard.KeyValueChunks(*lazy, length=5))
    wanted = regard.attend_stream(query, regard.KeyValueChunks(key, value, length=5))
    assert output.tobytes() == wanted.tobytes()
