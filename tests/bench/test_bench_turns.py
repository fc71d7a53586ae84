"""How `python -m regard bench` times: in turns, in a fresh process, with a line of progress."""

import io
import re
from contextlib import contextmanager
from functools import partial

import pytest

from regard.cli import rounds
from regard.cli.fresh_process import run_in_fresh_process
from regard.cli.progress import Progress
from regard.cli.rounds import Runner, in_turns
from regard.cli.terminal import width_of

# Turns


@pytest.fixture
def clock(monkeypatch):
    """Put a clock in the place of the machine's that stands still unless it is told to go on."""

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
        (2.0**-20, 2**18, 20, 1049),  # about a microsecond: a thousand calls a sample
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


# The process


def test_messages_come_before_the_answer(tmp_path, monkeypatch):
    (tmp_path / "worker_of_test.py").write_text(
        "import os\n"
        "from regard.cli.fresh_process import answer\n"
        "def work(request, send):\n"
        "    print('noise'); os.system('echo more noise')\n"
        "    send([request, 1]); send({'a': None})\n"
        "    names = 'OPENBLAS_NUM_THREADS', 'REGARD_NUM_THREADS', 'EXTRA'\n"
        "    return [os.environ[name] for name in names]\n"
        "if __name__ == '__main__':\n"
        "    answer(work)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    heard = []
    answer = run_in_fresh_process(
        "worker_of_test",
        {"x": "\u65e5"},
        threads=3,
        patience=60,
        environment={"EXTRA": "yes"},
        on_message=heard.append,
    )
    assert answer == ["3", "3", "yes"]
    assert heard == [[{"x": "\u65e5"}, 1], {"a": None}]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("import time; time.sleep(60)", "the timing gave no sign for 0.5 s"),
        ("import sys; sys.exit('what\\nis wrong')", "the timing failed: is wrong"),
        ("import os; os.kill(os.getpid(), 9)", "the timing died of SIGKILL"),
        ("", "the timing failed: "),
    ],
)
def test_a_process_that_does_not_answer(tmp_path, monkeypatch, body, message):
    (tmp_path / "worker_of_test.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError) as caught:
        run_in_fresh_process(
            "worker_of_test", 0, threads=1, patience=0.5 if "sleep" in body else 60
        )
    assert str(caught.value) == message


# Progress


class Screen(io.StringIO):
    def isatty(self):
        return True


def test_progress_on_a_terminal_is_one_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    screen = Screen()
    with Progress(screen, 2) as progress:
        progress.show("first", "begins")
        progress.show("first", "goes on")
        progress.show("second", "is longer than the terminal is wide, so it is cut")
    text = screen.getvalue()
    assert "\n" not in text
    shown = text.split("\r")[1:]
    assert all(width_of(line) in (0, 39) for line in shown)
    assert [re.sub(r"^0:\d\d ", "", line).strip() for line in shown[:2]] == [
        "[1/2] first: begins",
        "[1/2] first: goes on",
    ]
    assert shown[2].startswith("0:00 [2/2] second: is")
    assert shown[3:] == [" " * 39, ""]


def test_progress_elsewhere_is_a_line_a_step():
    stream = io.StringIO()
    with Progress(stream, 2) as progress:
        for name, detail in (("first", "a"), ("first", "b"), ("second", "c")):
            progress.show(name, detail)
    assert re.fullmatch(r"0:\d\d \[1/2\] first\n0:\d\d \[2/2\] second\n", stream.getvalue())
