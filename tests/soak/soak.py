"""Mixed calls under load: an hour's worth in minutes.

python tests/soak/soak.py [--seconds 300] [--processes 3] [--threads 3] [--cases 600] [--seed 0]

Every case, a call with its arrays and options (see `calls.py`), is made once by one thread on a
quiet machine, which gives the expected bits. Then several processes, each with one of the threading
layers and several Python threads, make the calls in any order with 1 to 4 threads or the current
value of `set_num_threads`. During this time the main threads are interrupted, processes are forked
and their children compute, and other programs use the processors and the memory (`beside.py`).
Faults are: unexpected bits, an exception that no call may raise, a hang, and memory, threads or
open files that grow after the first third of the time.

The script prints a table, and each fault with what is needed to reproduce it. The exit code is 1 if
there are any faults.
"""

import argparse
import collections
import contextlib
import faulthandler
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import beside
import calls
import regard

HERE = Path(__file__).parent
HAS_OPENMP = importlib.util.find_spec("regard._openmp") is not None
LAYERS = ["pool", *["openmp"] * HAS_OPENMP, "serial"]
# The amount that allocators and their arenas may keep beyond the resident memory after the first
# third.
MOST_GROWTH = 48 << 20


def parsed():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, kind, usual, help in (
        ("seconds", float, 300, "seconds under load"),
        ("processes", int, 3, "calling processes"),
        ("threads", int, 3, "Python threads in each"),
        ("cases", int, 600, "different calls"),
        ("seed", int, 0, "what determines the calls"),
    ):
        parser.add_argument(f"--{name}", type=kind, default=usual, help=f"{help} (%(default)s)")
    parser.add_argument(
        "--beside", nargs="*", choices=list(beside.PROGRAMS), default=["numpy", "memory"],
        help="programs that run next to the calls (default: all)",
    )  # fmt: skip
    parser.add_argument("--solve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if min(options.seconds, options.processes, options.threads, options.cases) <= 0:
        parser.error("numbers must be above 0")
    return options


def solve(options):
    """Print the expected result of each call, and how many calls of each kind are errors."""
    digests, errors = {}, collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.cases):
            call = calls.call_of(number, options.seed)
            result = call.result(1, lambda number=number: Path(folder) / str(number))
            errors[call.kind] += isinstance(result, str)
            digests[number] = calls.digest(result)
    json.dump({"digests": digests, "errors": errors}, sys.stdout)


def solved(options):
    """Return what `solve` prints in a separate process."""
    command = [sys.executable, __file__, "--solve"]
    command += ["--cases", str(options.cases), "--seed", str(options.seed)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


@contextlib.contextmanager
def running_beside(names):
    """Run these programs during the block."""
    programs = [subprocess.Popen([sys.executable, HERE / "beside.py", name]) for name in names]
    try:
        yield
        for name, program in zip(names, programs, strict=True):
            if program.poll() is not None:
                raise RuntimeError(f"the program {name} next to the calls ended by itself")
    finally:
        for program in programs:
            program.kill()
            program.wait()


def load(options, expected, folder):
    """Return the report of each process, or what happened to it."""
    settings = {
        "expected": expected,
        "seed": options.seed,
        "seconds": options.seconds,
        "threads": options.threads,
        "folder": str(folder),
    }
    processes = []
    for i in range(options.processes):
        environment = os.environ | {"REGARD_THREADING_LAYER": LAYERS[i % len(LAYERS)]}
        outputs = [folder / f"{name}{i}" for name in ("report", "errors")]
        with open(outputs[0], "wb") as output, open(outputs[1], "wb") as errors:
            each = subprocess.Popen(
                [sys.executable, HERE / "worker.py"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
                env=environment,
            )
        each.stdin.write(json.dumps(settings).encode())
        each.stdin.close()
        processes.append((each, *outputs))
    reports = []
    until = time.monotonic() + 2 * options.seconds + 600
    for each, output, errors in processes:
        try:
            each.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            each.kill()
            each.wait()
        said = errors.read_text(errors="replace")
        if each.returncode == 0:
            reports.append(json.loads(output.read_text()) | {"said": said})
        else:
            fault = f"a process ended with exit code {each.returncode}:\n{said}"
            reports.append({"faults": [fault], "said": ""})
    return reports


def growth(report, options):
    """Yield the resources of which a process has more than after the first third of the time."""
    if "measures" not in report:
        return
    if len(report["measures"]) != 3:
        yield "the process was not measured three times"
        return
    first, *_, last = report["measures"]
    # With OpenMP, each calling thread has its own team, which may be complete only later.
    teams = (calls.MOST_THREADS - 1) * options.threads if report["layer"] == "openmp" else 0
    more = {"resident": MOST_GROWTH, "task": teams, "fd": 0}
    for name in first:
        if last[name] > first[name] + more[name]:
            yield f"{name} grew from {first[name]} to {last[name]}"


def show(options, reports, errors):
    """Print the table, and return the faults."""
    done = collections.Counter()
    for report in reports:
        done.update(report.get("done", {}))
    print(f"{'kind':18}{'calls':>10}{'of them errors':>16}")
    cases = collections.Counter(
        calls.KINDS[n % len(calls.KINDS)].__name__ for n in range(options.cases)
    )
    for kind in sorted(cases):
        print(f"{kind:18}{done[kind]:10}{errors.get(kind, 0):9} of {cases[kind]} cases")
    faults = []
    for i, report in enumerate(reports):
        faults += [f"process {i}: {each}" for each in [*report["faults"], *growth(report, options)]]
        if report["said"]:
            faults.append(f"process {i} wrote to stderr:\n{report['said']}")
        if "measures" not in report:
            continue
        print(
            f"process {i} ({report['layer']}): {sum(report['done'].values())} calls, "
            f"{report['interrupts']} stopped by {report['interrupts_sent']} signals, "
            f"{report['forks']} forks, resources {report['measures']}; slowest call "
            f"{report['slowest'][0]:.2f} s ({report['slowest'][1]})"
        )
    print(
        f"{sum(done.values())} calls of {options.cases} cases (seed {options.seed}), target "
        f"{regard.active_target()}, beside {', '.join(options.beside) or 'nothing'}: "
        f"{len(faults) or 'no'} fault{'s' * (len(faults) != 1)}"
    )
    for each in faults:
        print(f"FAULT {each}")
    return faults


def main():
    faulthandler.enable()
    options = parsed()
    if options.solve:
        return solve(options)
    answers = solved(options)
    with tempfile.TemporaryDirectory() as folder, running_beside(options.beside):
        reports = load(options, answers["digests"], Path(folder))
    return int(bool(show(options, reports, answers["errors"])))


if __name__ == "__main__":
    sys.exit(main())
