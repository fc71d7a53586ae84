"""Results and gradients for Dask arrays, beyond the common table of `test_same_as_numpy`."""

import numpy as np
import pytest

pytest.importorskip("dask.array", reason='pip install ".[dask]"')

import dask
import dask.array as da

import regard
import regard.dask
from cases import build
from dask_chunks import EVERYTHING, call, cut
from element_types import each_in_one_type
from option_cases import MIXES
from problem import Problem, drawn
from reference import assert_same_bits

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


ENDS = -(2**62), -(2**61) - 3, 2**61 + 3, 2**62
WINDOWS = (None, 2**62), (2**62, None), (2**62 + 1, 3)
INTEGERS = [
    {"key_lengths": np.array([60, 5], np.uint8)},
    {"left_padding": np.array([1, 30], np.uint8)},
    {"query_offset": np.array([100, 3], np.int8), "is_causal": True},
    {"query_offset": np.array([3, 3], np.uint64), "is_causal": True},
    {"query_offset": "end", "is_causal": True, "key_lengths": np.array([60, 5], np.uint16)},
    {"query_offset": 2**63 - 1, "is_causal": True},
    {"query_offset": -(2**63), "window": (None, 7)},
    {"dropout_p": 0.3, "dropout_seed": 1, "dropout_origin": (2**63 - 1,) * 3},
    # A window as long as the distance of an offset from the keys ends among the keys.
    *({"query_offset": end, "window": window} for end in ENDS for window in WINDOWS),
]


@pytest.mark.parametrize("options", INTEGERS, ids=str)
def test_integers_of_any_width_and_size(options):
    arrays = drawn((3, 2, 4, 60, 16), np.float64)
    chunked = [da.from_array(x, chunks=(2, 4, 20, 16)) for x in arrays]
    want = regard.scaled_dot_product_attention(*arrays, **options)
    assert np.allclose(attend(*chunked, **options), want, rtol=0, atol=1e-13)


def test_a_stream_of_the_parts_of_dask_arrays():
    """`KeyValueChunks` computes one part after another."""
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal((2, n, 4)) for n in (3, 20, 20))
    lazy = (da.from_array(array, chunks=(1, 6, 4)) for array in (key, value))
    output = regard.attend_stream(query, regard.KeyValueChunks(*lazy, length=5))
    wanted = regard.attend_stream(query, regard.KeyValueChunks(key, value, length=5))
    assert output.tobytes() == wanted.tobytes()


def test_one_gradient_has_the_bits_that_it_has_among_all():
    problem = build(EVERYTHING, np.dtype(np.float32), 0.3)
    _, _, together = call(problem, "cut")
    alone = [call(problem, "cut", [name])[2] for name in together._fields]
    for name, gradients in zip(together._fields, alone, strict=True):
        fields = gradients._asdict()
        assert [field for field, array in fields.items() if array is not None] == [name]
    alone = dask.compute(
        *(getattr(x, name) for x, name in zip(alone, together._fields, strict=True))
    )
    assert_same_bits(alone, dask.compute(*together))
    assert call(problem, "cut", ())[2] == regard.AttentionGradients()
