"""Compare two installed versions of regard on the cases of ``benchmarks.table``, interleaved.

python -m benchmarks.against /path/to/old/bin/python /path/to/new/bin/python
python -m benchmarks.against old/bin/python new/bin/python --match causal --pairs 5 --threads 1

Both interpreters load the cases and the measuring code of this repository, and each loads its own
regard. Their calls are interleaved in every case, in an order that alternates between rounds, so
that disturbances affect both. The second column of a line is the median over rounds of the ratio of
the new time to the old time, and the third column contains its quartiles. Cases that one version
cannot compute are left out.

A process keeps the physical memory that it was given, which makes cases that read from memory up to
a tenth faster or slower. Each case is therefore timed in several pairs of processes.

The environment determines the target and the threads: REGARD_TARGET, REGARD_NUM_THREADS.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys

import numpy as np

from benchmarks.this_bench import load_this_bench


def load_cases():
    """Load the table and the measuring code of this repository, whichever regard is installed."""
    load_this_bench()
    from benchmarks.table.cases import CASES, COMPARISONS

    rows = [*CASES, *(row for row in COMPARISONS if not row.only_by_name and not row.threads)]
    return {row.name: row.problem for row in rows}


def serve():
    """Answer requests: "?" is answered with the names of the cases, a name prepares that case,
    and an empty line times it."""
    problems = load_cases()
    import regard
    from regard._bench.engines import Regard
    from regard._bench.machine import streamed_bytes
    from regard._bench.measuring import make_sets, runner_of
    from regard._bench.rounds import in_turns

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
            [python, "-m", "benchmarks.against", "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def end(self):
        self._process.stdin.close()
        self._process.wait()

    def ask(self, line):
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def time_pair(pythons, name, rounds, first):
    """Return the seconds of every round in two new processes, or the reason for a failure."""
    versions = [Version(python) for python in pythons]
    try:
        for version in versions:
            if failed := version.ask(name):
                return failed
        return [time_round(versions, (number + first) % 2) for number in range(rounds)]
    finally:
        for version in versions:
            version.end()


def time_round(versions, first):
    seconds = {which: versions[which].ask("") for which in (first, 1 - first)}
    return seconds[0], seconds[1]


def compare(pythons, name, rounds, pairs):
    """Return a line of the table."""
    times = []
    for number in range(pairs):
        found = time_pair(pythons, name, rounds, number)
        if isinstance(found, str):
            return f"{name:42} left out: {found[:80]}"
        times += found
    first, middle, last = np.quantile([new / old for old, new in times], [0.25, 0.5, 0.75])
    old, new = (min(seconds) for seconds in zip(*times, strict=True))
    best = f"{1e6 * old:12.1f} {1e6 * new:12.1f}"
    return f"{name:42} {middle:6.3f}  {first:.3f} to {last:.3f} {best}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", help="the interpreter of the baseline version")
    parser.add_argument("new", help="the interpreter of the version to compare")
    parser.add_argument("--match", default="", help="only cases whose name contains this")
    parser.add_argument("--rounds", type=int, default=5, help="rounds in a pair of processes (5)")
    parser.add_argument("--pairs", type=int, default=3, help="pairs of processes (3)")
    parser.add_argument("--threads", help="REGARD_NUM_THREADS for both")
    arguments = parser.parse_args()
    if arguments.threads:
        os.environ["REGARD_NUM_THREADS"] = arguments.threads
    pythons = arguments.old, arguments.new
    print(f"{'case':42} new/old  quartiles      old us, new us (best)", flush=True)
    asked = Version(arguments.new)
    names = asked.ask("?")
    asked.end()
    for name in names:
        if arguments.match in name:
            print(compare(pythons, name, arguments.rounds, arguments.pairs), flush=True)


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["--serve"] else main()
