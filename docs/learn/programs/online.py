"""Softmax over keys that arrive one after another: a reference m, a sum l, an output o."""

import measure
import numpy as np
import stable

State = tuple[float, float, np.ndarray]


def start(value_dim: int) -> State:
    """Return the state of a row that has seen no key."""
    return -np.inf, 0.0, np.zeros(value_dim)


def see(state: State, score: float, value: np.ndarray) -> State:
    """Return the state after one more key."""
    m, l, o = state
    new = max(m, score)
    if new == -np.inf:
        return state
    rescale, weight = np.exp(m - new), np.exp(score - new)
    return new, l * rescale + weight, o * rescale + weight * value


def merge(a: State, b: State) -> State:
    """Return the state of a row that has seen the keys of both."""
    m = max(a[0], b[0])
    if m == -np.inf:
        return a
    share_a, share_b = np.exp(a[0] - m), np.exp(b[0] - m)
    return m, a[1] * share_a + b[1] * share_b, a[2] * share_a + b[2] * share_b


def result(state: State) -> np.ndarray:
    """Return the output: o / l, and zeros where the row has seen nothing."""
    return state[2] / (state[1] or 1.0)


if __name__ == "__main__":
    scores, values = np.log([2.0, 8.0, 4.0]), np.array([[7.0], [1.0], [3.0]])
    state = start(1)
    for score, value in zip(scores, values, strict=True):
        state = see(state, score, value)
        print(
            "e^m = {:.0f}, l = {:.2f}, o = {:.2f}".format(np.exp(state[0]), state[1], *state[2])
        )
    print(f"o / l = {result(state)[0]:.4f}")
    np.testing.assert_allclose(result(state), stable.softmax(scores) @ values, rtol=4e-16)

    query, key, value = measure.problem(200, 16, float)
    pieces = [start(16) for _ in range(3)]
    for j, score in enumerate(key @ query[0] / 4):
        pieces[j % 3] = see(pieces[j % 3], score, value[j])
    left = merge(merge(pieces[0], pieces[1]), merge(pieces[2], start(16)))
    right = merge(pieces[2], merge(start(16), merge(pieces[1], pieces[0])))
    expected = stable.attention(query[:1], key, value)[0]
    tolerance = 8 * np.finfo(float).eps
    for order, state in (("one", left), ("another", right)):
        print(f"merged in {order} order, off by {abs(result(state) - expected).max():.1e}")
        np.testing.assert_allclose(result(state), expected, rtol=0, atol=tolerance)
