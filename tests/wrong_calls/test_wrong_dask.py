"""Wrong calls of regard.dask, which are refused before any chunk is computed."""

import numpy as np
import pytest

from messages import check, each

pytest.importorskip("dask.array", reason='pip install ".[dask]"')
import dask
import dask.array as da

import regard.dask
from regard.masks import Ranges, stack


@pytest.fixture(autouse=True)
def nothing_is_computed():
    def refuse(*arguments, **options):
        raise AssertionError("something was computed")

    with dask.config.set(scheduler=refuse):
        yield


def ones(*shape, chunks, dtype=np.float32):
    return da.ones(shape, chunks=chunks, dtype=dtype)


QUERY, KEY = ones(2, 4, 20, 8, chunks=(1, 2, 5, 8)), ones(2, 2, 30, 8, chunks=(1, 1, 10, 8))
UNKNOWN = QUERY[:, :, QUERY[0, 0, :, 0] > 0]
NUMPY = np.ones((2, 4, 20, 8))
ENTRIES = ones(4, 4, 2, 20, 8, chunks=(2, 2, 2, 20, 8))
ARRAYS = {"query": QUERY, "key": KEY, "value": KEY}
OUTPUT, LSE = regard.dask.scaled_dot_product_attention(**ARRAYS, return_lse=True)
SPARSE = Ranges(0, np.full(20, 9))
DRAWN = {"dropout_p": 0.5, "dropout_seed": 1}


def attend(changes):
    return regard.dask.scaled_dot_product_attention(**ARRAYS | changes)


def gradients_of(changes):
    good = ARRAYS | {"grad_output": OUTPUT, "output": OUTPUT, "lse": LSE}
    return regard.dask.scaled_dot_product_attention_backward(**good | changes)


CALLS = [
    ({"query": NUMPY}, TypeError, "query must be a Dask array ... got ndarray"),
    ({"key": [[1.0]]}, TypeError, "key must be a ... got list ... pass dask.array.from_array(key"),
    ({"query": da.ma.masked_greater(QUERY, 2)}, TypeError, "query must have ... got chunks of"),
    ({"query": UNKNOWN}, ValueError, "query must have known chunk sizes ... got chunks ((1"),
    ({"key": KEY.rechunk({3: 4})}, ValueError, "key must have one chunk along ... got chunks (4"),
    ({"value": KEY.rechunk({2: 15})}, ValueError, "value must have the chunks of"),
    ({"key": KEY.rechunk({0: 2}), "value": KEY.rechunk({0: 2})}, ValueError, "key ... got (2,)"),
    ({"key": KEY.rechunk({1: 2}), "value": KEY.rechunk({1: 2})}, ValueError, "key ... got (2,)"),
    ({"value": KEY.rechunk({1: 2})}, ValueError, "value must have the chunks of ... got (2,)"),
    ({"query": QUERY.rechunk({1: (1, 2, 1)})}, ValueError, "query must have ... got chunks (1"),
    ({"key": KEY[..., :7]}, ValueError, "query and key must share head_dim ... got 8 and"),
    ({"mask": np.ones((20, 31), bool)}, ValueError, "mask must broadcast to ... got shape (20"),
    ({"mask": ones(20, 30, chunks=(5, 15), dtype=bool)}, ValueError, "mask must have ... got (15"),
    ({"mask": UNKNOWN[0, 0, :, :1] > 0}, ValueError, "mask must have known ... got chunks ((nan"),
    ({"mask": stack([SPARSE] * 3)}, ValueError, "mask must broadcast to (... ... got a sparse"),
    ({"precision": "int8"}, TypeError, "no argument precision ... leave it out: chunks are"),
    ({"window": (-1, 2)}, ValueError, "window must have sides of None ... got -1 on"),
    ({"split_every": 1}, ValueError, "split_every must be at least 2, got 1"),
]
GIVEN = [
    ({"grad_output": NUMPY}, TypeError, "grad_output must be a Dask array ... got ndarray"),
    ({"grad_output": OUTPUT.rechunk({2: 10})}, ValueError, "grad_output must have the"),
    ({"output": OUTPUT[0]}, ValueError, "output must have shape (2, 4 ... got shape (4"),
    ({"grad_lse": OUTPUT}, ValueError, "grad_lse must have shape (2, 4 ... got shape (2"),
]
OF_THE_GRAPH = ("query_offset", "key_lengths", "left_padding", "alibi_slopes", "sinks")
OF_THE_GRAPH += ("scale", "softcap", "distance_bias")


@each(CALLS)
def test_calls(wrong, error, parts):
    check(lambda: attend(wrong), error, parts)
    check(lambda: gradients_of(wrong), error, parts)


@each(GIVEN)
def test_gradients(wrong, error, parts):
    check(lambda: gradients_of(wrong), error, parts)


@pytest.mark.parametrize("name", OF_THE_GRAPH)
def test_options_that_the_graph_is_made_from(name):
    parts = f"{name} must be a number ... pass {name}.compute()"
    check(lambda: attend({name: da.ones(4, dtype=int)}), TypeError, parts)


def test_dropout_of_entries_that_are_not_consecutive():
    arrays = dict.fromkeys(ARRAYS, ENTRIES) | DRAWN
    check(lambda: attend(arrays), ValueError, "cut along their first batch axes for dropout")


def test_with_query_planning(output_of):
    """Dask's other kind of array, an experiment that is off by default, is refused."""
    pytest.importorskip("dask.array._array_expr")
    script = """
        import dask
        dask.config.set({"array.query-planning": True})
        try:
            import regard.dask
        except ImportError as error:
            print(error)
    """
    assert "set 'array.query-planning' to False" in output_of(script)


class Broken:
    """An array in a file that can no longer be read."""

    shape, dtype, ndim = (2, 2, 30, 8), np.dtype(np.float32), 4

    def __getitem__(self, index):
        raise OSError("closed")


def test_errors_of_reading_a_chunk_propagate():
    key = da.from_array(Broken(), chunks=(1, 1, 10, 8), meta=np.zeros((0,) * 4, np.float32))
    with dask.config.set(scheduler="synchronous"), pytest.raises(OSError, match="closed"):
        attend({"key": key}).compute()
