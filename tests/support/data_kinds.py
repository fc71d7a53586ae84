"""The numbers that tests draw, from Gaussian numbers to those whose scores NumPy computes exactly.

Gaussian numbers hide errors: NumPy's products are rounded too, and their errors are as large as
those of a program that rounds too often. For integers, halves and one-hot vectors, NumPy's products
are exact. A large offset that all scores share cancels in the softmax, but its rounding errors do
not.
"""

from typing import NamedTuple

import numpy as np


def normal(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def _integers(most, divisor=1):
    def draw(random, shape, role):
        return random.integers(-most, most + 1, shape) / divisor

    return draw


def _one_hot(random, shape, role):
    """Queries are 16 times as long, so that weights differ."""
    array = np.zeros(shape)
    if shape[-1]:
        hot = random.integers(0, shape[-1], (*shape[:-1], 1))
        np.put_along_axis(array, hot, 16 if role == "query" else 1, axis=-1)
    return array


def _keys_far_from_zero(random, shape, role):
    return random.standard_normal(shape) + (100 if role == "key" else 0)


def _scores_around_1000(random, shape, role):
    """Draw small integers, which the first column, 1 in queries, moves to scores of about 1000 with
    the default scale."""
    array = random.integers(-2, 3, shape).astype(float)
    if role == "query":
        array[..., :1] = 1
    elif role == "key":
        array[..., :1] += np.rint(1000 * np.sqrt(shape[-1]))
    return array


KINDS = {
    "gaussian": lambda random, shape, role: random.standard_normal(shape),
    "integers to 16": _integers(16),
    "integers to 100": _integers(100),
    "halves to 32": _integers(64, 2),
    "one-hot": _one_hot,
    "keys + 100": _keys_far_from_zero,
    "scores around 1000": _scores_around_1000,
}
SCALES = (None, 1.0, 0.3, 1 / 3, 3.7)


class Drawn(NamedTuple):
    """A kind of numbers, by name, and a scale, None for the default one."""

    kind: str = "gaussian"
    scale: float | None = None

    @property
    def options(self):
        return {} if self.scale is None else {"scale": self.scale}

    def array(self, random, shape, role="value"):
        return KINDS[self.kind](random, shape, role)

    def arrays(self, random, query, key, value):
        """Draw arrays of these shapes."""
        shapes = {"query": query, "key": key, "value": value}
        return [self.array(random, shape, role) for role, shape in shapes.items()]
