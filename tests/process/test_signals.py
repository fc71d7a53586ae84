"""Signals during a call: it looks for them often, gives way to their handlers, and ends cleanly."""

import json
import signal
import textwrap

import pytest

import regard

OPERATIONS = """
import json, signal, time
import numpy as np, regard
testing = regard._core.testing
signal.signal(signal.SIGINT, signal.default_int_handler)
threads = THREADS
x = np.random.default_rng(0).standard_normal((1, 8192, 64)).astype("f4")
tall = np.random.default_rng(1).standard_normal((16384, 128)).astype("f4")

def attention(n):
    query = np.broadcast_to(x[:, :1], (1, n, 64))
    regard.scaled_dot_product_attention(query, x, x, threads=threads)

def one_row(n):
    keys = np.broadcast_to(x[:, :1], (1, 1024 * n, 64))
    regard.scaled_dot_product_attention(x[:, :1], keys, keys, threads=threads)

def uneven(n):
    query = np.broadcast_to(x[:, :1], (2, 1, 1, 64))
    keys = np.broadcast_to(x[:, :1], (2, 1, 1024 * n, 64))
    regard.scaled_dot_product_attention(
        query, keys, keys, is_causal=True, query_offset=[10 * n, 1024 * n], threads=threads
    )

def backward(n, **options):
    query = np.broadcast_to(x[:, :1], (1, n, 64))
    lse = np.broadcast_to(np.float32(9), (1, n))
    regard.scaled_dot_product_attention_backward(
        query, query, x, x, query, lse, threads=threads, **options
    )

def mask_gradient(n):
    backward(n, mask=np.zeros(x.shape[1], np.float32), with_respect_to=["mask"])

def count_of_mask(n):
    keys = np.broadcast_to(x[:, :1], (1, 1024 * n, 64))
    mask = np.broadcast_to(np.True_, (200, 1024 * n))
    regard.explain(x[:, :200], keys, keys, mask, threads=THREADS)

def count_of_decode(n):
    keys = np.broadcast_to(x[:, :1], (1, 1024 * n, 64))
    regard.explain(x[:, :1], keys, keys, alibi_slopes=[0.5], threads=THREADS)

def tangent(n):
    query = np.broadcast_to(x[:, :1], (1, n, 64))
    regard.scaled_dot_product_attention_jvp(query, x, x, query, x, x, threads=threads)

def matmul(n):
    regard.matmul(np.broadcast_to(tall[:, 0], (8 * n, 16384)), tall, threads=threads)

def long_sums(n):
    long = np.broadcast_to(x[0, :16, :1], (16, 1024 * n))
    regard.matmul(long, long.T, threads=threads)

def cost_of(call, n):
    # The looks and seconds of one thread: of several, the one that looks may do any part.
    # The seconds are those of a processor, which other programs do not lengthen.
    global threads
    threads, looks, begin = 1, testing.looks(), time.thread_time()
    call(n)
    threads = THREADS
    return testing.looks() - looks, time.thread_time() - begin
"""

# The number of multiplications of each operation for n = 1.
MULTIPLICATIONS = {
    "attention": 2 * 64 * 8192,
    "one_row": 2 * 64 * 1024,
    "uneven": 2 * 64 * 1034,
    "backward": 5 * 64 * 8192,
    "mask_gradient": 3 * 64 * 8192,
    "tangent": 4 * 64 * 8192,
    "matmul": 8 * 16384 * 128,
    "long_sums": 16 * 16 * 1024,
}

# The tests count how often a call checks for signals and how much it does after one; no clock tells
# how long it takes. This script only makes the call so long that one thread would compute for about
# 10 s.
LONG_CALL = (
    OPERATIONS
    + """
call = OPERATION
n = 1
while (cost := cost_of(call, n))[1] < 0.1:
    n *= 2
looks = testing.looks()
call(n)  # its threads may divide the work into smaller pieces than one does
expected = max(cost[0], testing.looks() - looks) * 10 / cost[1]
n = int(n * 10 / cost[1])
"""
)

INTERRUPTED = (
    LONG_CALL
    + """
before = testing.looks()
testing.raise_at_look(signal.SIGINT, 1)
try:
    call(n)
    outcome = "finished"
except KeyboardInterrupt:
    outcome = "interrupted"
after = testing.looks() - before - 1
small = x[:, :50]
output = regard.scaled_dot_product_attention(small, small, small, threads=THREADS)
weights = np.exp(small @ small.swapaxes(1, 2) / 8)
wanted = weights / weights.sum(-1, keepdims=True) @ small
print(json.dumps({
    "outcome": outcome,
    "share": after / expected,
    "works": bool(np.abs(output - wanted).max() < 1e-3),
    "beyond": call(1) is None,
}))
"""
)


# All targets check in the same places of their shared source, and operations are divided like one
# of these.
TARGETS = regard.cpu_targets()
INTERRUPTED_CALLS = [("attention", 2, TARGETS[0])]
INTERRUPTED_CALLS += [
    pytest.param(operation, threads, target, marks=pytest.mark.slow)
    for operation, threads, target in [
        *(("attention", 2, target) for target in TARGETS[1:]),
        *((each, 1, TARGETS[0]) for each in ("attention", "mask_gradient", "count_of_decode")),
        *((each, 2, TARGETS[0]) for each in ("one_row", "backward", "matmul")),
    ]
]


@pytest.mark.parametrize(("operation", "threads", "target"), INTERRUPTED_CALLS)
def test_interrupt_of_a_long_call(operation, threads, target, layer, output_of):
    """A call of about 10 s does less than a twentieth of its work after a signal, and the next call
    is right."""
    script = INTERRUPTED.replace("OPERATION", operation).replace("THREADS", str(threads))
    environment = {"REGARD_TARGET": target, "REGARD_THREADING_LAYER": layer}
    told = json.loads(output_of(script, timeout=120, **environment))
    assert told["outcome"] == "interrupted"
    assert told["share"] < 1 / 20
    assert told["works"]
    assert told["beyond"]


def test_a_call_looks_for_signals_between_pieces_of_a_few_milliseconds(target, output_of):
    """A piece has some 10 million multiplications on average."""
    counts = {name: 3 * 10**8 // each for name, each in MULTIPLICATIONS.items()}
    script = (
        OPERATIONS.replace("THREADS", "1")
        + f"""
print(json.dumps({{name: cost_of(globals()[name], n)[0] for name, n in {counts}.items()}}))
"""
    )
    for name, looks in json.loads(output_of(script, REGARD_TARGET=target)).items():
        assert counts[name] * MULTIPLICATIONS[name] < looks * 2**26, name


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="the system has no SIGALRM")
@pytest.mark.parametrize("handler", ["raises", pytest.param("forks", marks=pytest.mark.slow)])
def test_while_the_caller_waits_for_a_worker(handler, layer, output_of):
    """A handler runs that raises or forks. Its child has no worker to wait for. Nothing else ends
    the worker, so a caller that still waited for it would wait forever."""
    if layer == "serial":
        pytest.skip("there is no worker")
    script = """
    import os, signal
    import regard
    testing = regard._core.testing
    regard.softmax([[1.0, 2.0]])  # the layer of the environment is chosen
    def handle(*_):
        if HANDLER == "raises":
            raise KeyboardInterrupt
        children.append(os.fork())
        if children[0]:
            testing.let_the_worker_end()
    children, parent = [], os.getpid()
    signal.signal(signal.SIGALRM, handle)
    try:
        testing.wait_for_a_worker(signal.SIGALRM)
        ending = "returned"
    except (KeyboardInterrupt, RuntimeError) as error:
        ending = type(error).__name__
    if HANDLER == "raises":
        assert ending == "KeyboardInterrupt", ending
    elif os.getpid() != parent:
        right = ending == "RuntimeError"
        os._exit(0 if right and regard.softmax([[1.0, 2.0]]).shape == (1, 2) else 1)
    else:
        assert ending == "returned", ending
        assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
    print("done")
    """
    script = f"HANDLER = {handler!r}\n" + textwrap.dedent(script)
    assert output_of(script, REGARD_THREADING_LAYER=layer) == "done"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="the system has no SIGALRM")
def test_signal_handlers_run_meanwhile(target, layer, output_of):
    """A handler that returns, and computes itself, lets the call continue. A handler that raises
    ends it."""
    script = (
        LONG_CALL.replace("OPERATION", "attention").replace("THREADS", "2")
        + """
class Enough(Exception):
    pass

def enough(*_):
    raise Enough

def compute(*arrays):
    return regard.scaled_dot_product_attention(*arrays, threads=2).tobytes()

def handle(*_):
    handled.append(compute(small, small, small))
    testing.raise_at_look(signal.SIGALRM, 1)

query = np.random.default_rng(2).standard_normal((1, 1 << 17, 64)).astype("f4")
small = np.random.default_rng(3).standard_normal((3, 70, 200)).astype("f4")
wanted_small, handled, rows = compute(small, small, small), [], 128
signal.signal(signal.SIGALRM, handle)
while len(handled) < 3 and rows < query.shape[1]:  # the last one may have run after the call
    rows *= 2
    handled.clear()
    testing.raise_at_look(signal.SIGALRM, 1)
    output = compute(query[:, :rows], x, x)
during = list(handled)
testing.raise_at_look(signal.SIGALRM, 1 << 60)
right = output == compute(query[:, :rows], x, x) and set(during) == {wanted_small}
signal.signal(signal.SIGALRM, enough)
before = testing.looks()
testing.raise_at_look(signal.SIGALRM, 1)
try:
    call(n)
    outcome = "finished"
except Enough:
    outcome = "ended"
share = (testing.looks() - before - 1) / expected
print(json.dumps({"handled": len(during), "right": right, "outcome": outcome, "share": share}))
"""
    )
    environment = {"REGARD_TARGET": target, "REGARD_THREADING_LAYER": layer}
    told = json.loads(output_of(script, timeout=120, **environment))
    assert told["handled"] >= 3
    assert told["right"]
    assert told["outcome"] == "ended"
    assert told["share"] < 1 / 20
