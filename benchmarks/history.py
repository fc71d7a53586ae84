"""The cases of ``benchmarks.table`` for asv, which plots their times over the commits.

cd benchmarks && asv run main && asv publish && asv preview

Only regard is timed, with the threads of REGARD_NUM_THREADS. The cases come from the checked-out
commit. A commit skips the cases that use an option or a type that it does not support.
"""

from __future__ import annotations

from functools import lru_cache

from benchmarks.this_bench import load_this_bench

load_this_bench()

import regard  # noqa: E402
from benchmarks.table.cases import CASES, COMPARISONS  # noqa: E402
from regard._bench.engines import Regard  # noqa: E402
from regard._bench.machine import streamed_bytes  # noqa: E402
from regard._bench.measuring import make_sets, runner_of  # noqa: E402

PROBLEMS = {row.name: row.problem for row in (*CASES, *COMPARISONS)}


@lru_cache(maxsize=1)  # asv sets up before every sample
def prepared(name):
    problem = PROBLEMS[name]
    engine = Regard(regard.get_num_threads())
    return runner_of(engine, problem, make_sets(problem, streamed_bytes())).call


class TimeRegard:
    params = tuple(PROBLEMS)
    param_names = ("case",)
    timeout = 300

    def setup(self, name):
        self.call = prepared(name)
        try:
            self.call()
        except TypeError:  # an option or a type that this commit does not support
            raise NotImplementedError from None

    def time_call(self, name):
        self.call()
