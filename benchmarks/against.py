"""Two installed versions of regard in turns, on the cases of ``python -m regard bench``.

python benchmarks/against.py /path/to/old/bin/python /path/to/new/bin/python
python benchmarks/against.py old/bin/python new/bin/python --match causal --rounds 9 --threads 1

Both interpreters load the table of cases that lies beside this file, and each its own regard. They
take turns on every case, and the order changes from round to round, so that what disturbs one
disturbs the other as much. The second figure of a line is the median of the rounds' ratios, the
new version's time over the old one's, and the third their quartiles. A case that one version does
not know is named and left out.

The target and the threads are those of the environment: REGARD_TARGET, REGARD_NUM_THREADS.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parent.parent / "python" / "regard" / "bench"


def load_cases():
    """Load the folder of the cases as a package beside whichever regard is installed."""
    spec = importlib.util.spec_from_file_location(
        "bench", BENCH / "__init__.py", submodule_search_locations=[str(BENCH)]
    )
    sys.modules["bench"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["bench"])
    from bench.cases import CASES, COMPARISONS

    rows = [*CASES, *(row for row in COMPARISONS if not row.only_by_name and not row.threads)]
    return {row.name: row.problem for row in rows}


def serve():
    """Answer requests: "?" is answered with the names of the cases, a name prepares that case,
    and an empty line times it."""
    problems = load_cases()
    from bench.engines import Regard
    from bench.machine import streamed_bytes
    from bench.measuring import make_sets, runner_of
    from bench.rounds import in_turns

    import regard

    engine = Regard(regard.get_num_threads())
    runner = None
    for line in sys.stdin:
        name = line.strip()
        try:
            if name == "?":
                answer = list(problems)
            elif name:
                problem, runner = problems[name], None
                runner = runner_of(engine, problem, make_sets(problem, streamed_bytes()))
                runner.call()
                answer = None
            else:
                samples = in_turns({"": runner}, rounds=1, settle=0.1)[""][0]
                answer = statistics.median(samples)
        except Exception as error:
            answer = " ".join(f"{type(error).__name__}: {error}".split())
        print(json.dumps(answer), flush=True)


class Version:
    """A process that runs one of the two interpreters."""

    def __init__(self, python):
        self._process = subprocess.Popen(
            [python, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, line):
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def compare(old, new, name, rounds):
    """Return a line of the table."""
    for version in (old, new):
        if failed := version.ask(name):
            return f"{name:42} left out: {failed[:80]}"
    ratios, best = [], {old: float("inf"), new: float("inf")}
    for number in range(rounds):
        seconds = {}
        for version in (old, new) if number % 2 == 0 else (new, old):
            seconds[version] = version.ask("")
            best[version] = min(best[version], seconds[version])
        ratios.append(seconds[new] / seconds[old])
    first, middle, last = statistics.quantiles(ratios, n=4)
    times = f"{1e6 * best[old]:12.1f} {1e6 * best[new]:12.1f}"
    return f"{name:42} {middle:6.3f}  {first:.3f} to {last:.3f} {times}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", help="the interpreter with the version to compare with")
    parser.add_argument("new", help="the interpreter with the version that is compared")
    parser.add_argument("--match", default="", help="only cases whose name contains this")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each version (9)")
    parser.add_argument("--threads", help="REGARD_NUM_THREADS of both")
    arguments = parser.parse_args()
    if arguments.threads:
        os.environ["REGARD_NUM_THREADS"] = arguments.threads
    old, new = Version(arguments.old), Version(arguments.new)
    print(f"{'case':42} new/old  quartiles      old us, new us (best)", flush=True)
    for name in new.ask("?"):
        if arguments.match in name:
            print(compare(old, new, name, arguments.rounds), flush=True)


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["--serve"] else main()
