"""Test invalid values of each option: the class of the error, and a message that names the option,
what was passed and what is needed. `out` is unchanged, and nothing is printed."""

import numpy as np
import pytest

import regard
from element_types import each_in_one_type
from messages import says
from option_cases import MIXES
from reference import assert_same_bits

sdpa = regard.scaled_dot_product_attention
pytestmark = pytest.mark.usefixtures("silence")
BEYOND = 2**70


class Anything:
    pass


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def call(**changes):
    """Call with sizes that are all different: batch 2, 14 heads of 7, 5 queries, 11 keys."""
    arguments = {
        "query": normal(2, 14, 5, 64),
        "key": normal(2, 7, 11, 64),
        "value": normal(2, 7, 11, 32),
    }
    return sdpa(**arguments | changes)


def with_one(value, *, heads=14):
    """Return one number per head, of which one is invalid."""
    numbers = np.zeros(heads)
    numbers[3] = value
    return numbers


# The option, its value, and the numbers and words that the message must contain in addition to the
# option's name.
RANGES = [
    ("window", (), ""),
    ("window", (1,), "1"),
    ("window", (1, 2, 3), "3"),
    ("window", (-1, 0), "-1"),
    ("window", (0, -7), "-7"),
    ("window", [None, -1], "-1"),
    ("window", (np.int8(-1), 0), "-1"),
    ("window", (-BEYOND, 0), ""),
    ("window", (BEYOND, 0), ""),
    ("window", (0, 2**63), "9223372036854775808"),
    ("window", (0, np.uint64(2**63)), "9223372036854775808"),
    ("window", (0, -(2**63)), ""),
    ("key_lengths", -1, "-1"),
    ("key_lengths", 12, "12 11"),
    ("key_lengths", [3, 12], "12 11"),
    ("key_lengths", np.array([-2, 11]), "-2"),
    ("key_lengths", [1, 2, 3], "3 2"),
    ("key_lengths", np.ones((2, 14), int), "2 14"),
    ("key_lengths", np.ones((3, 2), int), "3 2"),
    ("key_lengths", [[3], [4]], "2 1 pass"),
    ("query_offset", np.ones((2, 1), int), "2 1 pass"),
    ("key_lengths", BEYOND, ""),
    ("key_lengths", -(2**63), ""),
    ("key_lengths", np.array([0, 2**63], np.uint64), ""),
    ("key_lengths", [BEYOND, 1], str(BEYOND)),
    ("key_lengths", (3, -BEYOND), str(-BEYOND)),
    ("key_lengths", [], "0 2"),
    ("key_lengths", (), "0 2"),
    ("key_lengths", [[], []], "2 0"),
    ("query_offset", np.array([1, 2, 3]), "3 2"),
    ("query_offset", np.ones((2, 14), int), "2 14"),
    ("query_offset", BEYOND, ""),
    ("query_offset", "start", "'start' 'end'"),
    ("query_offset", "", "'end'"),
    ("query_offset", "\ud800", "'end'"),
    ("query_offset", [BEYOND, 1], str(BEYOND)),
    ("query_offset", [[1], [-BEYOND]], str(-BEYOND)),
    ("query_offset", [], "0 2"),
    ("softcap", 0, "0"),
    ("softcap", 0.0, "0"),
    ("softcap", -0.0, ""),
    ("softcap", -30.0, "-30"),
    ("softcap", np.nan, "nan"),
    ("softcap", np.inf, "inf"),
    ("softcap", -np.inf, "-inf"),
    ("softcap", 10**400, ""),
    ("softcap", np.ones(3), "3 14"),
    ("softcap", [30.0, 20.0], "2 14"),
    ("softcap", np.ones((3, 14)), "3 14"),
    ("softcap", with_one(1.0), "0"),
    ("softcap", 1 - with_one(2.0), "-1"),
    ("softcap", with_one(np.nan), "nan"),
    ("scale", np.ones(15), "15 14"),
    ("scale", (0.5, 1.0), "2 14"),
    ("scale", np.ones((14, 1)), "14 1"),
    ("scale", with_one(np.inf), "inf"),
    ("distance_bias", np.ones((13, 5)), "13 5 14"),
    ("distance_bias", np.ones((14, 4)), "odd 14 4"),
    ("distance_bias", np.ones((14, 0)), "odd 14 0"),
    ("distance_bias", np.ones((3, 14, 5)), "3 14 5"),
    ("distance_bias", np.ones(14), "odd 14"),
    ("distance_bias", 0.5, "odd"),
    ("alibi_slopes", np.ones(13), "13 14"),
    ("alibi_slopes", np.ones(7), "7 14"),
    ("alibi_slopes", np.ones(1), "1 14"),
    ("alibi_slopes", np.ones(0), "0 14"),
    ("alibi_slopes", np.ones((3, 14)), "3 14"),
    ("alibi_slopes", np.ones((2, 1, 14)), "2 1 14"),
    ("alibi_slopes", np.ones((2, 1)), "2 1"),
    ("alibi_slopes", np.ones((14, 1)), "14 1"),
    ("alibi_slopes", 0.5, "14"),
    ("alibi_slopes", with_one(np.nan), "nan"),
    ("alibi_slopes", with_one(np.inf), "inf"),
    ("alibi_slopes", with_one(-np.inf).astype(np.float16), "-inf"),
    ("alibi_slopes", [[1.0], [2.0, 3.0]], ""),
    ("sinks", np.ones(15), "15 14"),
    ("sinks", np.ones(7), "7 14"),
    ("sinks", np.ones(1), "1 14"),
    ("sinks", np.ones((2, 14)), "2 14"),
    ("sinks", 1.0, "14"),
    ("sinks", with_one(np.nan), "nan"),
    ("sinks", with_one(np.inf), "inf"),
    ("sinks", [[1.0], [2.0, 3.0]], ""),
]
KINDS = [
    ("window", 3, ""),
    ("window", np.array(3), ""),
    ("window", np.int64(3), ""),
    ("window", 3.0, ""),
    ("window", True, ""),
    ("window", "12", ""),
    ("window", b"12", ""),
    ("window", (1.0, 2.0), ""),
    ("window", (1, 2.5), ""),
    ("window", ("1", 2), ""),
    ("window", (None, np.float32(1)), ""),
    ("window", np.array([1.0, 2.0]), ""),
    ("window", np.array([[1], [2]]), "numpy.ndarray"),
    ("window", ([1], 2), "list"),
    ("window", Anything(), ""),
    ("key_lengths", 1.0, ""),
    ("key_lengths", np.float32(3), ""),
    ("key_lengths", np.array([1.0, 2.0]), "float64"),
    ("key_lengths", "3", ""),
    ("key_lengths", (1, None), ""),
    ("key_lengths", [BEYOND, None], "object"),
    ("key_lengths", np.array([1, 2], object), "object"),
    ("key_lengths", np.array([]), "float64"),
    ("key_lengths", [1, 2.5], "float64"),
    ("key_lengths", Anything(), ""),
    ("query_offset", 1.5, ""),
    ("query_offset", (1, None), ""),
    ("query_offset", np.zeros((2, 0)), "float64"),
    ("softcap", "30", ""),
    ("softcap", 1j, ""),
    ("softcap", np.ones(14, bool), "bool"),
    ("softcap", ["30"] * 14, ""),
    ("softcap", Anything(), ""),
    ("scale", np.ones(14, complex), "complex128"),
    ("scale", [None] * 14, ""),
    ("distance_bias", "ab", ""),
    ("distance_bias", np.ones((14, 5), bool), "bool"),
    ("distance_bias", np.ones((14, 5), complex), "complex128"),
    ("distance_bias", Anything(), ""),
    ("score_function", 3, "regard.ScoreFunction int"),
    ("score_function", lambda scores: scores, "regard.ScoreFunction function"),
    ("score_function", Anything(), "regard.ScoreFunction"),
    ("alibi_slopes", "ab", ""),
    ("alibi_slopes", np.ones(14, complex), "complex128"),
    ("alibi_slopes", np.ones(14, object), "object"),
    ("alibi_slopes", np.ones(14).astype(str), ""),
    ("alibi_slopes", [1j] * 14, ""),
    ("alibi_slopes", Anything(), ""),
    ("sinks", "ab", ""),
    ("sinks", np.ones(14, complex), "complex128"),
    ("sinks", np.ones(14, "M8[s]"), ""),
    ("sinks", [None] * 14, ""),
    ("sinks", Anything(), ""),
]
# The same integers for left_padding.
for table in (RANGES, KINDS):
    table += [("left_padding", *row[1:]) for row in table if row[0] == "key_lengths"]

REFUSED = [
    pytest.param(error, name, value, [name, *words.split()], id=f"{name}-{i}-{str(value)[:20]}")
    for error, table in ((ValueError, RANGES), (TypeError, KINDS))
    for i, (name, value, words) in enumerate(table)
]


@pytest.mark.parametrize(("error", "name", "value", "words"), REFUSED)
def test_refused(error, name, value, words):
    with pytest.raises(error, match=says(*words)):
        call(**{name: value})
    out = np.full((2, 14, 5, 32), 7, np.float32)
    extra = {"return_weights": True, "return_lse": True, "is_causal": True}
    with pytest.raises(error, match=says(name)):
        call(**{name: value}, **extra, out=out)
    assert (out == 7).all()


@pytest.mark.parametrize(("error", "name", "value", "words"), REFUSED)
def test_refused_without_anything_to_compute(error, name, value, words):
    """Neither an empty result nor an input that Python converts first skips a check."""
    empty = normal(2, 14, 0, 64)
    with pytest.raises(error, match=says(name)):
        call(**{name: value}, query=empty)
    with pytest.raises(error, match=says(name)):
        call(**{name: value}, query=normal(2, 14, 5, 64).tolist())
    halves = {
        k: normal(*s).astype(np.float16)
        for k, s in (("query", (2, 14, 5, 64)), ("key", (2, 7, 11, 64)), ("value", (2, 7, 11, 32)))
    }
    with pytest.raises(error, match=says(*words)):
        call(**{name: value}, **halves)


def test_an_empty_list_is_one_of_no_batch_entries():
    inputs = [normal(0, 14, 5, 64), normal(0, 7, 11, 64), normal(0, 7, 11, 32)]
    output = sdpa(*inputs, key_lengths=[], query_offset=())
    assert output.shape == (0, 14, 5, 32)


WRONG = {
    "window": ((1, -1), ValueError),
    "key_lengths": (-1, ValueError),
    "left_padding": (-1, ValueError),
    "query_offset": (0.5, TypeError),
    "scale": (np.nan, ValueError),
    "softcap": (0.0, ValueError),
    "alibi_slopes": (np.ones(99), ValueError),
    "distance_bias": (np.ones((99, 3)), ValueError),
    "sinks": (np.ones(99), ValueError),
    "mask": (np.ones((3, 4, 5, 6, 7, 8), bool), ValueError),
}


@each_in_one_type(MIXES, "storage")
def test_one_wrong_option_among_right_ones(case, storage):
    """Whatever else is requested, the message is about the invalid option."""
    problem = case.build(storage)
    wanted = sdpa(*problem.arrays, **problem.options)
    out = np.full(wanted.shape, 7, storage)
    for name in WRONG.keys() & problem.options.keys():
        value, error = WRONG[name]
        with pytest.raises(error, match=says(name)):
            sdpa(*problem.arrays, **problem.options | {name: value}, out=out, return_lse=True)
        assert (out == 7).all()
    assert_same_bits(sdpa(*problem.arrays, **problem.options, out=out), wanted)


@pytest.mark.parametrize("role", ["query", "key", "value", "mask"])
def test_other_small_types_are_refused(role):
    """float16 and bfloat16 are accepted; the other types of ml_dtypes are not."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    shapes = {"query": (2, 14, 5, 64), "key": (2, 7, 11, 64), "value": (2, 7, 11, 32)}
    shapes["mask"] = (5, 11)
    for name in ("float8_e4m3fn", "float8_e5m2", "int4"):
        array = np.ones(shapes[role], getattr(ml_dtypes, name))
        with pytest.raises(TypeError, match=says(role, name)):
            call(**{role: array})


def test_two_bytes_are_not_bfloat16():
    """A void type of the same size is not a number."""
    query = np.zeros((2, 14, 5, 64), "V2")
    with pytest.raises(TypeError, match=says("query")):
        call(query=query)


@pytest.mark.parametrize("wrong", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("right", ["float16", "bfloat16", "float32", "float64"])
def test_out_has_the_type_of_the_result(right, wrong):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    right, wrong = (np.dtype(getattr(ml_dtypes, n, n)) for n in (right, wrong))
    inputs = [normal(*s).astype(right) for s in ((14, 5, 64), (7, 11, 64), (7, 11, 32))]
    out = np.full((14, 5, 32), 7, wrong)
    if right == wrong:
        assert sdpa(*inputs, out=out) is out
        assert not (out == 7).all()
        return
    with pytest.raises(TypeError, match=says("out", right.name, wrong.name)):
        sdpa(*inputs, out=out)
    assert (out == 7).all()


@pytest.mark.parametrize("name", ["alibi_slopes", "sinks"])
def test_out_over_slopes_or_sinks(name, dtype):
    """The call is refused, or the result is right. It never fails silently."""
    inputs = [normal(*s).astype(dtype) for s in ((14, 5, 64), (7, 11, 64), (7, 11, 32))]
    memory = np.full((14, 5, 32), 0.25, dtype)
    numbers = memory[:, 0, 0]
    wanted = sdpa(*inputs, **{name: numbers.copy()})
    try:
        sdpa(*inputs, **{name: numbers}, out=memory)
    except ValueError:
        wanted = np.full_like(memory, 0.25)
    assert_same_bits(memory, wanted)


class Tensor:
    """A tensor of another library: it has a type and axes, but not NumPy's."""

    dtype, ndim, shape = "float32", 0, ()

    def __float__(self):
        return 2.0


@pytest.mark.parametrize("option", ["scale", "softcap"])
@pytest.mark.parametrize(
    "value",
    [
        *(True, np.True_, "2", b"2", 2j, Tensor()),
        *(np.complex64(2), np.str_("2"), np.datetime64(2, "s"), np.void(b"12")),
        *(np.array(2, bool), np.array(2.0, object)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_real_number(option, value):
    x = np.ones((5, 8), np.float32)
    with pytest.raises(TypeError, match=f"^{option} must be a real number, got .*"):
        sdpa(x, x, x, **{option: value})


@pytest.mark.parametrize("name", ["complex32", "bcomplex32"])
def test_complex_numbers_of_small_types_are_refused(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    if not hasattr(ml_dtypes, name):
        pytest.skip("this ml_dtypes has no complex types")
    number = getattr(ml_dtypes, name)(2)
    x = np.ones((5, 8), np.float32)
    with pytest.raises(TypeError, match=r"^scale must be a real number"):
        sdpa(x, x, x, scale=number)
    with pytest.raises(TypeError, match=r"^base must be a real number"):
        regard.positional.rotary(x, base=number)


@pytest.mark.parametrize("resized", ["query", "key", "value"])
@pytest.mark.parametrize(
    "option", ["query_offset", "key_lengths", "left_padding", "threads", "window"]
)
def test_a_number_that_resizes_an_array_while_it_is_read(option, resized):
    """Reading options runs Python code. Whatever this code does to the arrays, the call computes
    with the arrays as they are afterwards, or refuses them."""
    arrays = {name: normal(300, 64) for name in ("query", "key", "value")}

    class Number:
        def __index__(self):
            arrays[resized].resize((0, 64), refcheck=False)
            return 1

        def __array__(self, dtype=None, copy=None):
            return np.array(self.__index__())

    number = (Number(), None) if option == "window" else Number()
    if resized == "query":
        assert sdpa(**arrays, **{option: number}).shape == (0, 64)
    else:
        with pytest.raises(ValueError, match=resized):
            sdpa(**arrays, **{option: number})
