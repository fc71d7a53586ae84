"""Compare two installed versions of regard on the cases of ``benchmarks.table``, interleaved.

python -m benchmarks.against /path/to/old/bin/python /path/to/new/bin/python
python -m benchmarks.against old/bin/python new/bin/python --match causal --pairs 5 --threads 1

Both interpreters load the cases and the measuring code of this repository, and each loads its own
regard. Their calls are interleaved in every case, in an order that alternates between rounds, so
that disturbances affect both. The second column of a line is the median over rounds of the ratio of
the new time to the old time, and the third column contains its quartiles. Cases that one version
cannot compute are left out.

The environment determines the target and the threads: REGARD_TARGET, REGARD_NUM_THREADS.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys

import numpy as np

from benchmarks.pairs import serve, times_of
from benchmarks.this_bench import load_this_bench


def load_cases():
    """Load the table and the measuring code of this repository, whichever regard is installed."""
    load_this_bench()
    from benchmarks.table.cases import CASES, COMPARISONS

    rows = [*CASES, *(row for row in COMPARISONS if not row.only_by_name and not row.threads)]
    return {row.name: row.problem for row in rows}


def serve_cases():
    problems = load_cases()
    import regard
    from regard._bench.engines import Regard
    from regard._bench.machine import streamed_bytes
    from regard._bench.measuring import make_sets, runner_of
    from regard._bench.rounds import in_turns

    engine = Regard(regard.get_num_threads())

    def prepare(name):
        problem = problems[name]
        runner = runner_of(engine, problem, make_sets(problem, streamed_bytes()))
        runner.call()
        return lambda: statistics.median(in_turns({"": runner}, rounds=1, settle=0.1)[""][0])

    serve(prepare)


def compare(pythons, name, rounds, pairs):
    """Return a line of the table."""
    commands = [[python, "-m", "benchmarks.against", "--serve"] for python in pythons]
    times = times_of(commands, name, rounds, pairs)
    if isinstance(times, str):
        return f"{name:42} left out: {times[:80]}"
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
    listing = [arguments.new, "-m", "benchmarks.against", "--names"]
    for name in subprocess.check_output(listing, text=True).splitlines():
        if arguments.match in name:
            print(compare(pythons, name, arguments.rounds, arguments.pairs), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve_cases()
    elif sys.argv[1:] == ["--names"]:
        print(*load_cases(), sep="\n")
    else:
        main()
