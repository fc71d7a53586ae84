"""Test work in a fresh process: its threads, its messages, and how it fails."""

import os
import signal
import sys
import time

import pytest

from regard._bench.fresh_process import run_in_fresh_process

# The process must be able to import what it runs: functions of this module.


def talk(request, send):
    print("noise")
    os.system("echo more noise")
    send([request, 1])
    send({"a": None})
    names = "OPENBLAS_NUM_THREADS", "REGARD_NUM_THREADS", "EXTRA"
    return [os.environ[name] for name in names]


def sleep(_request, _send):
    time.sleep(60)


def fail(_request, _send):
    raise ValueError("what\n is wrong")


def leave(_request, _send):
    sys.exit("no more")


def die(_request, _send):
    os.kill(os.getpid(), signal.SIGKILL)


def vanish(_request, _send):
    os._exit(3)


def test_messages_come_before_the_answer(monkeypatch, capfd):
    monkeypatch.setenv("REGARD_NUM_THREADS", "7")
    monkeypatch.delenv("EXTRA", raising=False)
    heard = []
    answer = run_in_fresh_process(
        talk,
        {"x": "\u65e5"},
        threads=3,
        patience=60,
        environment={"EXTRA": "yes"},
        on_message=heard.append,
    )
    assert answer == ["3", "3", "yes"]
    assert heard == [[{"x": "\u65e5"}, 1], {"a": None}]
    assert capfd.readouterr() == ("", "")
    assert (os.environ["REGARD_NUM_THREADS"], os.environ.get("EXTRA")) == ("7", None)


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (fail, "the timing failed: ValueError: what is wrong"),
        (leave, "the timing failed: SystemExit: no more"),
        (die, "the timing was killed by SIGKILL"),
        (vanish, "the timing ended with exit status 3"),
    ],
)
def test_a_process_that_does_not_answer(work, message):
    with pytest.raises(RuntimeError) as caught:
        run_in_fresh_process(work, 0, threads=1, patience=60)
    assert str(caught.value) == message


def test_a_silent_process_is_ended():
    with pytest.raises(RuntimeError, match=r"the timing was silent for 0\.5 s"):
        run_in_fresh_process(sleep, 0, threads=1, patience=0.5)
