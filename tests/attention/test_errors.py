"""Test invalid arguments: the class of the error, and a message that names the argument, what was
passed and what is needed. `out` is unchanged, and nothing is printed."""

import numpy as np
import pytest

import regard
from messages import says

sdpa = regard.scaled_dot_product_attention


pytestmark = pytest.mark.usefixtures("silence")


def normal(*shape, dtype=np.float32):
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def call(**changes):
    """Call with a problem whose sizes are all different, with changes."""
    arguments = {
        "query": normal(2, 14, 5, 64),
        "key": normal(2, 7, 11, 64),
        "value": normal(2, 7, 11, 32),
    }
    return sdpa(**arguments | changes)


class Anything:
    pass


def kinds():
    """Yield arrays of unsupported dtypes, and the names of these dtypes in messages."""
    one = np.ones((2, 7, 11, 64))
    yield one.astype(np.complex64), "complex64"
    yield one.astype(np.complex128), "complex128"
    yield one.astype(object), "object"
    yield one.astype("datetime64[s]"), "datetime64[s]"
    yield one.astype("timedelta64[s]"), "timedelta64[s]"
    yield one.astype(str), None
    yield one.astype(bytes), None
    yield np.zeros(one.shape, [("x", "f4")]), None
    if np.dtype(np.longdouble) != np.float64:
        yield one.astype(np.longdouble), str(np.dtype(np.longdouble))
    yield Anything(), None
    yield None, None
    yield [["a", "b"], ["c", "d"]], None


DTYPES = [
    pytest.param(array, word, id=word or type(array).__name__ + str(getattr(array, "dtype", "")))
    for array, word in kinds()
]


@pytest.mark.parametrize("role", ["query", "key", "value"])
@pytest.mark.parametrize(("array", "word"), DTYPES)
def test_wrong_dtype_of_an_array(role, array, word):
    with pytest.raises(TypeError, match=says(role, *([word] if word else []))):
        call(**{role: array})


@pytest.mark.parametrize(("array", "word"), DTYPES)
def test_wrong_dtype_in_a_stage(array, word):
    good = normal(2, 7, 64, 11)
    words = [word] if word else []
    with pytest.raises(TypeError, match=says("a", *words)):
        regard.matmul(array, good)
    with pytest.raises(TypeError, match=says("b", *words)):
        regard.matmul(good, array)
    with pytest.raises(TypeError, match=says("scores", *words)):
        regard.scale(array, 2.0)
    with pytest.raises(TypeError, match=says("scores", *words)):
        regard.apply_mask(array, np.ones(1, bool))
    with pytest.raises(TypeError, match=says("x", *words)):
        regard.softmax(array)


@pytest.mark.parametrize("dtype", ["int64", "int8", "uint8"])
def test_integer_mask_is_told_which_to_use(dtype):
    mask = np.ones((5, 11), dtype)
    for attempt in (lambda: call(mask=mask), lambda: regard.apply_mask(normal(5, 11), mask)):
        with pytest.raises(TypeError, match=says("mask", dtype, "bool", "float")):
            attempt()
    with pytest.raises(TypeError, match=says("mask", "bool", "float")):
        call(mask=[[1] * 11] * 5)


@pytest.mark.parametrize("dtype", ["complex128", "object", "datetime64[s]", "U1", "S1"])
def test_mask_of_a_wrong_kind(dtype):
    mask = np.ones((5, 11)).astype(dtype)
    for attempt in (lambda: call(mask=mask), lambda: regard.apply_mask(normal(5, 11), mask)):
        with pytest.raises(TypeError, match=says("mask")):
            attempt()


SHAPES = {
    "query-0d": ({"query": np.float32(1)}, ["query"]),
    "query-1d": ({"query": normal(64)}, ["query", "64"]),
    "key-1d": ({"key": normal(64)}, ["key", "64"]),
    "value-1d": ({"value": normal(32)}, ["value", "32"]),
    "head-dim": ({"key": normal(2, 7, 11, 48)}, ["query", "key", "head_dim", "64", "48"]),
    "head-dim-of-one": ({"key": normal(2, 7, 11, 1)}, ["query", "key", "head_dim", "64", "1"]),
    "head-dim-zero": (
        {"query": normal(2, 14, 5, 0), "key": normal(2, 7, 11, 0)},
        ["head_dim", "0"],
    ),
    "kv-len": ({"value": normal(2, 7, 13, 32)}, ["key", "value", "kv_len", "11", "13"]),
    "kv-len-of-one": ({"value": normal(2, 7, 1, 32)}, ["key", "value", "kv_len", "11", "1"]),
    "kv-heads": ({"value": normal(2, 14, 11, 32)}, ["key", "value", "7", "14"]),
    "heads-no-multiple": ({"query": normal(2, 16, 5, 64)}, ["query", "key", "16", "7"]),
    "heads-fewer": ({"query": normal(2, 1, 5, 64)}, ["query", "key", "1", "7"]),
    "heads-of-none": (
        {"key": normal(2, 0, 11, 64), "value": normal(2, 0, 11, 32)},
        ["query", "key", "14", "0"],
    ),
    "batch-query-key": ({"query": normal(3, 14, 5, 64)}, ["query", "key", "3", "2"]),
    "batch-value": ({"value": normal(4, 7, 11, 32)}, ["value", "4", "2"]),
    "mask-kv-len": ({"mask": np.ones((5, 12), bool)}, ["mask", "5", "12", "11"]),
    "mask-q-len": ({"mask": np.ones((6, 11))}, ["mask", "6", "11", "5"]),
    "mask-heads": ({"mask": np.ones((2, 7, 5, 11), bool)}, ["mask", "7", "14"]),
    "mask-batch": ({"mask": np.ones((3, 1, 5, 11), bool)}, ["mask", "3", "2"]),
    "offset-shape": (
        {"is_causal": True, "query_offset": np.array([1, 2, 3])},
        ["query_offset", "3", "2"],
    ),
    "offset-with-heads": (
        {"is_causal": True, "query_offset": np.ones((2, 14), int)},
        ["query_offset", "2", "14"],
    ),
    "threads-zero": ({"threads": 0}, ["threads", "0"]),
    "threads-negative": ({"threads": -3}, ["threads", "-3"]),
    "scale-nan": ({"scale": np.nan}, ["scale", "nan"]),
    "scale-beyond-floats": ({"scale": 10**400}, ["scale"]),
    "query-ragged": ({"query": [[1.0, 2.0], [3.0]]}, ["query"]),
    "scale-of-few-heads": ({"scale": np.ones(3)}, ["scale", "(14,)", "(2, 14)", "(3,)"]),
}
KINDS = {
    "threads-float": ({"threads": 1.5}, ["threads"]),
    "threads-string": ({"threads": "2"}, ["threads"]),
    "scale-string": ({"scale": "small"}, ["scale"]),
    "scale-complex": ({"scale": 1j}, ["scale"]),
    "scale-complex-array": ({"scale": np.ones(14, complex)}, ["scale", "complex128"]),
    "offset-float": ({"is_causal": True, "query_offset": 1.5}, ["query_offset"]),
    "offset-float-array": (
        {"is_causal": True, "query_offset": np.array([1.0, 2.0])},
        ["query_offset", "float64"],
    ),
    "offset-none": ({"is_causal": True, "query_offset": None}, ["query_offset"]),
    "mask-int": ({"mask": np.ones((5, 11), int)}, ["mask"]),
    "mask-pair-none": ({"mask": (None, normal(5, 11))}, ["mask", "pair", "None", "float32"]),
    "mask-list-of-both": (
        {"mask": [normal(5, 11) > 0, normal(5, 11)]},
        ["mask", "pair", "list of arrays of both types", "tuple"],
    ),
    "mask-pair-bools": (
        {"mask": (np.ones((5, 11), bool), np.ones((1, 11), bool))},
        ["mask", "pair (bool, float)", "pair (bool, bool)"],
    ),
}
REFUSED = [
    pytest.param(error, *entry, id=name)
    for error, table in ((ValueError, SHAPES), (TypeError, KINDS))
    for name, entry in table.items()
]


@pytest.mark.parametrize(("error", "changes", "words"), REFUSED)
def test_refused(error, changes, words):
    with pytest.raises(error, match=says(*words)):
        call(**changes)
    out = np.full((2, 14, 5, 32), 7, np.float32)
    with pytest.raises(error):
        call(**changes, out=out, return_weights=True, return_lse=True)
    assert (out == 7).all()


@pytest.mark.parametrize("dtype", [bool, np.float32])
@pytest.mark.parametrize(
    ("shape", "remedy"),
    [
        ((2, 11), "mask[:, None, None, :]"),
        ((2, 5, 11), "mask[:, None, :, :]"),
        ((3, 11), None),
        ((2, 12), None),
        ((2, 14), None),
        ((2, 7, 11), None),
        ((2, 14, 11), None),
        ((1, 2, 11), None),
    ],
    ids=str,
)
def test_a_mask_without_its_inner_axes_is_told_how_to_get_them(shape, remedy, dtype):
    mask = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    if mask.dtype != bool:
        mask *= dtype(0.5)  # a float mask of zeros and ones would cause a warning
    with pytest.raises(ValueError, match=says("mask", *map(str, shape), "2", "14", "5", "11")) as e:
        call(mask=mask)
    assert str(e.value).endswith(f"pass {remedy}" if remedy else f"got shape {shape}")
    if remedy:
        entries = [call(mask=mask[b], **one(b)) for b in range(2)]
        assert np.array_equal(call(mask=eval(remedy, {"mask": mask})), entries)
    with pytest.raises(ValueError, match=says("mask")) as e:
        sdpa(normal(2, 1, 14, 5, 64), normal(7, 11, 64), normal(7, 11, 32), mask)
    assert "pass" not in str(e.value)


def one(entry):
    """Return the arrays of one batch entry of `call`."""
    shapes = {"query": (2, 14, 5, 64), "key": (2, 7, 11, 64), "value": (2, 7, 11, 32)}
    return {name: normal(*shape)[entry] for name, shape in shapes.items()}


def test_offset_is_checked_without_causality_too():
    with pytest.raises(TypeError, match="query_offset"):
        call(query_offset=0.5)
    with pytest.raises(ValueError, match="query_offset"):
        call(query_offset=np.array([1, 2, 3]))


def test_integers_beyond_64_bits():
    for offset in (2**63, 2**70, -(2**70), np.array([0, 2**63], np.uint64)):
        with pytest.raises(ValueError, match="query_offset"):
            call(is_causal=True, query_offset=offset)
    with pytest.raises(ValueError, match="threads"):
        call(threads=2**70)


def test_options_are_named():
    with pytest.raises(TypeError):
        sdpa(normal(3, 4), normal(3, 4), normal(3, 4), None, True)
    with pytest.raises(TypeError, match="dropout"):
        call(dropout=0.1)
    with pytest.raises(TypeError):
        sdpa(normal(3, 4), normal(3, 4))


@pytest.mark.parametrize(
    ("out", "error", "words"),
    [
        (np.zeros((2, 14, 5, 31), np.float32), ValueError, ["out", "31", "32"]),
        (np.zeros((14, 5, 32), np.float32), ValueError, ["out", "14", "5", "32", "2"]),
        (np.zeros((1, 2, 14, 5, 32), np.float32), ValueError, ["out", "1", "2", "14", "5", "32"]),
        (np.zeros((2, 14, 5, 32), np.float64), TypeError, ["out", "float64", "float32"]),
        (np.zeros((2, 14, 5, 32), np.int32), TypeError, ["out", "int32", "float32"]),
        ([[0.0]], TypeError, ["out", "list"]),
    ],
    ids=["value-dim", "rank-3", "rank-5", "float64", "int32", "list"],
)
def test_wrong_out(out, error, words):
    with pytest.raises(error, match=says(*words)):
        call(out=out)
    assert not np.any(out)


def test_read_only_out():
    out = np.full((2, 14, 5, 32), 7, np.float32)
    out.setflags(write=False)
    square = np.full((6, 6), 7, np.float32)
    square.setflags(write=False)
    x = normal(6, 6)
    for attempt in (
        lambda: call(out=out),
        lambda: regard.matmul(x, x, out=square),
        lambda: regard.scale(x, 2.0, out=square),
        lambda: regard.apply_mask(x, x > 0, out=square),
        lambda: regard.softmax(x, out=square),
    ):
        with pytest.raises(ValueError, match=r"\bout\b"):
            attempt()
    assert (out == 7).all()
    assert (square == 7).all()


OVERLAPS = {
    "same": lambda buffer: (buffer[:144], buffer[:144]),
    "shifted": lambda buffer: (buffer[:144], buffer[1:145]),
    "last-element": lambda buffer: (buffer[:144], buffer[143:287]),
    "reversed": lambda buffer: (buffer[:144], buffer[143::-1]),
    "reversed-from-beyond": lambda buffer: (buffer[:144], buffer[200:56:-1]),
    "strided": lambda buffer: (buffer[:144], buffer[:288:2]),
}


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("role", ["query", "key", "value", "mask"])
def test_out_over_an_input(role, overlap, storage, target):
    buffer = normal(300, dtype=storage)
    inputs = {name: normal(12, 12, dtype=storage) for name in ("query", "key", "value", "mask")}
    shared, out = OVERLAPS[overlap](buffer)
    inputs[role], out = shared.reshape(12, 12), out.reshape(12, 12)
    before = buffer.copy()
    with pytest.raises(ValueError, match=says("out", role)):
        sdpa(**inputs, out=out)
    assert np.array_equal(buffer, before)


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_out_of_a_stage_over_an_input(overlap, dtype, target):
    buffer = normal(300, dtype=dtype)
    shared, out = (x.reshape(12, 12) for x in OVERLAPS[overlap](buffer))
    assert np.shares_memory(shared, out)
    other, before = normal(12, 12, dtype=dtype), buffer.copy()
    attempts = [
        lambda: regard.matmul(shared, other, out=out),
        lambda: regard.matmul(other, shared, out=out),
    ]
    if overlap != "same":
        attempts += [
            lambda: regard.scale(shared, 2.0, out=out),
            lambda: regard.apply_mask(shared, other > 0, out=out),
            lambda: regard.apply_mask(other, shared, out=out),
            lambda: regard.softmax(shared, out=out),
            lambda: regard.softmax(shared, axis=0, out=out),
        ]
    for attempt in attempts:
        with pytest.raises(ValueError, match=r"\bout\b"):
            attempt()
        assert np.array_equal(buffer, before)


def test_transposed_out_is_not_in_place(target):
    x = normal(12, 12)
    before = x.copy()
    for attempt in (
        lambda: regard.scale(x, 2.0, out=x.T),
        lambda: regard.apply_mask(x, x > 0, out=x.T),
        lambda: regard.softmax(x, out=x.T),
    ):
        with pytest.raises(ValueError, match=r"\bout\b"):
            attempt()
    assert np.array_equal(x, before)


STAGES = {
    "matmul-inner": (lambda **o: regard.matmul(normal(5, 64), normal(48, 7), **o), "a b 64 48"),
    "matmul-inner-1d": (lambda **o: regard.matmul(normal(64), normal(48), **o), "a b 64 48"),
    "matmul-batch": (
        lambda **o: regard.matmul(normal(2, 5, 64), normal(3, 64, 7), **o),
        "a b 2 3",
    ),
    "matmul-0d-a": (lambda **o: regard.matmul(np.float32(1), normal(5), **o), "a"),
    "matmul-0d-b": (lambda **o: regard.matmul(normal(5), np.float32(1), **o), "b"),
    "mask-shape": (
        lambda **o: regard.apply_mask(normal(5, 11), np.ones((5, 12), bool), **o),
        "mask scores 11 12",
    ),
    "axis": (lambda **o: regard.softmax(normal(5, 11), axis=2, **o), "axis 2"),
    "axis-negative": (lambda **o: regard.softmax(normal(5, 11), axis=-3, **o), "axis -3"),
    "threads-matmul": (lambda **o: regard.matmul(normal(5, 6), normal(6, 7), threads=0), "threads"),
    "threads-scale": (lambda **o: regard.scale(normal(5), 2.0, threads=-1), "threads"),
    "threads-mask": (lambda **o: regard.apply_mask(normal(5), normal(5), threads=0), "threads"),
    "threads-softmax": (lambda **o: regard.softmax(normal(5), threads=0), "threads"),
}


@pytest.mark.parametrize("name", STAGES)
def test_stage_refuses_shapes_and_ranges(name):
    attempt, words = STAGES[name]
    with pytest.raises(ValueError, match=says(*words.split())):
        attempt()
    out = np.full((5, 7), 7, np.float32)
    with pytest.raises(ValueError):  # noqa: PT011 - either argument may be named
        attempt(out=out)
    assert (out == 7).all()


@pytest.mark.parametrize(
    ("attempt", "word"),
    [
        (lambda: regard.softmax(normal(5, 11), axis=0.5), "axis"),
        (lambda: regard.scale(normal(5), "big"), "factor"),
        (lambda: regard.scale(normal(5), 1j), "factor"),
        (lambda: regard.scale(normal(5), None), "factor"),
        (lambda: regard.softmax(normal(5), threads=1.5), "threads"),
        (lambda: regard.set_num_threads("2"), None),
        (lambda: regard.set_num_threads(1.5), None),
    ],
)
def test_stage_refuses_kinds(attempt, word):
    with pytest.raises(TypeError, match=word):
        attempt()


@pytest.mark.parametrize("shape", [(5, 8), (7, 5), (35,), (1, 5, 7)], ids=str)
def test_stage_refuses_out(shape):
    x, y, mask = normal(5, 7), normal(7, 7), np.ones((5, 7), bool)
    calls = [
        lambda out: regard.matmul(x, y, out=out),
        lambda out: regard.scale(x, 2.0, out=out),
        lambda out: regard.apply_mask(x, mask, out=out),
        lambda out: regard.softmax(x, out=out),
    ]
    numbers = [str(n) for n in shape]
    for attempt in calls:
        out = np.full(shape, 7, np.float32)
        with pytest.raises(ValueError, match=says("out", *numbers, "5", "7")):
            attempt(out)
        assert (out == 7).all()
        out = np.full((5, 7), 7, np.float64)
        with pytest.raises(TypeError, match=says("out", "float64", "float32")):
            attempt(out)
        assert (out == 7).all()
        with pytest.raises(TypeError, match=says("out")):
            attempt([[0.0] * 7] * 5)


def test_a_refusal_leaves_the_library_working(target):
    wanted = call()
    for changes, _ in (*SHAPES.values(), *KINDS.values()):
        with pytest.raises((ValueError, TypeError)):
            call(**changes)
        assert np.array_equal(call(), wanted)
