"""Test interleaved timing: each engine settles first, and runs in its own context."""

from contextlib import contextmanager
from functools import partial

import pytest

from regard._bench import rounds
from regard._bench.rounds import Runner, in_turns


@pytest.fixture
def clock(monkeypatch):
    """Replace the machine's clock with a clock that stops unless it is told to advance."""

    class Clock:
        now = 0.0

        def perf_counter(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(rounds, "time", clock)
    return clock


@pytest.mark.parametrize(
    ("seconds", "settling", "samples", "calls"),
    [
        (2.0**-20, 2**18, 20, 1049),  # about a microsecond: a thousand calls per sample
        (2.0**-8, 2**6, 20, 1),
        (2.0**-5, 2**3, 3, 1),
        (1.0, 1, 1, 1),
    ],
)
def test_each_engine_settles_before_it_is_timed(clock, seconds, settling, samples, calls):
    order = []

    def call(name):
        order.append(name)
        clock.now += seconds

    turns = []
    timed = in_turns(
        {name: Runner(partial(call, name)) for name in "ab"},
        2,
        on_turn=lambda *turn: turns.append(turn),
    )
    assert turns == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert timed == {name: [[pytest.approx(seconds)] * samples] * 2 for name in "ab"}
    a_turn = settling + samples * calls
    assert order == list("a" * a_turn + "b" * a_turn) * 2


def test_calls_run_in_what_they_need(clock):
    events = []

    @contextmanager
    def around():
        events.append("in")
        yield
        events.append("out")

    def call():
        clock.now += 1
        events.append("call")

    in_turns({"a": Runner(call, around)}, 1)
    assert events == ["in", "call", "call", "out"]
