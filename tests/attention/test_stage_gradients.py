"""Test the gradients of the stages: each is a derivative."""

import numpy as np
import pytest

import regard
import sparse_cases
from problem import drawn
from reference import assert_same_bits, derivatives

INF, NAN = float("inf"), float("nan")


def assert_near(actual, exact, magnitudes, terms, dtype):
    """Compare sums of `terms` terms, whose magnitudes add up to `magnitudes`."""
    assert type(actual) is np.ndarray
    assert actual.dtype == dtype
    assert actual.shape == exact.shape
    allowed = (terms + 4) * np.finfo(dtype).eps * magnitudes
    assert (np.abs(actual - exact) <= allowed).all()


SHAPES = [
    ((3, 4), (4, 5)),
    ((4,), (4,)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((2, 3, 4), (4,)),
    ((4,), (2, 4, 5)),
    ((2, 1, 3, 4), (5, 4, 2)),
    ((6, 2, 3, 4), (1, 2, 4, 5)),
    ((0, 4), (4, 5)),
    ((3, 0), (0, 5)),
    ((0, 3, 4), (4, 5)),
    ((0, 3, 4), (1, 4, 5)),
]


@pytest.mark.parametrize(("a", "b"), SHAPES, ids=str)
def test_gradients_of_a_product(a, b, dtype, target):
    a, b = drawn(a, dtype, 1), drawn(b, dtype, 2)
    grad = drawn(np.matmul(a, b).shape, dtype, 3)
    wide = {"a": a.astype(float), "b": b.astype(float)}
    exact = derivatives(lambda arrays: arrays["a"] @ arrays["b"], grad.astype(float), wide)
    size = {name: abs(array) for name, array in wide.items()}
    bound = derivatives(lambda arrays: arrays["a"] @ arrays["b"], abs(grad).astype(float), size)
    actual = regard.matmul_backward(grad, a, b)
    assert type(actual) is tuple
    for part, name in zip(actual, "ab", strict=True):
        assert_near(part, exact[name], bound[name], grad.size, dtype)
    for part, again in zip(actual, regard.matmul_backward(grad, a, b, threads=3), strict=True):
        assert_same_bits(part, again)


def softmax(x, axis):
    terms = np.exp(x - x.real.max(axis=axis, keepdims=True))
    return terms / terms.sum(axis=axis, keepdims=True)


@pytest.mark.parametrize("axis", [-1, 0, 1, -2])
@pytest.mark.parametrize("shape", [(3, 7), (2, 5, 4), (1, 1), (4, 1)], ids=str)
def test_gradient_of_softmax(shape, axis, dtype):
    x, grad = 3 * drawn(shape, dtype, 1), drawn(shape, dtype, 2)
    y = softmax(x.astype(float), axis)
    exact = derivatives(lambda arrays: softmax(arrays["x"], axis), grad, {"x": x.astype(float)})
    size = y * (abs(grad) + (y * abs(grad)).sum(axis=axis, keepdims=True))
    actual = regard.softmax_backward(grad, y.astype(dtype), axis)
    assert_near(actual, exact["x"], size, shape[axis], dtype)


def test_softmax_reads_no_gradient_of_what_is_hidden(dtype):
    """NaN times a weight of 0 is NaN, which would reach the whole row."""
    scores = drawn((5, 6), dtype)
    scores[1, 2:], scores[3] = -INF, -INF
    weights, grad = regard.softmax(scores), drawn((5, 6), dtype, 1)
    wanted = regard.softmax_backward(grad, weights)
    assert not wanted[3].any()
    assert wanted[1, :2].any()
    for hole in (NAN, INF):
        assert_same_bits(
            regard.softmax_backward(np.where(weights == 0, hole, grad), weights), wanted
        )
    grad[0, 0] = NAN
    actual = regard.softmax_backward(grad, weights)
    assert np.isnan(actual[0]).all()
    assert_same_bits(actual[1:], wanted[1:])


def test_gradient_of_scale(dtype):
    grad = drawn((3, 5), dtype)
    assert_same_bits(regard.scale_backward(grad, 0.3), regard.scale(grad, 0.3))
    assert regard.scale_backward([[1, 2]], 3).tolist() == [[3.0, 6.0]]


MASKS = [(2, 3, 4), (3, 4), (4,), (3, 1), (2, 1, 1), (1, 3, 4), ()]


@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_gradients_of_a_mask(shape, dtype, target):
    """At places that are not hidden, the gradient is that of the sum."""
    grad = drawn((2, 3, 4), dtype, 1)
    hidden = np.asarray(np.random.default_rng(2).random(shape) < 0.4)
    bias = np.where(hidden, -np.inf, drawn(shape, dtype, 3)).astype(dtype)
    everywhere = np.broadcast_to(hidden, grad.shape)
    spoiled = np.where(everywhere, NAN, grad).astype(dtype)
    of_scores, none = regard.apply_mask_backward(spoiled, ~hidden)
    assert none is None
    assert_same_bits(of_scores, np.where(everywhere, dtype.type(0), grad))
    again, of_mask = regard.apply_mask_backward(spoiled, bias)
    assert_same_bits(again, of_scores)

    def added(arrays):
        return np.where(everywhere, 0, np.where(hidden, 0, arrays["bias"]) + np.zeros(grad.shape))

    wide = {"bias": np.where(hidden, 0, bias).astype(float)}
    exact = derivatives(added, grad.astype(float), wide)["bias"]
    size = derivatives(added, abs(grad).astype(float), wide)["bias"]
    assert_near(of_mask, exact, size, grad.size, dtype)


def test_gradients_of_a_sparse_mask_are_those_of_the_dense_one(dtype):
    grad = drawn((2, 3, 50, 80), dtype)
    for name, mask in sparse_cases.sparse_masks(2, 3, 50, 80).items():
        wanted, _ = regard.apply_mask_backward(grad, sparse_cases.dense(mask, 80))
        actual, of_mask = regard.apply_mask_backward(grad, mask)
        assert of_mask is None, name
        assert_same_bits(actual, wanted)
