"""What tests meet in turn: targets and threading layers.

All targets are compiled from one source, and all layers run the same tasks, so that tests find on
one of them what they would find on all, as long as each meets its share. A case therefore runs on
one target: every other one on the best, which is what users have, and the others in turn. A hash
of the case's name chooses, so that it is the same for any selection of tests and any number of
workers. `--turn 1` gives those that ran on the best target one of the others, and the others the
best. Tests marked `every("target")`, because the product is their point, run on all, as all tests
do with `--every`.
"""

import zlib

import pytest


class Rotation:
    """The values that a fixture takes in turn, best or default first: they are strings, or
    `pytest.param` with a string."""

    def __init__(self, fixture, values):
        self.fixture, self.values = fixture, values

    def generate(self, metafunc):
        """Run a marked table with every value: with the first one among the quick tests, and with
        the others among the slow ones."""
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
        """The value of one case."""
        if hasattr(request, "param"):
            return request.param
        if not self.values:
            pytest.skip(f"no {self.fixture} here")
        best, *others = self.values
        name = f"{self.fixture} {request.node.nodeid}"  # targets and layers independently
        turn = zlib.crc32(name.encode()) + request.config.getoption("--turn")
        return others[turn // 2 % len(others)] if others and turn % 2 else best
