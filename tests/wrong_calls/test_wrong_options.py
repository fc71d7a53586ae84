"""Wrong values of the arguments that call families share: each row for every family that takes it.

A wrong value is refused whatever else is passed, before anything is written, and the next call
gives the same result."""

import inspect
import re

import numpy as np
import pytest

import regard
from data_kinds import normal
from messages import check, each

pytestmark = pytest.mark.usefixtures("silence")
BEYOND = 2**70


class Anything:
    pass


class Tensor:
    """A number of another library: it has a type and axes, but not NumPy's."""

    dtype, ndim, shape = "float32", 0, ()

    def __float__(self):
        return 2.0


def with_one(value):
    """Return one number per head, of which one is invalid."""
    return np.array([1.0, value, 1.0, 1.0])


QUERY, KEY, VALUE = normal(2, 4, 5, 8), normal(2, 2, 11, 8), normal(2, 2, 11, 6)
ARRAYS = {"query": QUERY, "key": KEY, "value": VALUE}
PAIR = {"query": QUERY, "key": KEY}
OUTPUT, LSE = regard.scaled_dot_product_attention(**ARRAYS, return_lse=True)
GIVEN = {"grad_output": OUTPUT, "output": OUTPUT, "lse": LSE}
TANGENTS = {f"tangent_{name}": array for name, array in ARRAYS.items()}
STARTS = {"query_starts": [0, 5, 10], "key_starts": [0, 11, 22]}
CACHE = regard.KVCache(2, 2, 8, 6)
CACHE.append(KEY, VALUE)
LAYER = regard.MultiHeadAttention(8, 4, num_kv_heads=2, rng=0)
LAYER_INPUT = normal(2, 11, 8)
PAGES = normal(6, 4, 2, 8)
TABLE = {"key_pages": PAGES, "value_pages": PAGES, "block_table": [[0, 1, 2], [3, 4, 5]]}
TABLE["lengths"] = [11, 11]


def packed(arrays):
    """Return the arrays of two sequences, one after the other."""
    return {name: np.concatenate(list(array.swapaxes(1, 2))) for name, array in arrays.items()}


PACKED, PACKED_GIVEN = packed(ARRAYS), packed({"grad_output": OUTPUT, "output": OUTPUT})
PACKED_GIVEN["lse"] = packed({"lse": LSE[..., None]})["lse"][..., 0]
LONG = normal(1, 2, 4, 11, 8)
ATTEND = regard.scaled_dot_product_attention
RAGGED = regard.scaled_dot_product_attention_ragged
EVERYTHING = {
    "mask": normal(5, 11),
    "window": (7, 3),
    "key_lengths": [11, 9],
    "left_padding": [0, 1],
    "query_offset": [6, 4],
    "is_causal": True,
    "scale": 0.5,
    "softcap": 5.0,
    "alibi_slopes": np.full(4, 0.25),
    "distance_bias": np.ones((4, 5)),
    "sinks": np.zeros(4),
    "dropout_p": 0.5,
    "dropout_seed": 1,
}
FAMILIES = {
    "attention": (ATTEND, ARRAYS),
    "everything returned": (ATTEND, ARRAYS | {"return_weights": True, "return_lse": True}),
    "everything passed": (ATTEND, ARRAYS | EVERYTHING),
    "no queries": (ATTEND, ARRAYS | {"query": QUERY[:, :, :0]}),
    "lists": (ATTEND, {name: array.tolist() for name, array in ARRAYS.items()}),
    "halves": (ATTEND, {name: array.astype(np.float16) for name, array in ARRAYS.items()}),
    "backward of no queries": (
        regard.scaled_dot_product_attention_backward,
        {n: x[:, :, : 0 if n not in ("key", "value") else 11] for n, x in (ARRAYS | GIVEN).items()},
    ),
    "backward": (regard.scaled_dot_product_attention_backward, ARRAYS | GIVEN),
    "jvp": (regard.scaled_dot_product_attention_jvp, ARRAYS | TANGENTS),
    "ragged": (RAGGED, PACKED | STARTS),
    "ragged backward": (
        regard.scaled_dot_product_attention_ragged_backward,
        PACKED | STARTS | PACKED_GIVEN,
    ),
    "explain": (regard.explain, ARRAYS),
    "stream": (regard.attend_stream, {"query": QUERY, "chunks": [(KEY, VALUE)]}),
    "summary": (regard.summarize_attention, PAIR),
    "ragged summary": (
        regard.summarize_attention_ragged,
        {"query": PACKED["query"], "key": PACKED["key"], **STARTS},
    ),
    "map": (regard.attention_map, PAIR),
    "rollout": (regard.rollout, {"query": LONG, "key": LONG[:, :, :2]}),
    "cache": (CACHE.attend, {"query": QUERY}),
    "explain of a cache": (CACHE.explain, {"query": QUERY}),
    "pages": (regard.paged_attention, {"query": QUERY} | TABLE),
    "layer": (LAYER, {"query": LAYER_INPUT}),
}


def call(**changes):
    return ATTEND(**ARRAYS | changes)


# The option, its value, the error, and parts of the message, which may differ in other families.
OPTIONS = [
    ("window", (1, 2, 3), ValueError, "window must be a pair (left, right), got 3 numbers"),
    ("window", (-1, 0), ValueError, "window must have sides of None ... got -1 on"),
    ("window", (BEYOND, 0), ValueError, "window's left must fit in"),
    ("window", (0, np.uint64(2**63)), ValueError, "window's right ... got 9223372036854775808"),
    ("window", 3, TypeError, "window must be a pair (left ... got int"),
    ("window", np.array(3), TypeError, "window must be a pair (left ... got numpy.ndarray"),
    ("window", (1, 2.5), TypeError, "window's right must be an integer, got float"),
    ("window", (True, 1), TypeError, "window's left must be an integer, got bool"),
    ("window", ((3, 3), (3, 3)), TypeError, "window must be a pair (left ... got ((3, 3)"),
    ("window", Anything(), TypeError, "window must be a pair (left ... got Anything"),
    ("key_lengths", -1, ValueError, "key_lengths must be from 0 to 11, got -1"),
    ("key_lengths", [3, 12], ValueError, "key_lengths must be from 0 to 11, got 12"),
    ("key_lengths", [1, 2, 3], ValueError, "key_lengths must be an integer or ... got shape (3,)"),
    ("key_lengths", np.array([0, 2**63], np.uint64), ValueError, "key_lengths"),
    ("key_lengths", [], ValueError, "key_lengths must be an integer or ... got shape (0,)"),
    ("key_lengths", "3", TypeError, "key_lengths must be an integer or ... got str"),
    ("key_lengths", True, TypeError, "key_lengths must be an integer or ... got bool"),
    ("key_lengths", Anything(), TypeError, "key_lengths must be an integer ... got numpy.ndarray"),
    ("left_padding", [3, 12], ValueError, "left_padding must be from 0 to 11, got 12"),
    ("query_offset", np.array([1, 2, 3]), ValueError, "query_offset must be an"),
    ("query_offset", BEYOND, ValueError, "query_offset must fit in"),
    ("query_offset", "start", ValueError, "query_offset must be an integer, an ... got 'start'"),
    ("query_offset", "\ud800", ValueError, "query_offset must be an integer, an ... got '\\ud800'"),
    ("softcap", 0, ValueError, "softcap must be greater than 0 ... got 0"),
    ("softcap", np.nan, ValueError, "softcap must be finite, got nan"),
    ("softcap", 10**400, ValueError, "softcap must fit in a float64, got a larger integer"),
    ("softcap", np.ones(3), ValueError, "softcap must have one number for ... got shape (3,)"),
    ("softcap", with_one(0.0), ValueError, "softcap must be greater than 0 ... got 0.0"),
    ("softcap", True, TypeError, "softcap must be a real number, got bool"),
    ("softcap", np.array(2.0, object), TypeError, "softcap must be a real ... got numpy.ndarray"),
    ("softcap", Anything(), TypeError, "softcap must be a real number, got numpy.ndarray"),
    ("softcap", Tensor(), TypeError, "softcap must be a real number, got numpy.ndarray"),
    ("scale", np.nan, ValueError, "scale must be finite, got nan"),
    ("scale", np.ones(15), ValueError, "scale must have one number for ... got shape (15,)"),
    ("scale", with_one(np.inf), ValueError, "scale must be finite, got inf"),
    ("distance_bias", np.ones((3, 5)), ValueError, "distance_bias must have one ... got shape (3"),
    ("distance_bias", np.ones((4, 4)), ValueError, "distance_bias must have an ... got shape (4"),
    ("distance_bias", np.ones((3, 4, 5)), ValueError, "distance_bias must have ... got shape (3"),
    ("distance_bias", 0.5, ValueError, "distance_bias must have an odd number ... got shape ()"),
    ("alibi_slopes", np.ones(3), ValueError, "alibi_slopes must have one ... got shape (3,)"),
    ("alibi_slopes", with_one(np.nan), ValueError, "alibi_slopes must be finite, got nan"),
    ("alibi_slopes", with_one(-np.inf).astype("f2"), ValueError, "alibi_slopes must ... got -inf"),
    ("alibi_slopes", [[1.0], [2.0, 3.0]], ValueError, "alibi_slopes must be a number or"),
    ("alibi_slopes", np.ones(4, complex), TypeError, "alibi_slopes must be an ... got an array"),
    ("sinks", np.ones(3), ValueError, "sinks must have one number for ... got shape (3,)"),
    ("sinks", np.ones((2, 4)), ValueError, "sinks must have one number for ... got shape (2"),
    ("sinks", with_one(np.nan), ValueError, "sinks must be finite or -inf, got nan"),
    ("sinks", np.ones(4, "M8[s]"), TypeError, "sinks must be an array of ... got an array"),
    ("score_function", 3, TypeError, "score_function must be a regard.ScoreFunction ... got int"),
    ("score_function", abs, TypeError, "score_function must be"),
    ("mask", np.ones((5, 12), bool), ValueError, "mask must broadcast to (... ... got shape (5"),
    ("mask", np.ones((5, 11), int), TypeError, "mask must be bool (True = ... got int64"),
    ("mask", np.ones((5, 11), complex), TypeError, "mask must be an array of ... got complex128"),
    ("mask", [[1] * 11] * 5, TypeError, "mask must be ... got int64 ... use mask.astype(bool) if"),
    ("mask", np.ma.ones((5, 11)), TypeError, "mask must be a ... got a ... pass .filled(...) and"),
    ("mask", (None, normal(5, 11)), TypeError, "mask must be a bool array ... got a pair"),
    ("mask", (np.ones(11, bool), np.ones(11, bool)), TypeError, "mask must be a ... got a pair"),
    ("dropout_p", 1.0, ValueError, "dropout_p must be at least 0 and less than 1, got 1.0"),
    ("dropout_p", np.nan, ValueError, "dropout_p must be at least 0 and less than 1, got nan"),
    ("dropout_seed", -1, ValueError, "dropout_seed must be from 0 to 2**64 - 1, got -1"),
    ("dropout_seed", 2**64, ValueError, "dropout_seed must be from 0"),
    ("dropout_seed", 1.0, TypeError, "dropout_seed must be an integer, got float"),
    ("dropout_seed", True, TypeError, "dropout_seed must be an integer, got bool"),
    ("dropout_origin", 5, TypeError, "dropout_origin must be three integers (entry ... got int"),
    ("dropout_origin", (1, 2), ValueError, "dropout_origin must be three ... got 2 elements"),
    ("dropout_origin", (1, 2.0, 3), TypeError, "the head of dropout_origin must be ... got float"),
    ("dropout_origin", (-1, 0, 0), ValueError, "the entry of dropout_origin must not ... got -1"),
    ("dropout_origin", (0, 0, 2**63), ValueError, "the position of ... got 9223372036854775808"),
    ("precision", "fp8", ValueError, "precision must be None, 'int8' or 'bfloat16', got 'fp8'"),
    ("precision", "\ud800", ValueError, "precision must be None, 'int8' or ... got '\\ud800'"),
    ("precision", 8, TypeError, "precision must be None, 'int8' or 'bfloat16', got int"),
    ("is_causal", 1, TypeError, "is_causal must be True or False, got int"),
    ("return_lse", 1, TypeError, "return_lse must be True or False, got int"),
    ("return_weights", None, TypeError, "return_weights must be True or False, got NoneType"),
    ("threads", 0, ValueError, "threads must be at least 1, got 0"),
    ("threads", BEYOND, ValueError, "threads must fit in 64 bits, got 1180591620717411303424"),
    ("threads", True, TypeError, "threads must be an integer, got bool"),
    ("zzz", 1, TypeError, "no argument zzz ... its arguments are query, key, value, mask"),
    ("is_casual", True, TypeError, "no argument is_casual ... did you mean is_causal=?"),
]
BAD_ARRAYS = {
    "None": None,
    "a text": "ab",
    "complex": np.ones((2, 4), complex),
    "objects": np.ones((2, 4), object),
    "dates": np.ones((2, 4), "M8[s]"),
    "records": np.zeros((2, 4), [("x", "f4")]),
    "two bytes": np.zeros((2, 4), "V2"),  # as many as bfloat16's
    "texts": [["a", "b"]],
    "a masked array": np.ma.ones((2, 4)),
    "an uneven list": [[1.0], [1.0, 2.0]],
    "anything": Anything(),
    "one number": np.float32(1),
}
if np.dtype(np.longdouble) != np.float64:
    BAD_ARRAYS["long doubles"] = np.ones((2, 4), np.longdouble)
OPTIONAL = [(family, "lse") for family in ("summary", "ragged summary", "map")]
OPTIONAL += [(family, "grad_lse") for family in FAMILIES if "backward" in family]
OPTIONAL += [("layer", "key"), ("layer", "value")]
ROLES = ("query", "key", "value", *GIVEN, "grad_lse", *TANGENTS, "key_pages", "value_pages")


def of_family(names):
    """Return the pairs of a family and one of these arguments that it takes."""
    pairs = []
    for family, (function, _) in FAMILIES.items():
        known = inspect.signature(function).parameters
        pairs += [(family, name) for name in names if name in known or name in ("zzz", "is_casual")]
    return pairs


def refuse(family, name, rows, **more):
    """Check that the family refuses the values, and computes the same afterwards."""
    function, good = FAMILIES[family]
    good = good | more
    wanted = function(**good)
    for value, errors in rows:
        with pytest.raises(errors) as raised:
            function(**good | {name: value})
        assert re.search(rf"\b{name}\b", str(raised.value)), (name, value)
    np.testing.assert_equal(function(**good), wanted)


@each([((name, value), *rest) for name, value, *rest in OPTIONS])
def test_the_message(wrong, error, parts):
    name, value = wrong
    out = np.full(OUTPUT.shape, 7, np.float32)
    check(lambda: call(**{name: value}, out=out), error, parts)
    assert (out == 7).all()


@pytest.mark.parametrize(("family", "name"), of_family(dict.fromkeys(row[0] for row in OPTIONS)))
def test_every_family_refuses(family, name):
    refuse(family, name, [(value, error) for known, value, error, _ in OPTIONS if known == name])


@pytest.mark.parametrize(("family", "name"), of_family(ROLES))
def test_every_family_refuses_what_is_no_array_of_numbers(family, name):
    """Layers and rollout check the axes before the type."""
    is_optional = name.startswith("tangent") or (family, name) in OPTIONAL
    either = (TypeError, ValueError) if family in ("layer", "rollout") else TypeError
    rows = [
        (bad, ValueError if kind in ("an uneven list", "one number") else either)
        for kind, bad in BAD_ARRAYS.items()
        if bad is not None or not is_optional
    ]
    more = {"key": LAYER_INPUT} if (family, name) == ("layer", "value") else {}
    refuse(family, name, rows, **more)
