"""Programs that keep processors, caches and memory busy while calls run, until they are stopped:
python tests/soak/beside.py numpy | memory"""

import sys
import time

import numpy as np

HOG_BYTES = 1 << 30


def numpy():
    """Compute matrix products on BLAS's threads."""
    random = np.random.default_rng(0)
    while True:
        size = int(random.integers(10, 1200))
        a = random.standard_normal((size, size))
        for _ in range(5):
            a = a @ a
            a /= np.abs(a).max()


def memory():
    """Allocate memory, write to all of it, and free it."""
    random = np.random.default_rng(0)
    while True:
        held = []
        while sum(each.nbytes for each in held) < HOG_BYTES:
            held.append(np.zeros(int(random.integers(1, 64 << 20)), np.uint8))
            held[-1][::4096] = 1
        time.sleep(0.1)


PROGRAMS = {"numpy": numpy, "memory": memory}


if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
