"""Test invalid arguments of attend_stream and KeyValueChunks: the message names the argument, what
was passed and what is needed."""

import re
import sys

import numpy as np
import pytest

import regard

QUERY = np.zeros((2, 5, 8))
KEY, VALUE = np.zeros((2, 30, 8)), np.zeros((2, 30, 3))
PAIR = (KEY, VALUE)
CUT = regard.KeyValueChunks(KEY, VALUE, length=10)


def unread():
    """Fail on the first request: this iterable must not be read."""
    raise AssertionError("a chunk was requested")
    yield


def refused(error, message, query, chunks, mask=None, **options):
    with pytest.raises(error) as raised:
        regard.attend_stream(query, chunks, mask, **options)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("query", "mask", "message"),
    [
        (QUERY, np.ones((6, 30), bool), "= (2, 5, 30), got shape (6, 30)"),
        (QUERY[..., :7], None, "got 7 and 8 (shapes (2, 5, 7) and (2, 30, 8))"),
    ],
)
def test_messages_show_the_shapes_of_the_caller(query, mask, message):
    """This holds if the number of keys is known."""
    refused(ValueError, message, query, [(KEY, VALUE)], mask)


# These errors are raised before any chunk is requested.
@pytest.mark.parametrize(
    ("error", "message", "options"),
    [
        (TypeError, "is_causal must be", {"is_causal": None}),
        (TypeError, "return_lse must be True or False, got int", {"return_lse": 1}),
        (TypeError, "window must be a pair", {"window": 3}),
        (ValueError, "window must have sides of None or at least 0", {"window": (-1, 0)}),
        (ValueError, "query_offset must be", {"query_offset": "start"}),
        (ValueError, "query_offset='end' needs key_lengths here", {"query_offset": "end"}),
        (TypeError, "query_offset must be an int or an integer array", {"query_offset": 0.5}),
        (ValueError, "query_offset must fit in 64 bits", {"query_offset": 2**63}),
        (ValueError, "query_offset must fit in 64", {"query_offset": np.array([2**63], "u8")}),
        (ValueError, "key_lengths must be at least 0, got -1", {"key_lengths": [3, -1]}),
        (TypeError, "key_lengths must be an int or an integer array", {"key_lengths": True}),
        (ValueError, "left_padding must be at least 0, got -2", {"left_padding": -2}),
        (ValueError, "softcap must be greater than 0", {"softcap": -1.0}),
        (ValueError, "scale must be finite", {"scale": np.nan}),
        (ValueError, "scale must be finite", {"scale": [np.inf, 1.0]}),
        (ValueError, "scale must have one number for every query head", {"scale": [1.0] * 3}),
        (ValueError, "softcap must be greater than 0, or inf", {"softcap": [0.0, 1.0]}),
        (ValueError, "alibi_slopes must have one number for every", {"alibi_slopes": [1.0]}),
        (ValueError, "distance_bias must have an odd number", {"distance_bias": np.ones(4)}),
        (ValueError, "distance_bias must have one row for", {"distance_bias": np.ones((3, 5))}),
        (TypeError, "score_function must be a regard.ScoreFunction", {"score_function": 3}),
        (ValueError, "sinks must have one number for every query head", {"sinks": [1.0]}),
        (TypeError, "dropout_p needs dropout_seed", {"dropout_p": 0.5}),
        (ValueError, "dropout_p must be at least 0", {"dropout_p": 1.0, "dropout_seed": 1}),
        (ValueError, "dropout_origin must be three integers", {"dropout_origin": (1, 2)}),
        (ValueError, "threads must be", {"threads": 0}),
        (TypeError, "out must be an array, got list", {"out": [1.0]}),
        (TypeError, "mask must be bool (True = may attend) or float", {"mask": np.ones(30, int)}),
        (TypeError, "got a pair (bool, bool)", {"mask": (np.ones(30, bool), np.ones(30, bool))}),
        (TypeError, "mask must be a plain array", {"mask": np.ma.ones(30)}),
        (TypeError, "progress must be True, False or a function", {"progress": 3}),
        (TypeError, "no argument return_weights: leave it out", {"return_weights": True}),
        (TypeError, "no argument precision: leave it out: chunks", {"precision": "int8"}),
        (TypeError, "no argument device: leave it out: chunks", {"device": "cpu"}),
        (TypeError, "no argument attn_mask: pass mask=", {"attn_mask": None}),
        (TypeError, "pass chunks=regard.KeyValueChunks(key, value)", {"key": KEY}),
        (TypeError, "no argument is_casual: did you mean is_causal=?", {"is_casual": True}),
    ],
)
def test_options_are_refused_before_a_chunk_is_asked_for(error, message, options):
    refused(error, message, QUERY, unread(), **options)


@pytest.mark.parametrize(
    ("error", "message", "query"),
    [
        (ValueError, "query must have at least 2 dimensions", np.zeros(8)),
        (ValueError, "query must have at least 2 dimensions", 3.0),
        (TypeError, "query must be an array, got None", None),
        (TypeError, "query must be an array of float16", np.zeros((5, 8), complex)),
    ],
)
def test_queries_are_refused_before_a_chunk_is_asked_for(error, message, query):
    refused(error, message, query, unread())


@pytest.mark.parametrize(
    ("error", "message", "chunks"),
    [
        (TypeError, "chunks must be an iterable of pairs (key, value), got NoneType", None),
        (TypeError, "chunks must be an iterable of pairs (key, value), got float", 3.0),
        (ValueError, "chunks must contain at least one chunk", []),
        (TypeError, "chunk 0 must be a pair (key, value) or a triple", "ab"),
        (TypeError, "got an array of shape (2, 30, 8); for keys and values as two arrays", PAIR),
        (TypeError, "regard.KeyValueChunks(key, value)", np.zeros((2, 2, 30, 8))),
        (TypeError, "chunk 1 must be a pair (key, value) or a triple", [PAIR, (KEY,)]),
        (TypeError, "chunk 1: key must be an array, got None", [PAIR, (None, VALUE)]),
        (TypeError, "chunk 0: value must be a plain array", [(KEY, np.ma.zeros((2, 30, 3)))]),
        (ValueError, "chunk 1: value must be an array or a regular", [PAIR, (KEY, [[1], [1, 2]])]),
        (ValueError, "chunk 0: key must have at least 2 dimensions", [(KEY[0, 0], VALUE)]),
        (
            ValueError,
            "chunk 1: key and value must share kv_len, got 30 and 29",
            [PAIR, (KEY, VALUE[:, 1:])],
        ),
        (
            ValueError,
            "chunk 1: key must have shape (2, kv_len, 8) as in chunk 0, got (2, 30, 7)",
            [PAIR, (KEY[..., 1:], VALUE)],
        ),
        (ValueError, "chunk 2: key must have shape (2, kv_len, 8)", [PAIR, PAIR, (KEY[:1], VALUE)]),
        (
            ValueError,
            "chunk 1: value must have shape (2, kv_len, 3)",
            [PAIR, (KEY, VALUE[..., 1:])],
        ),
        (ValueError, "chunk 1: key must have shape (2, kv_len, 8)", [PAIR, (KEY[None], VALUE)]),
        (
            TypeError,
            "chunk 1: key must be of float64 as in chunk 0, got float32",
            [PAIR, (KEY.astype("f4"), VALUE)],
        ),
        (TypeError, "chunk 1: value must be of float64", [PAIR, (KEY, VALUE.astype("f4"))]),
        (TypeError, "chunk 0: key must be an array of float16", [(KEY.astype(complex), VALUE)]),
        (ValueError, "query and key must share head_dim, got 8 and 7", [(KEY[..., 1:], VALUE)]),
        (ValueError, "heads", [(np.zeros((3, 30, 8)), np.zeros((3, 30, 3)))]),
        (ValueError, "share kv_heads", [(KEY, VALUE[:1])]),
    ],
)
@pytest.mark.parametrize("kind", ["known", "iterator"])
def test_chunks(kind, error, message, chunks):
    """The chunks come from a sequence or from an iterator, in which the chunks before the bad one
    have been computed."""
    if kind == "iterator" and hasattr(chunks, "__iter__"):
        chunks = iter(chunks)
    refused(error, message, QUERY, chunks)


class Counted:
    """An array in a file that counts how often it is read."""

    def __init__(self, array):
        self.array, self.shape, self.dtype, self.reads = array, array.shape, array.dtype, 0

    def __getitem__(self, index):
        self.reads += 1
        return self.array[index]

    def __array__(self, dtype=None, copy=None):
        self.reads += 1
        return np.asarray(self.array, dtype)


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("key_lengths must be from 0 to 30, got 31", {"key_lengths": [3, 31]}),
        ("left_padding must be from 0 to 30, got 31", {"left_padding": 31}),
        ("key_lengths must be an integer or broadcast to the batch axes", {"key_lengths": [3, 30]}),
        ("query_offset must be an integer or broadcast", {"query_offset": [3, 30]}),
        ("alibi_slopes must have one number for every", {"alibi_slopes": np.ones((3, 2))}),
        ("scale must have one number for every query head", {"scale": np.ones((3, 2))}),
        ("distance_bias must have one row for", {"distance_bias": np.ones((3, 2, 5))}),
        ("mask must have as many columns as there are keys, 30, or 1", {"mask": np.zeros(29)}),
        ("mask must", {"mask": np.zeros((4, 30))}),
        ("out must have shape (2, 5, 3), got (2, 5, 8)", {"out": np.zeros((2, 5, 8))}),
        (
            "out must have a separate element for every result",
            {"out": np.lib.stride_tricks.as_strided(np.zeros(9), (2, 5, 3), (0, 0, 8))},
        ),
        ("out must be writeable", {"out": np.broadcast_to(0.0, (2, 5, 3))}),
    ],
)
def test_nothing_is_read_of_arrays_that_do_not_fit(message, options):
    key, value = Counted(KEY), Counted(VALUE)
    refused(ValueError, message, QUERY, regard.KeyValueChunks(key, value, length=10), **options)
    assert key.reads == value.reads == 0


def test_types_of_out():
    out = np.zeros((2, 5, 3), np.float32)
    refused(
        TypeError, "out must be an array of float64, got an array of float32", QUERY, CUT, out=out
    )


def test_out_overlaps_no_input():
    memory = np.zeros((2, 40, 8))
    query, key, out = memory[:, :5], memory[:, 5:35], memory[:, 3:8]
    for chunks in (regard.KeyValueChunks(key, key), iter([(key, key)])):
        refused(ValueError, "out must not overlap chunk 0", QUERY, chunks, out=out)
    refused(ValueError, "out must not overlap query", query, [(KEY, KEY)], out=out)
    mask = memory.reshape(-1)[:30]
    refused(ValueError, "out must not overlap mask", QUERY, [(KEY, KEY)], mask, out=memory[:, :5])
    assert not memory.any()


def test_keys_that_end_early():
    cut = list(CUT)
    message = (
        "key_lengths must be from 0 to 30, the number of keys in the 3 chunks received, got 31"
    )
    refused(ValueError, message, QUERY, iter(cut), key_lengths=31)
    refused(ValueError, "left_padding must be from 0 to 20", QUERY, iter(cut[:2]), left_padding=21)
    for mask in (np.zeros((5, 31)), np.ones(31, bool), (np.ones(31, bool), np.zeros(30))):
        refused(
            ValueError,
            "mask must have as many columns as there are keys, 30",
            QUERY,
            iter(cut),
            mask,
        )


def test_keys_beyond_the_mask():
    for mask in (np.zeros((5, 29)), (np.ones(30, bool), np.zeros(29))):
        message = "got shape (5, 29), and chunk 2 holds keys 20 to 29"
        message = message if isinstance(mask, np.ndarray) else "got shape (29,), and chunk 2"
        refused(ValueError, message, QUERY, iter(list(CUT)), mask)


@pytest.mark.parametrize(
    ("error", "message", "mask"),
    [
        (ValueError, "chunk 1: mask must have as many columns as there are keys, 10", np.zeros(9)),
        (TypeError, "chunk 1: mask must be bool", np.zeros(10, int)),
        (ValueError, "chunk 1: mask", np.zeros((4, 10))),
    ],
)
def test_masks_of_chunks(error, message, mask):
    first, second, _ = CUT
    for chunks in ([first, (*second, mask)], iter([first, (*second, mask)])):
        refused(error, message, QUERY, chunks)


def test_two_masks():
    first, second, _ = CUT
    chunks = [first, (*second, np.ones(10, bool))]
    refused(TypeError, "chunk 1: mask must be None", QUERY, chunks, np.ones(20, bool))


def test_the_number_of_the_chunk_counts_hidden_ones():
    first, second, _ = CUT
    bad = [first, second, (KEY, VALUE[..., 1:])]
    refused(ValueError, "chunk 2: value", QUERY, iter(bad), left_padding=20)


def test_a_bar_without_tqdm(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    refused(ImportError, "pip install tqdm", QUERY, unread(), progress=True)


@pytest.mark.parametrize(
    ("error", "message", "arguments", "options"),
    [
        (ValueError, "key and value must share kv_len, got 30 and 29", (KEY, VALUE[:, 1:]), {}),
        (ValueError, "key must have at least 2 dimensions", (KEY[0, 0], VALUE), {}),
        (TypeError, "value must be an array, got None", (KEY, None), {}),
        (TypeError, "key must be a plain array", (np.ma.zeros((30, 8)), VALUE), {}),
        (ValueError, "length must be at least 1, got 0", PAIR, {"length": 0}),
        (TypeError, "length must be an int, got float", PAIR, {"length": 2.5}),
        (TypeError, "no argument chunk_length: pass length=", PAIR, {"chunk_length": 3}),
    ],
)
def test_key_value_chunks(error, message, arguments, options):
    with pytest.raises(error, match=re.escape(message)):
        regard.KeyValueChunks(*arguments, **options)


class OnGpu:
    def __dlpack_device__(self):
        return 2, 0


def test_arrays_on_a_gpu():
    refused(TypeError, "query must be in the host's memory", OnGpu(), unread())
    refused(TypeError, "chunk 0: key must be in the host's memory", QUERY, [(OnGpu(), VALUE)])
    refused(TypeError, "mask must be in the host's memory", QUERY, unread(), OnGpu())
