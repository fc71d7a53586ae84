"""Every scheduler gives the same bits for any number of workers, even if a worker is killed. The
threads of workers and of regard do not multiply."""

import os
import signal

import numpy as np
import pytest

pytest.importorskip("dask.array", reason='pip install ".[dask]"')
pytest.importorskip("distributed", reason='pip install ".[dask]"')

import dask
import distributed

import regard
import regard.dask
from cases import build
from dask_chunks import EVERYTHING, call
from reference import assert_same_bits

pytestmark = pytest.mark.slow


def everything(**settings):
    """Return output, lse and all gradients of a call with most options, in one collection."""
    problem = build(EVERYTHING, np.dtype(np.float32), 0.3)
    _, state, gradients = call(problem, "some chunks", most=6, **settings)
    return [*state, *gradients]


@pytest.fixture(scope="module")
def wanted():
    """Return what the calling thread by itself computes, task by task."""
    with dask.config.set(scheduler="synchronous"):
        return dask.compute(*everything())


@pytest.fixture(scope="module")
def cluster():
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        memory_limit=0,
        dashboard_address=None,
        silence_logs="CRITICAL",
    ) as cluster:
        yield cluster


@pytest.fixture
def client(cluster):
    with distributed.Client(cluster, set_as_default=True) as client:
        client.wait_for_workers(2, timeout=60)
        yield client


@pytest.mark.parametrize(("workers", "threads"), [(1, 1), (2, 1), (5, 1), (2, 2), (2, None)])
def test_threads(workers, threads, wanted):
    with dask.config.set(scheduler="threads", num_workers=workers):
        assert_same_bits(dask.compute(*everything(threads=threads)), wanted)


def test_processes(client, wanted):
    assert len(client.scheduler_info()["workers"]) == 2
    assert_same_bits(dask.compute(*everything()), wanted)


def test_results_of_a_killed_worker_are_computed_again(client, wanted):
    futures = client.compute(everything())
    distributed.wait(futures)
    victim = next(iter(client.run(os.getpid).values()))
    os.kill(victim, signal.SIGKILL)
    assert_same_bits(tuple(client.gather(futures)), wanted)


@pytest.mark.parametrize("options", ["{}", "{'threads': None}"])
def test_threads_of_dask_and_of_regard_do_not_multiply(options, output_of):
    """Eight Dask threads share the three workers of regard's pool, if it is used at all: there are
    never more threads than their sum."""
    script = """
        import os, threading, time
        import dask.array as da, numpy as np
        import regard.dask

        most, going = 0, True

        def watch():
            global most
            while going:
                most = max(most, len(os.listdir("/proc/self/task")))
                time.sleep(0.002)

        x = np.random.default_rng(0).standard_normal((4, 6000, 64), np.float32)
        x = da.from_array(x, chunks=(1, 1500, 64))
        output = regard.dask.scaled_dot_product_attention(x, x, x, **OPTIONS)
        watcher = threading.Thread(target=watch)
        before = len(os.listdir("/proc/self/task"))
        watcher.start()
        output.compute(scheduler="threads", num_workers=8)
        going = False
        watcher.join()
        print(most - before - 1)
    """
    environment = {"REGARD_NUM_THREADS": "4", "OPENBLAS_NUM_THREADS": "1"}
    more = int(output_of(script.replace("OPTIONS", options), **environment))
    assert 8 <= more <= 8 + 3


def test_workers_of_a_local_cluster_use_one_thread_each(client):
    """Their nannies set this with OMP_NUM_THREADS. It holds for the merges too, which have no
    `threads`."""
    assert set(client.run(regard.get_num_threads).values()) == {1}
