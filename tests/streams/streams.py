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


class Stored:
    """An array of a storage library, such as a variable of netCDF: slices, a shape, and a dtype
    that may be the library's own. Slices may be made into something else, or raise `error`."""

    def __init__(self, array, dtype=None, *, make=None, error=None):
        self.array, self.make, self.error = array, make or (lambda part: part), error
        self.shape, self.dtype = array.shape, dtype or array.dtype
        self.reads, self.threads, self.largest = [], set(), 0

    def __getitem__(self, index):
        part = self.array[index]
        if part.size:
            self.threads.add(threading.current_thread())
            self.largest = max(self.largest, part.size)
            if isinstance(index, tuple):
                self.reads.append(index[1].start)
            if self.error:
                raise self.error
        return self.make(part)


def is_reading():
    """Return whether a thread is alive that reads for a stream."""
    return any(thread.name.startswith("attend_stream") for thread in threading.enumerate())
