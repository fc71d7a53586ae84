"""Test invalid arguments of the gradient calls: the class of the error, and a message that names
the argument, what was passed and what is needed. `out` is unchanged, and nothing is printed."""

import itertools
import re

import numpy as np
import pytest

import regard
from messages import says

pytestmark = pytest.mark.usefixtures("silence")
BEYOND = 2**70


def normal(*shape, dtype=np.float32):
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


# A problem whose sizes are all different: batch 2, 14 heads of 7, 5 queries, 11 keys.
GOOD = {
    "grad_output": normal(2, 14, 5, 32),
    "query": normal(2, 14, 5, 64),
    "key": normal(2, 7, 11, 64),
    "value": normal(2, 7, 11, 32),
}
GOOD["output"], GOOD["lse"] = regard.scaled_dot_product_attention(
    *list(GOOD.values())[1:], return_lse=True
)
SLOPES, SINKS, BIAS = np.full(14, 0.25), np.full(14, 0.5), normal(5, 11)
LIKE = {"query": GOOD["query"], "key": GOOD["key"], "value": GOOD["value"], "mask": BIAS}
LIKE |= {"alibi_slopes": SLOPES, "sinks": SINKS}
SHAPES_OF_BATCHES = (2, 14, 5, 32), (2, 14, 5)


def call(**changes):
    return regard.scaled_dot_product_attention_backward(**GOOD | changes)


def out(**arrays):
    return regard.AttentionGradients(
        *(arrays.get(name) for name in regard.AttentionGradients._fields)
    )


RANGES = {
    "grad-output-shape": ({"grad_output": normal(2, 14, 5, 31)}, "grad_output 31 32"),
    "grad-output-rank": ({"grad_output": normal(14, 5, 32)}, "grad_output 14 5 32 2"),
    "grad-output-broadcast": ({"grad_output": normal(1, 14, 5, 32)}, "grad_output 1 2"),
    "grad-output-of-keys": ({"grad_output": normal(2, 7, 11, 32)}, "grad_output 7 11 14 5"),
    "output-shape": ({"output": normal(2, 14, 5, 64)}, "output 64 32"),
    "output-rank": ({"output": normal(2, 14, 5)}, "output 2 14 5 32"),
    "output-heads": ({"output": normal(2, 7, 5, 32)}, "output 7 14"),
    "lse-shape": ({"lse": normal(2, 14, 11)}, "lse 11 5"),
    "lse-rank": ({"lse": normal(2, 14, 5, 1)}, "lse 2 14 5 1"),
    "lse-transposed": ({"lse": normal(2, 5, 14)}, "lse 2 5 14"),
    "grad-lse-shape": ({"grad_lse": normal(2, 14, 6)}, "grad_lse 6 5"),
    "grad-lse-rank": ({"grad_lse": normal(14, 5)}, "grad_lse 14 5 2"),
    "grad-lse-of-output": ({"grad_lse": normal(2, 14, 5, 32)}, "grad_lse 32"),
    "key-shape": ({"key": normal(2, 7, 11, 48)}, "query key head_dim 64 48"),
    "value-shape": ({"value": normal(2, 7, 12, 32)}, "key value kv_len 11 12"),
    "heads": ({"query": normal(2, 16, 5, 64)}, "query key 16 7"),
    "mask-shape": ({"mask": normal(5, 12)}, "mask 5 12 11"),
    "mask-gradient-of-none": ({"with_respect_to": ["mask"]}, "with_respect_to mask"),
    "slopes-gradient-of-none": (
        {"with_respect_to": ("query", "alibi_slopes")},
        "with_respect_to alibi_slopes",
    ),
    "sinks-gradient-of-none": ({"with_respect_to": {"sinks"}}, "with_respect_to sinks"),
    "unknown-name": ({"with_respect_to": ("query", "bias")}, "with_respect_to bias alibi_slopes"),
    "number-for-a-name": ({"with_respect_to": (0,)}, "with_respect_to 0 query"),
    "dropout-one": ({"dropout_p": 1.0, "dropout_seed": 1}, "dropout_p 1.0"),
    "dropout-beyond": ({"dropout_p": 1.5, "dropout_seed": 1}, "dropout_p 1.5"),
    "dropout-negative": ({"dropout_p": -0.1, "dropout_seed": 1}, "dropout_p -0.1"),
    "dropout-nan": ({"dropout_p": np.nan, "dropout_seed": 1}, "dropout_p nan"),
    "dropout-infinite": ({"dropout_p": np.inf, "dropout_seed": 1}, "dropout_p inf"),
    "seed-negative": ({"dropout_p": 0.5, "dropout_seed": -1}, "dropout_seed -1"),
    "seed-beyond": ({"dropout_p": 0.5, "dropout_seed": 2**64}, f"dropout_seed {2**64}"),
    "seed-far-beyond": ({"dropout_p": 0.5, "dropout_seed": BEYOND}, f"dropout_seed {BEYOND}"),
    "seed-without-dropout": ({"dropout_seed": -5}, "dropout_seed -5"),
    "window": ({"window": (-1, 0)}, "window -1"),
    "offset": ({"query_offset": [1, 2, 3]}, "query_offset 3 2"),
    "lengths": ({"key_lengths": 12}, "key_lengths 12 11"),
    "slopes": ({"alibi_slopes": np.ones(7)}, "alibi_slopes 7 14"),
    "sinks": ({"sinks": np.ones(13)}, "sinks 13 14"),
    "scale": ({"scale": np.nan}, "scale nan"),
    "softcap": ({"softcap": 0.0}, "softcap 0"),
    "threads": ({"threads": 0}, "threads 0"),
    "precision": ({"precision": "int8"}, "precision None bfloat16 int8"),
}
KINDS = {
    "grad-output-complex": ({"grad_output": GOOD["grad_output"] + 0j}, "grad_output complex64"),
    "grad-output-object": ({"grad_output": GOOD["grad_output"].astype(object)}, "grad_output"),
    "grad-output-none": ({"grad_output": None}, "grad_output"),
    "grad-output-text": ({"grad_output": "ones"}, "grad_output"),
    "output-complex": ({"output": GOOD["output"] + 0j}, "output complex64"),
    "output-wider": ({"output": GOOD["output"].astype(float)}, "output float64 float32"),
    "output-none": ({"output": None}, "output"),
    "lse-complex": ({"lse": GOOD["lse"] + 0j}, "lse complex64"),
    "lse-none": ({"lse": None}, "lse"),
    "lse-half": ({"lse": GOOD["lse"].astype("f2")}, "lse float32 float64 float16"),
    "lse-bool": ({"lse": GOOD["lse"] > 0}, "lse float32 float64 bool"),
    "lse-int": ({"lse": GOOD["lse"].astype(int)}, "lse float32 float64 int64"),
    "lse-list-of-ints": ({"lse": GOOD["lse"].astype(int).tolist()}, "lse float32 float64 int64"),
    "grad-lse-half": ({"grad_lse": GOOD["lse"].astype("f2")}, "grad_lse float32 float64 float16"),
    "grad-lse-complex": ({"grad_lse": GOOD["lse"] + 0j}, "grad_lse complex64"),
    "grad-lse-text": ({"grad_lse": "ones"}, "grad_lse"),
    "query-complex": ({"query": GOOD["query"] + 0j}, "query complex64"),
    "mask-int": ({"mask": np.ones((5, 11), int)}, "mask int64 bool float"),
    "mask-gradient-of-bool": (
        {"mask": np.ones((5, 11), bool), "with_respect_to": ["mask"]},
        "with_respect_to mask bool float",
    ),
    "names-as-a-string": ({"with_respect_to": "query"}, "with_respect_to query string"),
    "names-as-none": ({"with_respect_to": None}, "with_respect_to NoneType"),
    "names-as-a-number": ({"with_respect_to": 3}, "with_respect_to int"),
    "dropout-without-seed": ({"dropout_p": 0.1}, "dropout_p dropout_seed"),
    "dropout-text": ({"dropout_p": "0.1", "dropout_seed": 1}, "dropout_p"),
    "dropout-true": ({"dropout_p": True, "dropout_seed": 1}, "dropout_p bool"),
    "dropout-none": ({"dropout_p": None, "dropout_seed": 1}, "dropout_p"),
    "seed-float": ({"dropout_p": 0.1, "dropout_seed": 1.0}, "dropout_seed float"),
    "seed-text": ({"dropout_p": 0.1, "dropout_seed": "1"}, "dropout_seed str"),
    "seed-true": ({"dropout_p": 0.1, "dropout_seed": True}, "dropout_seed bool"),
    "seed-array": ({"dropout_p": 0.1, "dropout_seed": np.ones(2, int)}, "dropout_seed"),
    "window-int": ({"window": 3}, "window"),
    "threads-float": ({"threads": 1.5}, "threads"),
    "return-lse": ({"return_lse": True}, "return_lse"),
    "return-weights": ({"return_weights": True}, "return_weights"),
    "precision-number": ({"precision": 16}, "precision int8 bfloat16 int"),
    "attn-mask": ({"attn_mask": BIAS}, "attn_mask mask"),
    "bias": ({"bias": BIAS}, "bias mask"),
    "causal": ({"causal": True}, "causal is_causal"),
    "softmax-scale": ({"softmax_scale": 0.5}, "softmax_scale scale"),
    "seed": ({"seed": 5}, "seed"),
    "enable-gqa": ({"enable_gqa": True}, "enable_gqa"),
    "window-size": ({"window_size": (3, 0)}, "window_size window"),
    "dropout": ({"dropout": 0.1}, "dropout dropout_p"),
    "dropout-rate": ({"dropout_rate": 0.1}, "dropout_rate dropout_p"),
    "no-such-option": ({"no_such_option": 1}, "no_such_option"),
    "out-list": ({"out": [np.zeros((2, 14, 5, 64), "f4")]}, "out list"),
    "out-array": ({"out": np.zeros((2, 14, 5, 64), "f4")}, "out ndarray"),
    "out-short": ({"out": (np.zeros((2, 14, 5, 64), "f4"),) * 3}, "out tuple 3 AttentionGradients"),
    "out-text": ({"out": out(query="query")}, "out"),
}
REFUSED = [
    pytest.param(error, changes, words.split(), id=name)
    for error, table in ((ValueError, RANGES), (TypeError, KINDS))
    for name, (changes, words) in table.items()
]


@pytest.mark.parametrize(("error", "changes", "words"), REFUSED)
def test_refused(error, changes, words):
    with pytest.raises(error, match=says(*words)):
        call(**changes)
    if "out" not in changes:
        untouched = out(**{name: np.full_like(LIKE[name], 7) for name in ("query", "key", "value")})
        with pytest.raises(error):
            call(**changes, out=untouched)
        assert all((array == 7).all() for array in untouched[:3])


def everything(**changes):
    options = {"mask": BIAS, "alibi_slopes": SLOPES, "sinks": SINKS}
    return call(**options | {"with_respect_to": tuple(LIKE)} | changes)


@pytest.mark.parametrize("name", LIKE)
def test_wrong_out(name):
    """An array for a gradient is refused if its shape or type is wrong, or if it must not be
    written."""
    like = LIKE[name]
    other = np.float64 if like.dtype == np.float32 else np.float32
    read_only = np.full_like(like, 7)
    read_only.setflags(write=False)
    for wrong, error, words in [
        (np.full((*like.shape, 1), 7, like.dtype), ValueError, [*map(str, like.shape)]),
        (np.full(like.shape[1:], 7, like.dtype), ValueError, [*map(str, like.shape)]),
        (np.full((*like.shape[:-1], 3), 7, like.dtype), ValueError, ["3", str(like.shape[-1])]),
        (np.full(like.shape, 7, other), TypeError, [like.dtype.name, np.dtype(other).name]),
        (np.full(like.shape, 7, int), TypeError, [like.dtype.name, "int64"]),
        (like.tolist(), TypeError, ["list"]),
        (read_only, ValueError, []),
    ]:
        with pytest.raises(error, match=says("out", *words)):
            everything(out=out(**{name: wrong}))
        assert isinstance(wrong, list) or (wrong == 7).all()


@pytest.mark.parametrize("name", LIKE)
@pytest.mark.parametrize("role", ["grad_output", "query", "key", "value", "output", "lse", "mask"])
def test_out_over_an_input(name, role):
    """An overlap is refused before anything is written, or the result is right. It never fails
    silently."""
    wanted = everything()
    given = {n: x.copy() for n, x in (GOOD | {"mask": BIAS}).items()}
    given["alibi_slopes"], given["sinks"] = SLOPES.copy(), SINKS.copy()
    like = LIKE[name]
    # One block of memory, with the input at its start and the gradient over it.
    size = max(given[role].nbytes, like.nbytes)
    memory = np.zeros(size, np.uint8)
    shared = memory[: given[role].nbytes].view(given[role].dtype).reshape(given[role].shape)
    shared[...] = given[role]
    over = memory[: like.nbytes].view(like.dtype).reshape(like.shape)
    before = memory.copy()
    try:
        gradients = everything(**given | {role: shared}, out=out(**{name: over}))
    except ValueError as error:
        message = str(error)
    else:
        for gradient, right in zip(gradients, wanted, strict=True):
            assert np.array_equal(gradient, right)
        return
    assert np.array_equal(memory, before)
    assert re.match(says("out", role), message)


@pytest.mark.parametrize("first", [0, 1], ids=["aligned", "unaligned"])
@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(LIKE, 2)))
def test_two_gradients_in_one_place(one, other, first):
    bytes_ = np.full(2 * 14 * 11 * 64 * 8 + 1, 7, np.uint8)
    places = {n: bytes_[first:][: LIKE[n].nbytes].view(LIKE[n].dtype) for n in (one, other)}
    places = {name: place.reshape(LIKE[name].shape) for name, place in places.items()}
    message = f"out.{other} must not overlap out.{one}: two gradients cannot share memory"
    with pytest.raises(ValueError, match=re.escape(message)):
        everything(out=out(**places))
    assert (bytes_ == 7).all()


def test_a_type_that_numpy_has_not_of_itself():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for name in ("lse", "grad_lse"):
        with pytest.raises(TypeError, match=says(name, "float32", "float64", "bfloat16")):
            call(**{name: GOOD["lse"].astype(ml_dtypes.bfloat16)})


def test_options_of_gradients_are_named():
    with pytest.raises(TypeError):
        regard.scaled_dot_product_attention_backward(*GOOD.values(), None, True)
    with pytest.raises(TypeError):
        regard.scaled_dot_product_attention_backward(*list(GOOD.values())[:-1])


@pytest.mark.parametrize(
    "changes", [{"query": GOOD["query"].tolist()}, {"query": GOOD["query"][:, :, :0]}]
)
def test_refused_without_anything_to_compute(changes):
    """Neither an empty result nor an input that Python converts first skips a check."""
    rows = np.shape(changes["query"])[2]
    good = {"grad_output": normal(2, 14, rows, 32), "output": normal(2, 14, rows, 32)}
    good |= {"lse": normal(2, 14, rows)} | changes
    if isinstance(changes["query"], list):
        good["grad_output"] = good["grad_output"].tolist()
    call(**good)
    for wrong, error, words in [
        ({"grad_output": normal(2, 14, 3, 32)}, ValueError, "grad_output 3"),
        ({"lse": normal(2, 14, 3)}, ValueError, "lse 3"),
        ({"grad_lse": normal(2, 14, 3)}, ValueError, "grad_lse 3"),
        ({"dropout_p": 2.0, "dropout_seed": 1}, ValueError, "dropout_p 2"),
        ({"dropout_p": 0.2}, TypeError, "dropout_p dropout_seed"),
        ({"with_respect_to": ["mask"]}, ValueError, "with_respect_to mask"),
        ({"with_respect_to": "query"}, TypeError, "with_respect_to"),
    ]:
        with pytest.raises(error, match=says(*words.split())):
            call(**good | wrong)


def test_a_refusal_leaves_the_gradients_working():
    wanted = call()
    for changes, _ in (*RANGES.values(), *KINDS.values()):
        with pytest.raises((ValueError, TypeError)):
            call(**changes)
    for gradient, right in zip(call(), wanted, strict=True):
        assert right is None or np.array_equal(gradient, right)


FORWARD = [
    (ValueError, {"dropout_p": 1, "dropout_seed": 1}, "dropout_p 1"),
    *(
        (error, changes, words)
        for error, table in ((ValueError, RANGES), (TypeError, KINDS))
        for name, (changes, words) in table.items()
        if name.startswith(("dropout-", "seed-")) and name != "dropout-rate"
    ),
]


@pytest.mark.parametrize(("error", "changes", "words"), FORWARD)
def test_dropout_that_the_forward_calls_refuse(error, changes, words):
    arrays = GOOD["query"], GOOD["key"], GOOD["value"]
    untouched = np.full((2, 14, 5, 32), 7, np.float32)
    with pytest.raises(error, match=says(*words.split())):
        regard.scaled_dot_product_attention(*arrays, **changes, out=untouched)
    assert (untouched == 7).all()
    packed = (x[0].swapaxes(0, 1) for x in arrays)
    with pytest.raises(error, match=says(*words.split())):
        regard.scaled_dot_product_attention_ragged(*packed, [0, 5], [0, 11], **changes)
