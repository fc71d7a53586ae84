"""Feed damaged files and arguments of any kind to the code that reads them.

python tests/fuzz/fuzz.py [--reader gguf ...] [--inputs 1000000] [--seed 0] [--begin 0]

Inputs are numbered: `--begin N --inputs 1` with the same seed makes input N again. A fault is a
crash, a hang, any exception but the documented ones, an error that does not name the file, a
refused file that has changed, or more memory than the files justify. The first fault ends the run
with exit code 1.
"""

import argparse
import faulthandler
import importlib.util
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import readers

MOST_MEMORY = 4 << 30  # bytes that inputs may add to what is there; includes threads
LONGEST = 60  # seconds for some inputs
TOLD = 256  # inputs between two looks at the clock


def limit_memory():
    """Let a forged size fail, as it does on a smaller machine."""
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            size = int(file.read().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):
        return
    resource.setrlimit(resource.RLIMIT_AS, (size + MOST_MEMORY, resource.RLIM_INFINITY))


def is_sanitized():
    """Return whether a sanitizer has reserved address space, which a limit would count."""
    try:
        return "libasan" in Path("/proc/self/maps").read_text()
    except OSError:
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--reader", nargs="+", choices=list(readers.READERS), default=None)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="for each reader")
    parser.add_argument("--seconds", type=float, help="longest time for each reader")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--begin", type=int, default=0, help="the number of the first input")
    options = parser.parse_args()
    faulthandler.enable()
    if not is_sanitized():
        limit_memory()

    for name in options.reader or readers.READERS:
        missing = [n for n in readers.READERS[name].needs if not importlib.util.find_spec(n)]
        if missing:
            print(f"{name}: skipped, it needs {', '.join(missing)}")
            continue
        began, fed = time.monotonic(), 0

        def told(number, began=began):
            nonlocal fed
            fed = number - options.begin
            if fed % TOLD == 0:
                faulthandler.dump_traceback_later(LONGEST, exit=True)
                if options.seconds and time.monotonic() - began > options.seconds:
                    raise TimeoutError

        try:
            taken = readers.fuzz(name, options.inputs, options.seed, options.begin, told)
            fed = options.inputs
            print(f"{name}: {fed} inputs, {taken} of them taken", flush=True)
        except TimeoutError:
            print(f"{name}: {fed} inputs before the time was over", flush=True)
        except readers.Fault as fault:
            print(f"FAULT {fault}", flush=True)
            raise
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
