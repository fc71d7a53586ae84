"""Test which launches compute arrays with any number of batch axes."""

import itertools

import numpy as np
import pytest

from regard.cuda._launches import broadcast_strides, launches

CASES = {
    "none": ((), {"a": ()}, 1),
    "dense": ((2, 3, 4), {"a": (120, 40, 10), "b": (12, 4, 1)}, 1),
    "all broadcast": ((2, 3), {"a": (0, 0)}, 1),
    "ones": ((1, 3, 1), {"a": (99, 5, 77), "b": (0, 5, 0)}, 1),
    "one array broadcast outside": ((2, 3), {"a": (0, 5), "b": (15, 5)}, 2),
    "between": ((2, 3, 4), {"a": (4, 0, 1), "b": (12, 4, 1)}, 6),
    "swapped": ((2, 3), {"a": (1, 2)}, 2),
    "backwards": ((2, 3), {"a": (-15, -5), "b": (3, 1)}, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_every_entry_is_computed_once_from_its_own_addresses(name):
    batch, strides, count = CASES[name]
    size, steps, begins = launches(batch, strides)
    assert len(begins) == count
    found = [
        tuple(begin[array] + i * steps[array] for array in strides)
        for begin in begins
        for i in range(size)
    ]
    wanted = [
        tuple(int(np.dot(index, each)) for each in strides.values())
        for index in itertools.product(*map(range, batch))
    ]
    assert found == wanted


def test_an_empty_batch_needs_no_launch():
    assert launches((2, 0), {"a": (1, 1)})[2] == []


def test_broadcast_strides():
    assert broadcast_strides((3, 1, 5), (5, 5, 1), (2, 3, 4, 5)) == (0, 5, 0, 1)
    assert broadcast_strides((), (), (2, 3)) == (0, 0)
