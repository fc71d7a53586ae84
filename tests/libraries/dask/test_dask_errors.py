"""Bad arguments of the calls on Dask arrays raise the right error, which names the argument and the
remedy, before any chunk is computed."""

import importlib.util
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("dask.array", reason='pip install ".[dask]"')

import dask
import dask.array as da

import regard.dask

attend = regard.dask.scaled_dot_product_attention
gradients_of = regard.dask.scaled_dot_product_attention_backward


@pytest.fixture(autouse=True)
def nothing_is_computed():
    def refuse(*arguments, **options):
        raise AssertionError("something was computed")

    with dask.config.set(scheduler=refuse):
        yield


def ones(*shape, chunks, dtype=np.float32):
    return da.ones(shape, chunks=chunks, dtype=dtype)


QUERY = ones(2, 4, 20, 8, chunks=(1, 2, 5, 8))
KEY = ones(2, 2, 30, 8, chunks=(1, 1, 10, 8))
UNKNOWN = QUERY[:, :, QUERY[0, 0, :, 0] > 0]
NUMPY = np.ones((2, 4, 20, 8))
ENTRIES = ones(4, 4, 2, 20, 8, chunks=(2, 2, 2, 20, 8))
OUTPUT, LSE = attend(QUERY, KEY, KEY, return_lse=True)

ARRAYS = {
    "NumPy": ((NUMPY, KEY, KEY), TypeError, r"query must be a Dask array, got ndarray: pass dask"),
    "a list": ((QUERY, [[1.0]], KEY), TypeError, "key must be a Dask array, got list"),
    "None": ((QUERY, KEY, None), TypeError, "value must be a Dask array, got NoneType"),
    "masked": (
        (da.ma.masked_greater(QUERY, 2), KEY, KEY),
        TypeError,
        "query must have chunks that are plain NumPy arrays, got chunks of MaskedArray",
    ),
    "complex": ((QUERY.astype(complex), KEY, KEY), TypeError, "query must be an array of float16"),
    "unknown": (
        (UNKNOWN, KEY, KEY),
        ValueError,
        r"query must have known chunk sizes, .*query\.compute_chunk_sizes\(\)",
    ),
    "head_dim": (
        (QUERY, KEY.rechunk({3: 4}), KEY),
        ValueError,
        r"key must have one chunk along head_dim, got chunks \(4, 4\): .*key\.rechunk\({-1: -1}\)",
    ),
    "value_dim": (
        (QUERY, KEY, KEY.rechunk({3: 4})),
        ValueError,
        r"value must have one chunk along value_dim, got chunks \(4, 4\)",
    ),
    "kv_len": (
        (QUERY, KEY, KEY.rechunk({2: 15})),
        ValueError,
        r"value must have the chunks of key along kv_len, \(10, 10, 10\), got \(15, 15\)",
    ),
    "batch": (
        (QUERY, KEY.rechunk({0: 2}), KEY.rechunk({0: 2})),
        ValueError,
        r"key must have the chunks of query along axis -4, \(1, 1\), got \(2,\): pass key\.rechunk",
    ),
    "batch of value": (
        (QUERY, KEY, KEY.rechunk({0: 2})),
        ValueError,
        r"value must have the chunks of query along axis -4",
    ),
    "kv_heads": (
        (QUERY, KEY.rechunk({1: 2}), KEY.rechunk({1: 2})),
        ValueError,
        r"key must have chunks \(1, 1\) along kv_heads, since query has chunks \(2, 2\) along",
    ),
    "kv_heads of value": (
        (QUERY, KEY, KEY.rechunk({1: 2})),
        ValueError,
        r"value must have the chunks of key along kv_heads, \(1, 1\), got \(2,\)",
    ),
    "groups": (
        (QUERY.rechunk({1: (1, 2, 1)}), KEY, KEY),
        ValueError,
        r"query must have chunks along heads that contain whole groups of 2 heads, .*\(1, 2, 1\)",
    ),
    "shapes": (
        (QUERY, KEY[..., :7], KEY),
        ValueError,
        r"query and key must share head_dim, got 8 and 7 \(shapes \(2, 4, 20, 8\) and",
    ),
    "one axis": ((QUERY[0, 0, 0], KEY, KEY), ValueError, "query must have at least 2 dimensions"),
    "layout": (
        (ones(2, 20, 4, 8, chunks=-1), *[ones(2, 30, 2, 8, chunks=-1)] * 2),
        ValueError,
        r"heads of query must be a multiple .*pass query\.swapaxes\(-3, -2\)",
    ),
}
MASKS = {
    "integers": (np.ones((20, 30), int), TypeError, "mask must be bool .* or float .*got int64"),
    "Dask integers": (ones(20, 30, chunks=10, dtype=int), TypeError, "mask must be bool"),
    "shape": (
        np.ones((20, 31), bool),
        ValueError,
        r"mask must broadcast to shape \(2, 4, 20, 30\)",
    ),
    "axes": (
        np.ones((1, 2, 4, 20, 30), bool),
        ValueError,
        r"mask must broadcast to shape \(2, 4, 20, 30\), got shape \(1, 2, 4, 20, 30\)",
    ),
    "keys": (
        ones(20, 30, chunks=(5, 15), dtype=bool),
        ValueError,
        r"mask must have the chunks \(10, 10, 10\) of the other arrays along axis -1, got \(15, 15",
    ),
    "queries": (
        ones(20, 30, chunks=(20, 10), dtype=bool),
        ValueError,
        r"mask must have the chunks \(5, 5, 5, 5\) .*pass mask\.rechunk\({-2: \(5, 5, 5, 5\)}\)",
    ),
    "unknown": (
        UNKNOWN[0, 0, :, :1] > 0,
        ValueError,
        r"mask must have known chunk sizes, .*mask\.compute_chunk_sizes\(\)",
    ),
    "pair": ((np.ones(30), np.ones(30)), TypeError, r"a pair \(bool, float\) of both, got a pair"),
}
OPTIONS = {
    "return_weights": (True, TypeError, "has no argument return_weights"),
    "precision": ("int8", TypeError, "has no argument precision"),
    "device": ("cuda", TypeError, "has no argument device"),
    "out": (NUMPY, TypeError, "has no argument out"),
    "attn_mask": (None, TypeError, "has no argument attn_mask: pass mask="),
    "window": ((-1, 2), ValueError, "window must have sides of None or at least 0"),
    "dropout_p": (0.5, TypeError, "dropout_p needs dropout_seed"),
    "sinks": (np.ones(3), ValueError, "sinks must have one number for every query head"),
    "alibi_slopes": (np.ones(3), ValueError, "alibi_slopes must have one number"),
    "scale": (np.ones(3), ValueError, r"scale must have one number for every .*\(3,\)"),
    "softcap": ([0.0] * 4, ValueError, "softcap must be greater than 0, or inf"),
    "distance_bias": (np.ones((3, 5)), ValueError, r"distance_bias must have one row .*\(3, 5\)"),
    "score_function": (
        None,
        TypeError,
        "no argument score_function: .* workers in other processes",
    ),
    "key_lengths": ([31, 2], ValueError, "key_lengths must be from 0 to 30, got 31"),
    "left_padding": ([1, 2, 3], ValueError, "left_padding must be an integer or broadcast"),
    "query_offset": ("start", ValueError, "query_offset must be an integer"),
    "threads": (0, ValueError, "threads must be at least 1, got 0"),
    "split_every": (1, ValueError, "split_every must be at least 2, got 1"),
}
DASK_OPTIONS = ("query_offset", "key_lengths", "left_padding", "alibi_slopes", "sinks")
DASK_OPTIONS += ("scale", "softcap", "distance_bias")
GIVEN = {
    "grad_output": (NUMPY, TypeError, "grad_output must be a Dask array, got ndarray"),
    "output": (OUTPUT[0], ValueError, r"output must have shape \(2, 4, 20, 8\), got shape \(4, 20"),
    "lse": (LSE[..., :19], ValueError, r"lse must have shape \(2, 4, 20\), got shape \(2, 4, 19\)"),
    "grad_lse": (OUTPUT, ValueError, r"grad_lse must have shape \(2, 4, 20\)"),
    "with_respect_to": ("query", TypeError, "must be an iterable of names, got the string"),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_arrays(case):
    arrays, kind, message = ARRAYS[case]
    with pytest.raises(kind, match=message):
        attend(*arrays)
    with pytest.raises(kind, match=message):
        gradients_of(OUTPUT, *arrays, OUTPUT, LSE)


@pytest.mark.parametrize("case", MASKS)
def test_masks(case):
    mask, kind, message = MASKS[case]
    with pytest.raises(kind, match=message):
        attend(QUERY, KEY, KEY, mask)
    with pytest.raises(kind, match=message):
        gradients_of(OUTPUT, QUERY, KEY, KEY, OUTPUT, LSE, mask)


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name):
    value, kind, message = OPTIONS[name]
    with pytest.raises(kind, match=message):
        attend(QUERY, KEY, KEY, **{name: value})
    with pytest.raises(kind, match=message):
        gradients_of(OUTPUT, QUERY, KEY, KEY, OUTPUT, LSE, **{name: value})


@pytest.mark.parametrize("name", DASK_OPTIONS)
def test_options_that_the_graph_is_made_from(name):
    with pytest.raises(TypeError, match=rf"{name} must be a number .*pass {name}\.compute\(\)"):
        attend(QUERY, KEY, KEY, **{name: da.ones(4, dtype=int)})


def test_dropout_of_entries_that_are_not_consecutive():
    with pytest.raises(ValueError, match="cut along their first batch axes for dropout"):
        attend(ENTRIES, ENTRIES, ENTRIES, dropout_p=0.5, dropout_seed=1)


@pytest.mark.parametrize("name", GIVEN)
def test_arguments_of_the_backward_call(name):
    value, kind, message = GIVEN[name]
    given = {"grad_output": OUTPUT, "output": OUTPUT, "lse": LSE} | {name: value}
    with pytest.raises(kind, match=message):
        gradients_of(query=QUERY, key=KEY, value=KEY, **given)


def test_chunks_of_the_backward_call():
    other = OUTPUT.rechunk({2: 10})
    message = r"grad_output must have the chunks \(5, 5, 5, 5\) of the other arrays along axis -2"
    with pytest.raises(ValueError, match=message):
        gradients_of(other, QUERY, KEY, KEY, OUTPUT, LSE)


@pytest.mark.parametrize(
    ("name", "mask", "kind", "message"),
    [
        ("quer", None, ValueError, "must contain names from query, key, value, .*got 'quer'"),
        ("mask", None, ValueError, "contains 'mask', but the call has no mask"),
        ("mask", np.ones((20, 30), bool), TypeError, "a bool mask has no gradient"),
        ("sinks", None, ValueError, "contains 'sinks', but the call has no sinks"),
        ("alibi_slopes", None, ValueError, "contains 'alibi_slopes', but the call has no"),
        ("distance_bias", None, ValueError, "contains 'distance_bias', but the call has no"),
    ],
)
def test_gradients_that_do_not_exist(name, mask, kind, message):
    with pytest.raises(kind, match=message):
        gradients_of(OUTPUT, QUERY, KEY, KEY, OUTPUT, LSE, mask, with_respect_to=(name,))


def test_without_dask():
    """`import regard` does not import Dask, and `import regard.dask` says how to install it."""
    script = """if True:
        import sys
        import regard
        assert not {"dask", "distributed", "regard.dask"} & set(sys.modules)
        sys.modules["dask"] = None
        try:
            import regard.dask
        except ImportError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert (
        done.stdout.strip()
        == 'regard.dask needs the dask package: in a clone of regard, pip install ".[dask]"'
    )


@pytest.mark.skipif(
    importlib.util.find_spec("dask.array._array_expr") is None, reason="this Dask has no other kind"
)
def test_with_query_planning():
    """Dask's other kind of array, an experiment that is off by default, is refused."""
    script = """if True:
        import dask
        dask.config.set({"array.query-planning": True})
        try:
            import regard.dask
        except ImportError as error:
            print(error)
    """
    printed = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert "set 'array.query-planning' to False" in printed


class Broken:
    """An array in a file that can no longer be read."""

    shape, dtype, ndim = (2, 2, 30, 8), np.dtype(np.float32), 4

    def __getitem__(self, index):
        raise OSError("closed")


def test_errors_of_reading_a_chunk_propagate():
    key = da.from_array(Broken(), chunks=(1, 1, 10, 8), meta=np.zeros((0,) * 4, np.float32))
    with dask.config.set(scheduler="synchronous"), pytest.raises(OSError, match="closed"):
        attend(QUERY, key, KEY).compute()
