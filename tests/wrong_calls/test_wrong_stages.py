"""Wrong calls of the stages, and wrong arrays for results of every call that writes into one."""

import itertools

import numpy as np
import pytest

import regard
from data_kinds import normal
from messages import check, each
from regard import (
    QuantizedWeight,
    apply_mask,
    apply_mask_backward,
    matmul,
    matmul_backward,
    scale,
    scale_backward,
    softmax,
    softmax_backward,
)
from regard.masks import Ranges, stack

pytestmark = pytest.mark.usefixtures("silence")
from_parts = QuantizedWeight.from_parts


BIAS, X, ONES = normal(5, 11), normal(2, 3, 4), np.ones((3, 5))
WEIGHT = QuantizedWeight(normal(3, 65))
NUMBERS, SCALES, HALVES = np.zeros((3, 65), "i1"), np.ones((3, 2), "f4"), np.ones((4, 5), "f2")
PLANES = stack([Ranges([0] * 30, 40)] * 3)
STAGES = [
    (lambda: matmul(normal(5, 64), normal(48, 7)), ValueError, "the last axis of a"),
    (lambda: matmul(normal(2, 5, 64), normal(3, 64, 7)), ValueError, "a and b ... got shapes (2"),
    (lambda: matmul(normal(5), np.float32(1)), ValueError, "b must have at least"),
    (lambda: matmul(X * 1j, X), TypeError, "a must be an array of ... got complex64"),
    (lambda: matmul(normal(2, 65, dtype="f2"), WEIGHT.T), TypeError, "a must be ... got float16"),
    (lambda: matmul(np.float32(1), WEIGHT.T), ValueError, "a must have at least ... got a scalar"),
    (lambda: matmul(normal(2, 3), WEIGHT), TypeError, "b must be"),
    (lambda: matmul(normal(2, 65), WEIGHT.T, out=normal(3, 2)), ValueError, "out must ... got (3"),
    (lambda: normal(2, 65) @ WEIGHT.T, TypeError, "unsupported operand type(s) for @"),
    (lambda: apply_mask(BIAS, np.ones((5, 12), bool)), ValueError, "mask must ... got shape (5"),
    (lambda: apply_mask(np.zeros((30, 39)), PLANES), ValueError, "mask must ... got shape (3"),
    (lambda: apply_mask(BIAS, None), TypeError, "mask must be an array of bool or float, got"),
    (lambda: softmax(BIAS, axis=2), ValueError, "axis must be from -2 to ... got 2"),
    (lambda: softmax(BIAS, axis=0.5), TypeError, "axis must be an integer, got float"),
    (lambda: softmax("x"), TypeError, "x must be an array of float32 or float64, got <U1"),
    (lambda: scale(X, "big"), TypeError, "factor must be a real number, got str"),
    (lambda: matmul(X, X.swapaxes(1, 2), threads=0), ValueError, "threads must be at ... got 0"),
    (lambda: matmul_backward(ONES, np.ones((3, 4)), np.ones((4, 6))), ValueError, "grad_output"),
    (lambda: matmul_backward(ONES, np.ones((3, 4)), ONES), ValueError, "the last axis ... got 4"),
    (lambda: matmul_backward(ONES, np.ones((3, 4)), HALVES), TypeError, "b must ... got float16"),
    (lambda: scale_backward(ONES * 1j, 2), TypeError, "grad_output must be an ... got complex128"),
    (lambda: softmax_backward(ONES, ONES.T), ValueError, "grad_output must have ... got shape (3"),
    (lambda: softmax_backward(1.0, 1.0), ValueError, "axis must be an axis of ... got -1"),
    (lambda: apply_mask_backward(ONES, np.ones((4, 5), bool)), ValueError, "mask"),
    (lambda: QuantizedWeight(np.ones(4)), ValueError, "weight must have shape ... got shape (4,)"),
    (lambda: QuantizedWeight([[1.0, np.nan]]), ValueError, "weight must be finite in ... got nan"),
    (lambda: from_parts(SCALES, SCALES), TypeError, "numbers must be int8, got float32"),
    (lambda: from_parts(NUMBERS, SCALES.astype(float)), TypeError, "scales must ... got float64"),
    (lambda: from_parts(NUMBERS[0], SCALES), ValueError, "numbers must have ... got shape (65,)"),
    (lambda: from_parts(NUMBERS, SCALES[:, :1]), ValueError, "scales must have ... got shape (3"),
    (lambda: from_parts(NUMBERS, SCALES * np.float32(1e-38)), ValueError, "scales"),
    (lambda: from_parts(NUMBERS, SCALES * np.float32(np.inf)), ValueError, "scales ... got inf"),
]


@each(STAGES)
def test_stages(wrong, error, parts):
    check(wrong, error, parts)


# A problem whose sizes are all different: batch 2, 14 heads of 7, 5 queries, 11 keys.
Q, K, V = normal(2, 14, 5, 64), normal(2, 7, 11, 64), normal(2, 7, 11, 32)
OUTPUT, LSE = regard.scaled_dot_product_attention(Q, K, V, return_lse=True)
PACKED = (normal(10, 14, 64), normal(23, 7, 64), normal(23, 7, 32), [0, 4, 10], [0, 12, 23])


def attend(**options):
    return regard.scaled_dot_product_attention(Q, K, V, **options)


def ragged(**options):
    return regard.scaled_dot_product_attention_ragged(*PACKED, **options)


def backward(**options):
    given = (OUTPUT, Q, K, V, OUTPUT, LSE)
    return regard.scaled_dot_product_attention_backward(*given, **options)


def overlapping(like):
    """Return an array in which elements share memory."""
    memory = np.full(like.size, 7, like.dtype)
    return np.lib.stride_tricks.as_strided(memory, like.shape, (4,) * like.ndim)


WRONG_OUTS = {
    "shape": (lambda like: np.full((*like.shape[:-1], 3), 7, like.dtype), ValueError, "got"),
    "float64": (lambda like: np.full(like.shape, 7.0), TypeError, "float64"),
    "swapped": (lambda like: np.full(like.shape, 7, ">f4"), TypeError, "must"),
    "list": (lambda like: like.tolist(), TypeError, "list"),
    "read-only": (lambda like: np.broadcast_to(like.dtype.type(7), like.shape), ValueError, ""),
    "overlapping": (overlapping, ValueError, ""),
}
NO_GRADIENTS = regard.AttentionGradients(*[None] * len(regard.AttentionGradients._fields))
R = normal(2, 3, 5, 8)
CACHE = regard.KVCache(2, 7, 64, 32)
CACHE.append(K, V)
WRITERS = {
    "attention": (lambda out: attend(out=out), OUTPUT),
    "ragged": (lambda out: ragged(out=out), ragged()),
    "stream": (lambda out: regard.attend_stream(Q, [(K, V)], out=out), OUTPUT),
    "cache": (lambda out: CACHE.attend(Q, out=out), OUTPUT),
    "matmul": (lambda out: matmul(R, R.mT, out=out), R @ R.mT),
    "scale": (lambda out: scale(R, 2.0, out=out), R),
    "apply_mask": (lambda out: apply_mask(R, R > 0, out=out), R),
    "softmax": (lambda out: softmax(R, out=out), R),
    "rotary": (lambda out: regard.positional.rotary(R, out=out), R),
    **{
        name: (
            lambda out, name=name: backward(
                out=NO_GRADIENTS._replace(**{name: out}), mask=BIAS, with_respect_to=[name]
            ),
            like,
        )
        for name, like in {"query": Q, "key": K, "value": V}.items()
    },
}


@pytest.mark.parametrize("kind", WRONG_OUTS)
@pytest.mark.parametrize("name", WRITERS)
def test_wrong_out(name, kind):
    write, like = WRITERS[name]
    make, error, part = WRONG_OUTS[kind]
    out = make(like)
    check(lambda: write(out), error, f"out ... {part}" if part else "out")
    assert isinstance(out, list) or (out == 7).all()
    write(np.empty_like(like))


LIKE = {"query": Q, "key": K, "value": V, "mask": BIAS, "alibi_slopes": np.full(14, 0.25)}
LIKE["sinks"] = np.full(14, 0.5)


@pytest.mark.parametrize("first", [0, 1], ids=["aligned", "unaligned"])
@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(LIKE, 2)))
def test_two_gradients_in_one_place(one, other, first):
    memory = np.full(2 * 14 * 11 * 64 * 8 + 1, 7, np.uint8)
    places = {n: memory[first:][: LIKE[n].nbytes].view(LIKE[n].dtype) for n in (one, other)}
    out = NO_GRADIENTS._replace(**{n: x.reshape(LIKE[n].shape) for n, x in places.items()})
    options = {name: LIKE[name] for name in ("mask", "alibi_slopes", "sinks")}
    parts = f"out.{other} must not overlap out.{one} ... two results cannot share memory"
    check(lambda: backward(**options, with_respect_to=tuple(LIKE), out=out), ValueError, parts)
    assert (memory == 7).all()


def test_transposed_out_is_not_in_place():
    x = normal(12, 12)
    before = x.copy()
    for write in (
        lambda: scale(x, 2.0, out=x.T),
        lambda: apply_mask(x, x > 0, out=x.T),
        lambda: softmax(x, out=x.T),
    ):
        check(write, ValueError, "out ... overlap")
    assert np.array_equal(x, before)


OVERLAPS = {
    "same": lambda memory: (memory[:144], memory[:144]),
    "shifted": lambda memory: (memory[:144], memory[1:145]),
    "last element": lambda memory: (memory[:144], memory[143:287]),
    "reversed from beyond": lambda memory: (memory[:144], memory[200:56:-1]),
    "strided": lambda memory: (memory[:144], memory[:288:2]),
}


@pytest.mark.parametrize("name", OVERLAPS)
def test_ways_to_lie_over_an_input(name):
    for role in ("query", "key", "value", "mask"):
        memory = normal(300)
        before = memory.copy()
        inputs = {name: normal(12, 12) for name in ("query", "key", "value", "mask")}
        inputs[role], out = (x.reshape(12, 12) for x in OVERLAPS[name](memory))
        call = regard.scaled_dot_product_attention
        check(lambda: call(**inputs, out=out), ValueError, f"out ... {role}")  # noqa: B023
        assert np.array_equal(memory, before)
