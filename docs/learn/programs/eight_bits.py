"""Scores from 8-bit integers: a step size, what rounding costs, what it may gain."""

import functools

import measure
import numpy as np
import stable

import regard


def rounded(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return integers of -127 to 127 and the step of each row: rows is about their product."""
    step = abs(rows).max(axis=-1, keepdims=True) / 127
    return np.rint(rows / step).astype(np.int8), step


def scores(query: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Return query key^T of rounded rows: exact sums of integers, then scaled."""
    (q, q_step), (k, k_step) = rounded(query), rounded(key)
    return (q.astype(np.int32) @ k.astype(np.int32).T) * (q_step * k_step.T)


def hadamard(size: int) -> np.ndarray:
    """Return an orthogonal matrix of +-1 / sqrt(size), which spreads a dimension over all."""
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / np.sqrt(size)


if __name__ == "__main__":
    query, key, value = measure.problem()
    exact = slice(0, 256)  # queries that are compared with float64
    # As in language models, one dimension of the keys is far larger than the others.
    key[:, 3] = 20 + 8 * key[:, 3]
    q, k = query[exact].astype(float), key.astype(float)
    mean, rotation = k.mean(axis=0), hadamard(measure.HEAD_DIM)
    differences = q @ (k - mean).T  # q @ mean is added afterwards, without any rounding
    errors = {
        "rounded as they are": scores(q, k) - q @ k.T,
        "the keys' mean subtracted": scores(q, k - mean) - differences,
        "and rotated": scores(q @ rotation, (k - mean) @ rotation) - differences,
    }
    rms = {name: np.sqrt((error**2).mean()) for name, error in errors.items()}
    print(*(f"{name:26} RMS error of a score {rms[name]:.3f}" for name in rms), sep="\n")
    if sorted(rms.values(), reverse=True) != list(rms.values()):
        raise SystemExit("each of the two should make the error smaller here")

    plan = regard.explain(query, key, value, precision="int8")
    if plan.kernel != "int8":  # this would compare float32 with itself
        print(*plan.notes)
        raise SystemExit
    call = functools.partial(regard.scaled_dot_product_attention, query, key, value, threads=1)
    output, expected = call(precision="int8")[exact], stable.attention(q, k, value)
    cosines = (output * expected).sum(-1) / np.linalg.norm([output, expected], axis=-1).prod(0)
    print(f'precision="int8": lowest cosine of a row of output {cosines.min():.5f}')
    np.testing.assert_array_less(0.995, cosines)
    seconds = [measure.median_time(lambda p=p: call(precision=p)) for p in (None, "int8")]
    print(f"speed relative to float32: {seconds[0] / seconds[1]:.2f}")
