"""The cases of ``python -m regard bench`` for asv, which draws their times over the commits.

cd benchmarks && asv run main && asv publish && asv preview

Only regard is timed, with the threads of REGARD_NUM_THREADS. Commits without the module
regard._bench.cases are skipped; later ones take part with the cases of their own table.
"""

from __future__ import annotations

from functools import lru_cache

import regard
from regard._bench.cases import CASES, COMPARISONS
from regard._bench.engines import Regard
from regard._bench.machine import streamed_bytes
from regard._bench.measuring import make_sets, runner_of

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
        except TypeError:  # an option or a type that this commit does not have
            raise NotImplementedError from None

    def time_call(self, name):
        self.call()
