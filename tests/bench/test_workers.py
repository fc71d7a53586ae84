"""Test benchmarks/workers.py: it counts what regard computes, and distributes tasks as regard
does."""

import sys

import numpy as np
import pytest

import regard
from reference import assert_same_bits


@pytest.fixture(scope="module")
def workers():
    from benchmarks import workers

    assert {name.partition(" ")[0] for name, _ in workers.cases()} > {
        "backward",
        "decode",
        "matmul",
    }
    return workers


@pytest.mark.parametrize("threads", [1, 2, 7, 64])
def test_every_operation_is_counted_once(workers, threads, target):
    """The count of causal problems includes the work of tiles on the diagonal beyond it."""
    for name, problem in workers.cases():
        loops, _ = workers.count(workers.call_of(problem), threads)
        counted = sum(multiplications for _, _, tasks in loops for multiplications, _ in tasks)
        operations = problem.flops / 2
        if getattr(problem, "is_causal", False):
            assert operations < counted < 1.2 * operations, name
        else:
            assert counted == operations, name


@pytest.mark.parametrize("threads", [2, 7, 16, 64])
def test_no_task_is_empty(workers, threads, target):
    """Each part of a head gets strips, whatever their number."""
    for name, problem in workers.cases():
        if not name.startswith(("backward", "matmul")):
            loops, _ = workers.count(workers.call_of(problem), threads)
            for _, _, tasks in loops:
                assert min(multiplications for multiplications, _ in tasks) > 0, name


def test_eight_workers_are_busy(workers, target):
    """Tasks may have unequal weight, such as the chunks of keys in a causal backward call."""
    for name, problem in workers.cases():
        for count in (2, 8):
            result = workers.simulate(workers.call_of(problem), count, gflops=100, bandwidth=10)
            assert result["balance"] > (0.9 if count == 8 else 0.97), (name, count, result)
            assert result["memory"] < (12 if name.startswith(("backward", "matmul")) else 2), name


def test_calls_compute_again_after_counting(workers):
    x = np.random.default_rng(0).standard_normal((4, 300, 64)).astype("f4")
    wanted = regard.scaled_dot_product_attention(x, x, x, threads=2)
    loops, _ = workers.count(
        lambda threads: regard.scaled_dot_product_attention(x, x, x, threads=threads), 64
    )
    assert len(loops) == 1
    assert regard._core.testing.end_counting() == []
    assert_same_bits(regard.scaled_dot_product_attention(x, x, x, threads=2), wanted)

    def fail(threads):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        workers.count(fail, 2)
    assert_same_bits(regard.scaled_dot_product_attention(x, x, x, threads=2), wanted)


@pytest.mark.parametrize(
    ("costs", "workers_of_loop", "by_range", "end"),
    [
        ([1, 1, 1, 1], 2, False, 2),
        ([1, 1, 1, 1, 1], 2, False, 3),
        ([1, 1, 1, 5], 2, False, 6),  # the last task is the longest
        ([5, 1, 1, 1], 2, False, 5),
        ([1, 1, 3, 3], 2, True, 5),  # the first worker continues with the second range
        ([1, 1, 3, 3], 1, True, 8),
        ([1] * 64, 64, True, 1),  # pairs of workers share a range
        ([2], 8, False, 2),
    ],
)
def test_tasks_are_handed_out_as_by_parallel_for(workers, costs, workers_of_loop, by_range, end):
    assert workers.end_of(costs, workers_of_loop, by_range) == end


def test_the_table(workers, monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "argv", ["workers.py", "--workers", "2", "64", "--case", "decode 1x32/8x4096"]
    )
    workers.main()
    *_, heads, rule, row = capsys.readouterr().out.splitlines()
    assert heads == "| case | 2 | 64 | tasks | loops | tail | MiB | GB/s |"
    assert rule.count("|") == heads.count("|") == row.count("|")
    assert row.startswith("| decode 1x32/8x4096x128 | ")
