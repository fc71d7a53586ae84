"""Ctrl-C at a chosen bytecode."""

import sys
import threading

import numpy as np
import pytest

# The bytecodes at which an action is interrupted: all of them or, by default, a sample and the last
# ones.
STEPS = pytest.mark.parametrize(
    "step", [pytest.param(1, marks=pytest.mark.exhaustive), 17], ids=["each", "some"]
)


class Instructions:
    """Call act(code, offset) before each instruction of the main thread in code that is watched."""

    def __init__(self, is_watched, act):
        self._is_watched, self._act = is_watched, act

    def __enter__(self):
        self._start()
        return self

    def __exit__(self, *_):
        self._stop()

    if sys.version_info >= (3, 12):  # sys.settrace misses instructions from 3.12 on

        def _start(self):
            monitoring = sys.monitoring
            self._tool = next(i for i in range(6) if monitoring.get_tool(i) is None)
            instruction = monitoring.events.INSTRUCTION
            monitoring.use_tool_id(self._tool, "interrupts")
            monitoring.restart_events()  # another use of the number may have disabled some
            monitoring.register_callback(self._tool, instruction, self._before)
            monitoring.set_events(self._tool, instruction)

        def _stop(self):
            if self._tool is not None:
                sys.monitoring.set_events(self._tool, 0)
                sys.monitoring.free_tool_id(self._tool)
                self._tool = None

        def _before(self, code, offset):
            if not self._is_watched(code):
                return sys.monitoring.DISABLE
            if threading.current_thread() is threading.main_thread():
                self._act(code, offset)
            return None

    else:

        def _start(self):
            sys.settrace(self._call)

        def _stop(self):
            sys.settrace(None)

        def _call(self, frame, event, _):
            if not self._is_watched(frame.f_code):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            return self._step

        def _step(self, frame, event, _):
            if event == "opcode":
                self._act(frame.f_code, frame.f_lasti)
            return self._step


class Interrupt(Instructions):
    """Raise KeyboardInterrupt before the instruction with a given number in some source files."""

    def __init__(self, number, within=("regard/layers/",)):
        def is_watched(code):
            name = code.co_filename.replace("\\", "/")
            return any(part in name for part in within)

        super().__init__(is_watched, self._count)
        self.left = number

    def _count(self, code, offset):
        self.left -= 1
        if self.left < 0:
            self._stop()
            raise KeyboardInterrupt


def interrupted(number, action):
    """Interrupt an action, and return whether it got that far."""
    try:
        # An interrupt on the first line of a `with np.errstate(...)` would leave its settings in
        # effect.
        with Interrupt(number), np.errstate():
            action()
    except KeyboardInterrupt:
        return True
    return False
