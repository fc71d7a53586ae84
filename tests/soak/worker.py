"""One process of a soak: several Python threads make calls, and are interrupted, forked and
measured."""

import collections
import ctypes
import dataclasses
import faulthandler
import gc
import itertools
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

import calls
import regard

LONGEST_CALL = 120  # seconds until a call counts as hanging
# The kinds of calls that a forked child makes.
FORKED = ("guide", "attention", "derivatives", "ragged", "stages")
THREADS = (None, *range(1, calls.MOST_THREADS + 1))


def taken():
    """Return the resident bytes, threads and open files of this process after unused memory has
    been given back, or nothing if the system does not report them."""
    gc.collect()
    if sys.platform != "linux":
        return {}
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[1])
    counts = {name: len(os.listdir(f"/proc/self/{name}")) for name in ("task", "fd")}
    return {"resident": pages * os.sysconf("SC_PAGE_SIZE")} | counts


class InterruptedCall(BaseException):
    """Raised by the handler of SIGINT."""


@dataclasses.dataclass
class Caller:
    """The current call of a Python thread."""

    number: int = -1
    began: float = 0.0


class Worker:
    """The calls, and their outcomes."""

    def __init__(self, settings):
        self.settings = settings
        self.expected = {int(n): text for n, text in settings["expected"].items()}
        self.calls = {n: calls.call_of(n, settings["seed"]) for n in self.expected}
        self.folder, self._files = Path(settings["folder"]), itertools.count()
        self.layer = regard.threading_layer().name
        self.done = collections.Counter()
        self.faults, self.slowest = [], (0.0, "")
        self.interrupts_sent = self.interrupts = self.forks = 0
        self.ends = threading.Event()
        self.pause = threading.Barrier(settings["threads"] + 1, timeout=10 * LONGEST_CALL)
        self.wants_pause = threading.Event()
        self.callers = [Caller() for _ in range(settings["threads"])]
        self.is_armed = False
        self.lock = threading.Lock()

    def path(self):
        """Return a path where no file exists yet."""
        return self.folder / f"{os.getpid()}-{next(self._files)}"

    # Calls

    def check(self, call, threads, caller, *, may_be_stopped):
        """Make a call, and compare its result."""
        caller.number, caller.began = call.number, time.monotonic()
        try:
            self.is_armed |= may_be_stopped
            result = call.result(threads, self.path)
            self.is_armed &= not may_be_stopped
        except InterruptedCall:
            self.interrupts += 1
            return
        finally:
            seconds, caller.began = time.monotonic() - caller.began, 0.0
        if calls.digest(result) != self.expected[call.number]:
            self.report(call, threads, result)
        with self.lock:
            self.done[call.kind] += 1
            self.slowest = max(self.slowest, (seconds, f"{call.kind}"))

    def report(self, call, threads, result):
        """Keep what is needed to understand a wrong result and to reproduce it."""
        again = [calls.digest(call.result(n, self.path)) for n in (threads, 1)]
        pairs = zip(calls.arrays_in(result), calls.arrays_in(call.result(1, self.path)))  # noqa: B905
        parts = [
            f"part {i}: {wrong!r}, alone {right!r}"
            for i, (wrong, right) in enumerate(pairs)
            if calls.digest(wrong) != calls.digest(right)
        ]
        here, one = ("right" if d == self.expected[call.number] else "wrong" for d in again)
        self.fault(
            f"number {call.number} ({call.kind}), threads={threads}, layer "
            f"{self.layer}, default {regard.get_num_threads()}, target {regard.active_target()}: "
            f"{'; '.join(parts)}; repeated with these threads it is {here}, with one {one}"
        )

    def fault(self, text):
        """Record a fault."""
        with self.lock:
            self.faults.append(text)

    def caller(self, index):
        """Make calls until the end; only the main thread is interrupted."""
        chance, caller = (
            random.Random(f"{self.settings['seed']}{os.getpid()}{index}"),
            self.callers[index],
        )
        numbers = list(self.calls)
        kinds = {call.kind for call in self.calls.values()}
        try:
            while not self.ends.is_set() or kinds - self.done.keys():  # each kind at least once
                if self.wants_pause.is_set():
                    self.pause.wait()
                    self.pause.wait()
                call, threads = self.calls[chance.choice(numbers)], chance.choice(THREADS)
                self.check(call, threads, caller, may_be_stopped=index == 0)
        except threading.BrokenBarrierError:
            pass  # the thread that broke it has reported why
        except BaseException:
            self.fault(f"an exception that no call may raise:\n{traceback.format_exc()}")
            self.pause.abort()

    def on_signal(self, *_):
        """Stop the main thread's call, if it is making one."""
        if self.is_armed:
            self.is_armed = False
            raise InterruptedCall

    def on_unraisable(self, ended):
        """Record an exception that nothing can raise, unless it is a signal in a destructor."""
        if not isinstance(ended.exc_value, InterruptedCall):
            self.fault(f"{ended.err_msg or 'ignored'}: {ended.exc_value!r} in {ended.object!r}")

    # Disturbances

    def disturb(self, until):
        """Interrupt, fork, and change the number of threads, until a given time; watch for
        hangs."""
        chance = random.Random(os.getpid())
        while time.monotonic() < until and not self.pause.broken:
            faulthandler.dump_traceback_later(2 * LONGEST_CALL, exit=True)
            time.sleep(chance.uniform(0.001, 0.1))
            for caller in self.callers:
                if caller.began and time.monotonic() - caller.began > LONGEST_CALL:
                    sys.stderr.write(f"number {caller.number} hangs\n")
                    faulthandler.dump_traceback()
                    os._exit(3)
            what = chance.random()
            if what < 0.5 and hasattr(signal, "pthread_kill"):
                self.interrupts_sent += 1
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            elif what < 0.6:
                regard.set_num_threads(chance.choice([1, 2, 3, None]))
            elif what < 0.65 and hasattr(os, "fork"):
                self.fork(chance)

    def fork(self, chance):
        """Let a child compute while its parent is computing."""
        numbers = [n for n, call in self.calls.items() if call.kind in FORKED]
        some = [(self.calls[chance.choice(numbers)], chance.choice(THREADS)) for _ in range(3)]
        child = os.fork()
        if child == 0:
            code = 1
            try:
                wrong = [
                    call.number
                    for call, threads in some
                    if calls.digest(call.result(threads, self.path)) != self.expected[call.number]
                ]
                code = 7 if wrong else 0
            finally:
                os._exit(code)
        until = time.monotonic() + LONGEST_CALL
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < until:
            time.sleep(0.005)
        self.forks += 1
        made = [(call.number, threads) for call, threads in some]
        if ended[0] == 0:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            self.fault(f"a forked child hangs in one of the calls (number, threads) {made}")
        elif ended[1] != 0:
            code = os.waitstatus_to_exitcode(ended[1])
            self.fault(f"a forked child ended with {code} (7: wrong bits) after {made}")

    def measured(self):
        """Pause all callers, and return the resources that this process has taken."""
        self.wants_pause.set()
        self.pause.wait()
        result = taken()
        self.wants_pause.clear()
        self.pause.wait()
        return result

    def run(self):
        """Run the soak of this process and return its report."""
        # Modules that are imported on first use are imported here: an import interrupted by a
        # signal fails, in CPython, in every thread that waits for it, or leaves the import lock
        # taken.
        faulthandler.dump_traceback_later(5 * LONGEST_CALL, exit=True)
        for call in self.calls.values():
            call.result(1, self.path)
        signal.signal(signal.SIGINT, self.on_signal)
        sys.unraisablehook = self.on_unraisable
        measures = []

        def conduct():
            begin, seconds = time.monotonic(), self.settings["seconds"]
            try:
                for share in (1 / 3, 2 / 3, 1):
                    self.disturb(begin + share * seconds)
                    measures.append(self.measured())
            except threading.BrokenBarrierError:
                pass
            except BaseException:
                self.fault(f"the conductor stopped:\n{traceback.format_exc()}")
                self.pause.abort()
            finally:
                self.ends.set()

        others = [threading.Thread(target=conduct)]
        others += [
            threading.Thread(target=self.caller, args=(i,)) for i in range(1, len(self.callers))
        ]
        for each in others:
            each.start()
        self.caller(0)
        for each in others:
            each.join()
        faulthandler.cancel_dump_traceback_later()
        return {
            "layer": self.layer,
            "done": self.done,
            "faults": self.faults,
            "slowest": self.slowest,
            "interrupts": self.interrupts,
            "interrupts_sent": self.interrupts_sent,
            "forks": self.forks,
            "measures": measures,
        }


def main():
    """Read settings from stdin, and write the report to stdout."""
    faulthandler.enable()
    report = Worker(json.load(sys.stdin)).run()
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
