"""Ctrl-C at a bytecode of one's choice."""

import sys

import numpy as np
import pytest

# Python 3.12 traces opcodes from the first sys.settrace that follows such an assignment.
sys._getframe().f_trace_opcodes = True

# Bytecodes at which an action is interrupted: each, or, by default, a sample and the last ones.
STEPS = pytest.mark.parametrize(
    "step", [pytest.param(1, marks=pytest.mark.exhaustive), 17], ids=["each", "some"]
)


class Interrupt:
    """Raise KeyboardInterrupt before the instruction of a number in the source of layers."""

    def __init__(self, number):
        self.left = number

    def __call__(self, frame, event, _):
        if "regard/layers/" not in frame.f_code.co_filename.replace("\\", "/"):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.step

    def step(self, frame, event, _):
        if event == "opcode":
            self.left -= 1
            if self.left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self.step


def places(action, step):
    """Return the numbers of the bytecodes at which to interrupt an action, which is run once."""
    counter = Interrupt(sys.maxsize)
    sys.settrace(counter)
    try:
        action()
    finally:
        sys.settrace(None)
    count = sys.maxsize - counter.left
    last = max(0, count - 30)
    return [*range(0, last, step), *range(last, count)]


def interrupted(number, action):
    """Interrupt an action; tell whether it came so far."""
    sys.settrace(Interrupt(number))
    try:
        # An interrupt on the first line of a `with np.errstate(...)` would leave that in effect.
        with np.errstate():
            action()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False
