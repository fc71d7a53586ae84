"""Test that the errors of gradients are at most twice the errors of the naive formula."""

import numpy as np
import pytest

import gradient_reference
from gradient_cases import GradientProblem, drawn, judge
from reference import arithmetic, half_ulp, largest

YARDSTICKS = {
    "64": (2, 64, 64, 64, {}),
    "128-causal": (2, 128, 128, 64, {"is_causal": True}),
    "700": (1, 48, 700, 128, {}),
    "2000-rows": (1, 2000, 100, 32, {"window": (60, 0)}),
    "3000": (1, 20, 3000, 32, {}),
    "softcap": (8, 100, 200, 64, {"softcap": 2.0}),
    "all": (8, 100, 200, 64, {"softcap": 5.0, "alibi_slopes": [0.125] * 8, "sinks": [1.5] * 8}),
}


LARGER = [name for name in YARDSTICKS if name != "64"]


def yardstick(name, dtype, spread=1.0):
    heads, q_len, kv_len, dim, options = YARDSTICKS[name]
    shapes = (heads, q_len, dim), (heads, kv_len, dim), (heads, kv_len, dim), (heads, q_len, dim)
    arrays = [drawn(shape, np.float64, seed) for seed, shape in enumerate(shapes)]
    query, key, value, grad_output = ((spread * x).astype(dtype) for x in arrays)
    options = {k: np.array(v) if isinstance(v, list) else v for k, v in options.items()}
    grad_lse = np.zeros((heads, q_len), arithmetic(dtype))
    return GradientProblem(query, key, value, options, grad_output, grad_lse)


def root_mean_square(x):
    return float(np.sqrt(np.mean(np.square(x, dtype=np.float64))))


@pytest.mark.parametrize("name", ["64", *(pytest.param(n, marks=pytest.mark.slow) for n in LARGER)])
@pytest.mark.parametrize("spread", [1.0, 2.0])
def test_error_of_gradients_is_at_most_twice_the_naive_one(name, spread, target):
    """Enough elements average out luck. The largest error and the root mean square are both
    compared. Only one rounding of the result is allowed in addition."""
    dtype = np.dtype(np.float32)
    problem = yardstick(name, dtype, spread)
    want = judge(
        *(gradient_reference.backward, problem, problem.grad_output, *problem.arrays),
        grad_lse=problem.grad_lse,
    )
    arrays, options = (problem.grad_output, *problem.arrays), problem.options
    naive = gradient_reference.backward(*arrays, **options, precision=dtype.type)
    eps = float(np.finfo(dtype).eps)
    for name, gradient in problem.gradients()._asdict().items():
        if gradient is None:
            continue
        exact, plain = getattr(want, name).exact, getattr(naive, name)
        for measure in (largest, root_mean_square):
            off, naive_off = measure(gradient - exact), measure(plain - exact)
            assert off <= 2 * naive_off + eps * measure(exact), f"{name}, {measure.__name__}"


def in_few_bits(problem):
    """Compute the formula as a program does that keeps everything in 16 bits, product by
    product."""
    dtype = problem.query.dtype

    def r(x):
        return x.astype(dtype).astype(np.float32)

    query, key, value, grads = map(r, (*problem.arrays, problem.grad_output))
    factor = np.float32(1 / np.sqrt(query.shape[-1]))
    scores = r(factor * r(query @ key.swapaxes(-1, -2)))
    seen = np.ones(scores.shape, bool)
    if problem.options.get("is_causal"):
        seen = np.tri(*scores.shape[-2:], dtype=bool)
    terms = np.where(
        seen, np.exp(scores - scores.max(-1, keepdims=True, where=seen, initial=-9)), 0
    )
    weights = r(terms / terms.sum(-1, keepdims=True))
    of_weights = r(grads @ value.swapaxes(-1, -2))
    of_scores = r(weights * (of_weights - (weights * of_weights).sum(-1, keepdims=True)))
    of_scores = r(factor * of_scores)
    return (
        r(of_scores @ key),
        r(of_scores.swapaxes(-1, -2) @ query),
        r(weights.swapaxes(-1, -2) @ grads),
    )


@pytest.mark.parametrize("name", ["64", "128-causal", "700"])
def test_error_of_halves_is_at_most_twice_the_naive_one(name, half, target):
    """This is the criterion of FlashAttention's tests, plus one rounding of the result."""
    problem = yardstick(name, half)
    want = problem.expected()
    plain = in_few_bits(problem)
    for gradient, (exact, _), naive in zip(problem.gradients()[:3], want[:3], plain, strict=True):
        off = np.abs(gradient.astype(np.float64) - exact) - half_ulp(np.abs(exact), half)
        assert off.max() <= 2 * largest(naive - exact)
