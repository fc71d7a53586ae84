"""A layer rotates like `regard.positional.rotary`."""

import numpy as np
import pytest

import regard
from reference import assert_same_bits
from regard.layers._rotation import Rotation


@pytest.mark.parametrize("interleaved", [False, True])
def test_rows_of_a_rotation_are_those_of_rotary(interleaved, dtype):
    """Whether positions go forward or back, are far away, negative or scattered, the table that a
    layer keeps must not change a bit."""
    options = {"rotary_dim": 6, "interleaved": interleaved, "base": 100.0}
    rotation = Rotation(options, 8, dtype)
    random = np.random.default_rng(0)
    for place in range(140):  # one by one, beyond the ends of two tables
        given = random.standard_normal((2, 1, 8)).astype(dtype)
        wanted = regard.positional.rotary(given, [place], **options)
        rotation.turn((given, np.array([place])), cached=True)
        assert_same_bits(given, wanted)
    for start in (0, 3, 63, 64, 65, 1000, 999, 2, -5, 10**12):
        for places in (np.arange(start, start + 3), start + np.array([[0, 1, 2], [7, 8, 9]])):
            given = random.standard_normal((2, 4, 3, 8)).astype(dtype)
            wanted = regard.positional.rotary(given, places, **options)
            rotation.turn((given, places), cached=True)
            assert_same_bits(given, wanted)
    far = np.array([[0, 1, 2], [10**9, 10**9 + 1, 10**9 + 2]])
    given = random.standard_normal((2, 4, 3, 8)).astype(dtype)
    wanted = regard.positional.rotary(given, far, **options)
    rotation.turn((given, far), cached=False)
    assert_same_bits(given, wanted)
