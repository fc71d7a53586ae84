"""Threads, forks, exceptions and signals: whatever happens around a call, it ends well."""

import json
import os
import signal
import threading

import numpy as np
import pytest

import regard
from reference import assert_same_bits

sdpa = regard.scaled_dot_product_attention
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


def normal(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# Number of threads


@pytest.fixture
def restore_threads():
    yield
    regard.set_num_threads(None)


def test_set_and_get(restore_threads):
    for n in (1, 3, 2):
        regard.set_num_threads(n)
        assert regard.get_num_threads() == n
    regard.set_num_threads(np.int64(2))
    assert regard.get_num_threads() == 2


@pytest.mark.parametrize("n", [0, -1, -(2**31)])
def test_set_refuses_less_than_one(n, restore_threads):
    regard.set_num_threads(2)
    with pytest.raises(ValueError, match=rf"(?<!\d){n}\b"):
        regard.set_num_threads(n)
    assert regard.get_num_threads() == 2


def test_argument_is_for_one_call(restore_threads, target):
    regard.set_num_threads(2)
    sdpa(*[normal(2, 40, 8)] * 3, threads=3)
    regard.softmax(normal(50, 50), threads=1)
    assert regard.get_num_threads() == 2


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({"REGARD_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": "3,2"}, 3),
        ({"REGARD_NUM_THREADS": "3", "OMP_NUM_THREADS": "5"}, 3),
        ({"REGARD_NUM_THREADS": "5", "OMP_NUM_THREADS": "3"}, 5),
    ],
    ids=str,
)
def test_environment(environment, wanted, output_of):
    script = "import regard; print(regard.get_num_threads())"
    assert output_of(script, **environment) == str(wanted)
    script = "import regard; regard.set_num_threads(2); print(regard.get_num_threads())"
    assert output_of(script, **environment) == "2"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="there is no affinity here")
def test_default_is_what_the_process_may_use(output_of):
    cpus = os.sched_getaffinity(0)
    script = "import regard; print(regard.get_num_threads())"
    assert 1 <= int(output_of(script)) <= len(cpus)
    pinned = f"import os; os.sched_setaffinity(0, {{{min(cpus)}}}); {script}"
    assert output_of(pinned) == "1"


def test_absurd_number_of_threads(target, run_python):
    """More than the system can start: the right answer or a ValueError."""
    script = """
    import numpy as np, regard
    x = np.random.default_rng(0).standard_normal((64, 300, 8))
    wanted = regard.scaled_dot_product_attention(x, x, x, threads=1)
    for threads in (10**6, 2**31 - 1, 2**31, 2**40):
        try:
            output = regard.scaled_dot_product_attention(x, x, x, threads=threads)
            assert output.tobytes() == wanted.tobytes()
        except ValueError as refusal:
            assert "threads" in str(refusal)
    print("done")
    """
    done = run_python(script, REGARD_TARGET=target)
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr


# Several callers at once


def test_python_threads_compute_at_once(target):
    """Each with its own problem and number of threads, with the bits of a lone call."""
    problems = [
        [normal(2, 60 + 20 * i, 8 + 7 * i, seed=i, dtype=("f4", "f8")[i % 2])] * 3 for i in range(4)
    ]
    wanted = [(sdpa(*p, is_causal=True), regard.softmax(p[0])) for p in problems]
    failures, start = [], threading.Barrier(len(problems))

    def work(i):
        try:
            start.wait(timeout=30)
            for repeat in range(25):
                output = sdpa(*problems[i], is_causal=True, threads=1 + (repeat + i) % 3)
                assert_same_bits((output, regard.softmax(problems[i][0])), wanted[i])
        except BaseException as failure:
            failures.append(failure)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(len(problems))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=60)
        assert not worker.is_alive()
    assert not failures, failures


def test_other_python_threads_run_meanwhile(target, output_of):
    """The GIL is free while a kernel runs."""
    script = """
    import threading, time
    import numpy as np, regard
    x = np.ones((1, 256, 64), "f4")
    def seconds(n):
        query = np.broadcast_to(x[:, :1], (1, n, 64))
        start = time.perf_counter()
        regard.scaled_dot_product_attention(query, x, x, threads=1)
        return time.perf_counter() - start
    n = 1000
    while seconds(n) < 0.05:
        n *= 2
    worker = threading.Thread(target=seconds, args=(10 * n,))
    worker.start()
    ticks = 0
    while worker.is_alive():
        time.sleep(0.005)
        ticks += 1
    print(ticks)
    """
    assert int(output_of(script, REGARD_TARGET=target)) >= 10


@needs_fork
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_forked_children_compute(threads, target, output_of):
    """After the parent has; from a second thread; while another thread computes; a grandchild."""
    script = f"""
    import multiprocessing, threading, warnings
    import numpy as np, regard
    warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads
    x = np.random.default_rng(0).standard_normal((4, 200, 16))
    def compute():
        return regard.scaled_dot_product_attention(x, x, x, threads={threads}).tobytes()
    wanted = compute()
    context = multiprocessing.get_context("fork")
    def child(queue, deeper):
        queue.put(compute() == wanted and regard.softmax(x, threads={threads}).any())
        if deeper:
            fork(False)
    def fork(deeper=True):
        queue = context.SimpleQueue()
        process = context.Process(target=child, args=(queue, deeper))
        process.start()
        process.join(20)
        alive = process.is_alive()
        if alive:
            process.kill()
        assert not alive and process.exitcode == 0, "the child hangs or died"
        assert queue.get()
    fork()
    assert compute() == wanted
    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
    stop = threading.Event()
    def keep_computing():
        while not stop.is_set():
            assert compute() == wanted
    busy = threading.Thread(target=keep_computing)
    busy.start()
    try:
        for _ in range(5):
            fork(False)
    finally:
        stop.set()
        busy.join()
    assert compute() == wanted
    print("done")
    """
    assert output_of(script, timeout=100, REGARD_TARGET=target) == "done"


@needs_fork
def test_forked_pool(target, output_of):
    script = """
    import concurrent.futures, multiprocessing, warnings
    import numpy as np, regard
    warnings.simplefilter("ignore", DeprecationWarning)
    def compute(seed):
        x = np.random.default_rng(seed).standard_normal((4, 100, 16))
        return regard.scaled_dot_product_attention(x, x, x, threads=2).tobytes()
    wanted = [compute(i) for i in range(8)]
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(3, context) as pool:
        assert list(pool.map(compute, range(8), timeout=30)) == wanted
    print("done")
    """
    assert output_of(script, REGARD_TARGET=target) == "done"


# Exceptions and signals


def test_exception_in_a_parallel_region_reaches_python(target, capfd):
    x = normal(2, 40, 8)
    wanted = sdpa(x, x, x)
    for _ in range(3):
        with pytest.raises(RuntimeError):
            regard._core._raise_in_parallel_region()
        assert_same_bits(sdpa(x, x, x, threads=2), wanted)
    assert capfd.readouterr() == ("", "")


LONG_CALL = """
import json, os, signal, sys, threading, time
import numpy as np, regard
signal.signal(signal.SIGINT, signal.default_int_handler)
x = np.random.default_rng(0).standard_normal((1, 8192, 64)).astype("f4")
tall = np.random.default_rng(1).standard_normal((16384, 128)).astype("f4")

def attention(n):
    query = np.broadcast_to(x[:, :1], (1, n, 64))
    regard.scaled_dot_product_attention(query, x, x, threads=THREADS)

def one_row(n):
    keys = np.broadcast_to(x[:, :1], (1, 1024 * n, 64))
    regard.scaled_dot_product_attention(x[:, :1], keys, keys, threads=THREADS)

def uneven(n):
    query = np.broadcast_to(x[:, :1], (2, 1, 1, 64))
    keys = np.broadcast_to(x[:, :1], (2, 1, 1024 * n, 64))
    regard.scaled_dot_product_attention(
        query, keys, keys, is_causal=True, query_offset=[10 * n, 1024 * n], threads=THREADS
    )

def matmul(n):
    regard.matmul(np.broadcast_to(tall[:, 0], (8 * n, 16384)), tall, threads=THREADS)

def long_sums(n):
    long = np.broadcast_to(x[0, :16, :1], (16, 1024 * n))
    regard.matmul(long, long.T, threads=THREADS)

call, n = OPERATION, 1
while True:
    start = time.perf_counter()
    call(n)
    seconds = time.perf_counter() - start
    if seconds > 0.05:
        break
    n *= 2
n = int(n * 10 / seconds)
"""

INTERRUPTED = (
    LONG_CALL
    + """
sent = []
def interrupt():
    time.sleep(0.3)
    sent.append(time.perf_counter())
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
start = time.perf_counter()
try:
    call(n)
    outcome, end = "finished", time.perf_counter()
except KeyboardInterrupt:
    outcome, end = "interrupted", time.perf_counter()
small = x[:, :50]
output = regard.scaled_dot_product_attention(small, small, small, threads=THREADS)
weights = np.exp(small @ small.swapaxes(1, 2) / 8)
wanted = weights / weights.sum(-1, keepdims=True) @ small
print(json.dumps({
    "outcome": outcome,
    "delay": end - sent[0],
    "works": bool(np.abs(output - wanted).max() < 1e-3),
    "beyond": call(1) is None,
}))
"""
)


@pytest.mark.parametrize(
    ("operation", "threads"),
    [
        ("attention", 1),
        ("attention", 2),
        ("one_row", 2),
        ("uneven", 2),
        ("matmul", 2),
        ("long_sums", 2),
    ],
)
def test_interrupt_of_a_long_call(operation, threads, target, output_of):
    """A call sized to take about 10 s gives way within 0.3 s, and the next one is right."""
    script = INTERRUPTED.replace("OPERATION", operation).replace("THREADS", str(threads))
    told = json.loads(output_of(script, REGARD_TARGET=target, timeout=120))
    assert told["outcome"] == "interrupted"
    assert told["delay"] < 0.3
    assert told["works"]
    assert told["beyond"]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no timers here")
def test_signal_handlers_run_meanwhile(target, output_of):
    """One that returns, and computes itself, lets the call go on; one that raises ends it."""
    script = (
        LONG_CALL.replace("OPERATION", "attention").replace("THREADS", "2")
        + """
class Enough(Exception):
    pass

def enough(*_):
    raise Enough

def compute(*arrays):
    return regard.scaled_dot_product_attention(*arrays, threads=2).tobytes()

query = np.random.default_rng(2).standard_normal((1, n // 20, 64)).astype("f4")
small = np.random.default_rng(3).standard_normal((3, 70, 200)).astype("f4")
wanted, wanted_small, handled = compute(query, x, x), compute(small, small, small), []
signal.signal(signal.SIGALRM, lambda *_: handled.append(compute(small, small, small)))
signal.setitimer(signal.ITIMER_REAL, 0.03, 0.03)
output = regard.scaled_dot_product_attention(query, x, x, threads=2)
during = list(handled)
signal.setitimer(signal.ITIMER_REAL, 0)
signal.signal(signal.SIGALRM, enough)
signal.setitimer(signal.ITIMER_REAL, 0.2)
begin = time.perf_counter()
try:
    call(n)
    outcome = "finished"
except Enough:
    outcome = "ended"
print(json.dumps({
    "handled": len(during) - 1,  # the last one may have run after the call
    "right": output.tobytes() == wanted and set(during) == {wanted_small},
    "outcome": outcome,
    "delay": time.perf_counter() - begin - 0.2,
}))
"""
    )
    told = json.loads(output_of(script, REGARD_TARGET=target))
    assert told["handled"] >= 2
    assert told["right"]
    assert told["outcome"] == "ended"
    assert told["delay"] < 0.3


@pytest.mark.parametrize("size", [5, 5000])
def test_exit_while_daemon_threads_compute(size, target, output_of):
    """Threads that come back from a kernel, or look for signals, while the interpreter goes away.
    What is torn down late keeps it going long enough for them to meet that."""
    script = f"""
    import threading, time
    import numpy as np, regard
    class Late:
        def __del__(self, sleep=time.sleep):
            sleep(0.5)
    late = Late()
    x = np.random.default_rng(0).standard_normal((4, {size}, 64)).astype("f4")
    def work():
        while True:
            regard.scaled_dot_product_attention(x, x, x, threads=2)
            regard.softmax(x)
    for _ in range(2):
        threading.Thread(target=work, daemon=True).start()
    time.sleep(0.1)
    print("left")
    """
    assert output_of(script, REGARD_TARGET=target) == "left"


def test_a_finalizer_computes_at_exit(target, output_of):
    """The thread that finalizes the interpreter may still compute; the others sleep."""
    script = """
    import threading, time
    import numpy as np, regard
    x = np.random.default_rng(0).standard_normal((4, 2000, 64)).astype("f4")
    class Late:
        def __del__(self, compute=regard.scaled_dot_product_attention, x=x, write=print):
            two, one = (compute(x, x, x, threads=threads).tobytes() for threads in (2, 1))
            write("same" if two == one else "different")
    regard.late = Late()
    def work():
        while True:
            regard.scaled_dot_product_attention(x, x, x, threads=2)
    threading.Thread(target=work, daemon=True).start()
    time.sleep(0.1)
    """
    assert output_of(script, REGARD_TARGET=target) == "same"
