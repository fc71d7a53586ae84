"""How many threads a call uses, what happens if there are fewer, and several callers at once.
tests/attention/test_same_bits.py draws problems for some threads of every layer."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import regard
from call_families import with_families
from data_kinds import normal
from reference import assert_same_bits

sdpa = regard.scaled_dot_product_attention
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="as Linux counts or sets it")
has_affinity = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="the system has no affinity"
)


# Number of threads


def test_set_and_get():
    """The argument of a call is for this call."""
    try:
        for n in (1, 3, np.int64(2)):
            regard.set_num_threads(n)
            assert regard.get_num_threads() == n
        sdpa(*[normal(2, 40, 8)] * 3, threads=3)
        assert regard.get_num_threads() == 2
    finally:
        regard.set_num_threads(None)


@pytest.mark.parametrize(
    "environment",
    [
        {"REGARD_NUM_THREADS": "3"},
        {"OMP_NUM_THREADS": "3,2"},
        {"REGARD_NUM_THREADS": "3", "OMP_NUM_THREADS": "5"},
    ],
    ids=str,
)
def test_environment(environment, output_of):
    script = "import regard; print(regard.get_num_threads())"
    assert output_of(script, **environment) == "3"


def test_wrong_words_in_the_environment(output_of):
    """Importing regard does not fail because of them, but every use does and says why."""
    script = """
    import regard
    uses = [lambda: regard.softmax([1.0], threads=1), regard.threading_layer, regard.show_config]
    for use in [*uses, regard.get_num_threads]:
        try:
            use()
        except ValueError as error:
            print("REGARD_" in str(error) and "'tbb'" in str(error))
    """
    assert output_of(script, REGARD_THREADING_LAYER="tbb").split() == ["True"] * 4
    assert "True" in output_of(script, REGARD_NUM_THREADS="tbb").split()


@has_affinity
def test_the_default_is_what_the_process_may_use(output_of):
    """A new affinity counts after the first call too: the number is asked for again, though not in
    every call."""
    script = """
    import os, time
    import numpy as np, regard
    x = np.ones((8, 600, 64), np.float32)
    cpus = os.sched_getaffinity(0)
    def threads():
        time.sleep(0.02)
        regard.scaled_dot_product_attention(x, x, x)
        return regard.explain(x, x, x).threads, regard.get_num_threads()
    before = threads()
    assert 1 <= before[1] <= len(cpus)
    os.sched_setaffinity(0, {min(cpus)})
    assert threads() == (1, 1)
    os.sched_setaffinity(0, cpus)
    assert threads() == before
    print("done")
    """
    assert output_of(script) == "done"


# More threads than processors


@pytest.mark.every("layer")
def test_absurd_numbers_of_threads(target, layer, output_of):
    """More threads than the system can start give the right answer or a ValueError, and leave at
    most 64 workers in the process."""
    script = """
    import sys, time
    import numpy as np, regard
    def workers():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("Threads"))
    x = np.random.default_rng(0).standard_normal((3000, 64, 8)).astype("f4")
    wanted = regard.scaled_dot_product_attention(x, x, x, threads=1)
    before = workers() if sys.platform == "linux" else None
    for threads in (65536, 10**6, 2**31, 2**40):
        try:
            output = regard.scaled_dot_product_attention(x, x, x, threads=threads)
            assert output.tobytes() == wanted.tobytes()
        except ValueError as refusal:
            assert "threads" in str(refusal)
    pool = regard.threading_layer().name == "pool"
    while before and pool and workers() > before + 64:  # without an end, if they stay
        time.sleep(0.01)
    print("done")
    """
    environment = {"REGARD_TARGET": target, "REGARD_THREADING_LAYER": layer}
    assert output_of(script, timeout=60, **environment) == "done"


def test_same_bits_on_any_number_of_threads(target, layer, output_of):
    """Small machines run as many threads as large machines have, on one CPU too."""
    script = """
    affinity = hasattr(os, "sched_setaffinity")
    for name, call in call_families(256).items():
        wanted = [array.tobytes() for array in call(1)]
        for threads in (3, 64, 256):
            for _ in range(2):  # with fresh and with kept memory
                assert [array.tobytes() for array in call(threads)] == wanted, (name, threads)
        if affinity:
            cpus = os.sched_getaffinity(0)
            os.sched_setaffinity(0, {min(cpus)})
            assert [array.tobytes() for array in call(64)] == wanted, name
            os.sched_setaffinity(0, cpus)
    print("done")
    """
    environment = {"REGARD_TARGET": target, "REGARD_THREADING_LAYER": layer}
    assert output_of(with_families(script), **environment) == "done"


@on_linux
@pytest.mark.parametrize("starts_workers", [True, False], ids=["of the starter", "of the caller"])
def test_how_threads_round(starts_workers, target, layer, output_of):
    """All threads of a call round like the calling thread, whoever started them and in whichever
    mode: other libraries change it for a while, or for their own threads."""
    script = f"""
    import ctypes, platform
    import numpy as np, regard
    libm = ctypes.CDLL("libm.so.6")
    modes = {{"x86_64": (0x400, 0x800, 0xC00, 0)}}.get(
        platform.machine(), (0x400000, 0x800000, 0xC00000, 0)
    )
    x = np.random.default_rng(0).standard_normal((4, 200, 64))

    def call(threads):
        return regard.scaled_dot_product_attention(x, x, x, threads=threads).tobytes()

    if {starts_workers}:
        assert libm.fesetround(modes[0]) == 0
        call(3)
        assert libm.fesetround(modes[-1]) == 0
    call(3)
    alone = set()
    for mode in modes:
        assert libm.fesetround(mode) == 0
        wanted = call(1)
        alone.add(wanted)
        for _ in range(20):
            assert call(3) == wanted, mode
        assert libm.fegetround() == mode
    print(len(alone))
    """
    environment = {"REGARD_TARGET": target, "REGARD_THREADING_LAYER": layer}
    assert int(output_of(script, **environment)) > 1


# Several callers at once


def test_python_threads_compute_at_once(target, layer):
    """Each thread has its own problem and number of threads, and gets the bits of a call that runs
    by itself."""
    problems = [normal(2, 60 + 20 * i, 8 + 7 * i, dtype=("f4", "f8")[i % 2]) for i in range(4)]
    wanted = [(sdpa(x, x, x), regard.softmax(x)) for x in problems]

    def work(i):
        x = problems[i]
        for repeat in range(25):
            output = sdpa(x, x, x, threads=1 + (repeat + i) % 3)
            assert_same_bits((output, regard.softmax(x, threads=2)), wanted[i])
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4), timeout=60))


@pytest.mark.slow
def test_other_python_threads_run_meanwhile(target, output_of):
    """The GIL is released while a kernel runs, so Python observes a call between its first and last
    check for signals. Otherwise it would only observe whole calls."""
    script = """
    import threading
    import numpy as np, regard
    looks = regard._core.testing.looks
    x = np.ones((1, 256, 64), "f4")
    query = np.broadcast_to(x[:, :1], (1, 100_000, 64))
    def compute():
        regard.scaled_dot_product_attention(query, x, x, threads=1)
    before = looks()
    compute()
    of_a_call = looks() - before
    stop, begin, seen = threading.Event(), looks(), set()
    def work():
        while not stop.is_set():
            compute()
    worker = threading.Thread(target=work)
    worker.start()
    while len(seen) < 10:
        if (at := looks() - begin) % of_a_call:
            seen.add(at)
    stop.set()
    worker.join()
    print("seen")
    """
    assert output_of(script, REGARD_TARGET=target) == "seen"


def test_an_exception_in_a_parallel_region_reaches_python(target, layer, silence):
    x = normal(2, 40, 8)
    wanted = sdpa(x, x, x)
    for _ in range(3):
        with pytest.raises(RuntimeError):
            regard._core.testing.raise_in_parallel_region()
        assert_same_bits(sdpa(x, x, x, threads=2), wanted)
