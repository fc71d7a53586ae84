"""A stream of twenty chunks and its result."""

import threading

import numpy as np

import regard

stream = regard.attend_stream
SIZE = 10  # keys per chunk


def normal(*shape, seed=0, dtype="float64"):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


QUERY, KEY, VALUE = normal(2, 3, 8), normal(2, 200, 8, seed=1), normal(2, 200, 4, seed=2)
CHUNKS = [(KEY[:, i : i + SIZE].copy(), VALUE[:, i : i + SIZE].copy()) for i in range(0, 200, SIZE)]
WHOLE = stream(QUERY, CHUNKS, return_lse=True)


def is_reading():
    """Return whether a thread is alive that reads for a stream."""
    return any(thread.name.startswith("attend_stream") for thread in threading.enumerate())
