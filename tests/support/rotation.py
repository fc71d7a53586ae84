"""Values that tests use in rotation: targets and threading layers.

All targets are compiled from one source, and all layers run the same tasks. Tests therefore find on
one of them what they would find on all, as long as each meets its share. So a case runs on one
target: every other case on the best target, which is what users have, and the rest on the other
targets in rotation. A hash of the case's name selects the target, so that the choice is the same
for any selection of tests and any number of workers. `--turn 1` exchanges them: cases that ran on
the best target run on another one, and the others on the best. Tests marked `every("target")`,
because the product is their point, run on all targets, as all tests do with `--every`.
"""

import zlib

import pytest


class Rotation:
    """The values that a fixture takes in rotation, best or default first: strings, or
    `pytest.param` with a string."""

    def __init__(self, fixture, values):
        self.fixture, self.values = fixture, values

    def generate(self, metafunc):
        """Run a marked table with every value: the first value in the quick tests, and the others
        in the slow tests."""
        if self.fixture not in metafunc.fixturenames or not self.values:
            return
        if any(
            self.fixture in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")
        ):
            return
        marked = any(
            self.fixture in mark.args for mark in metafunc.definition.iter_markers("every")
        )
        if marked or metafunc.config.getoption("--every"):
            first, *others = self.values
            slow = [pytest.param(value, marks=pytest.mark.slow) for value in others]
            metafunc.parametrize(self.fixture, [first, *slow], indirect=True)

    def value(self, request):
        """Return the value of one case."""
        if hasattr(request, "param"):
            return request.param
        if not self.values:
            pytest.skip(f"no {self.fixture} here")
        best, *others = self.values
        name = f"{self.fixture} {request.node.nodeid}"  # targets and layers independently
        turn = zlib.crc32(name.encode()) + request.config.getoption("--turn")
        return others[turn // 2 % len(others)] if others and turn % 2 else best
