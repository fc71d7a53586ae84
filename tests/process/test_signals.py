"""Signals during a call: it looks for them often, gives way to their handlers, and ends cleanly."""

import json
import signal

import pytest

import regard

# Operations as functions of a size, which is the number of looks of a long call times something.
OPERATIONS = """
import json, signal, time
import numpy as np, regard
testing, threads = regard._core.testing, THREADS
signal.signal(signal.SIGINT, signal.default_int_handler)
x = np.random.default_rng(0).standard_normal((1, 8192, 64)).astype("f4")
tall = np.random.default_rng(1).standard_normal((16384, 128)).astype("f4")
sdpa = regard.scaled_dot_product_attention

def attention(n):
    sdpa(np.broadcast_to(x[:, :1], (1, n, 64)), x, x, threads=threads)

def one_row(n):
    keys = np.broadcast_to(x[:, :1], (1, 1024 * n, 64))
    sdpa(x[:, :1], keys, keys, threads=threads)

def backward(n, **options):
    query, lse = np.broadcast_to(x[:, :1], (1, n, 64)), np.broadcast_to(np.float32(9), (1, n))
    regard.scaled_dot_product_attention_backward(
        query, query, x, x, query, lse, threads=threads, **options
    )

def mask_gradient(n):
    backward(n, mask=np.zeros(x.shape[1], np.float32), with_respect_to=["mask"])

def tangent(n):
    query = np.broadcast_to(x[:, :1], (1, n, 64))
    regard.scaled_dot_product_attention_jvp(query, x, x, query, x, x, threads=threads)

def matmul(n):
    regard.matmul(np.broadcast_to(tall[:, 0], (8 * n, 16384)), tall, threads=threads)

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
    "backward": 5 * 64 * 8192,
    "mask_gradient": 3 * 64 * 8192,
    "tangent": 4 * 64 * 8192,
    "matmul": 8 * 16384 * 128,
}

# The test counts how much a call does after a signal; no clock tells how long it takes. The call
# is so long that one thread would compute for about 10 s.
INTERRUPTED = (
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
before = testing.looks()
testing.raise_at_look(signal.SIGINT, 1)
try:
    call(n)
    outcome = "finished"
except KeyboardInterrupt:
    outcome = "interrupted"
after = testing.looks() - before - 1
small = x[:, :50]
output = sdpa(small, small, small, threads=THREADS)
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
slow = pytest.mark.slow
# All targets look in the same places of their shared source.
CALLS = [
    ("attention", 2, regard.cpu_targets()[0]),
    *(pytest.param("attention", 2, target, marks=slow) for target in regard.cpu_targets()[1:]),
    pytest.param("attention", 1, None, marks=slow),
    *(pytest.param(each, 2, None, marks=slow) for each in list(MULTIPLICATIONS)[1:]),
]


@pytest.mark.parametrize(("operation", "threads", "target"), CALLS)
def test_interrupt_of_a_long_call(operation, threads, target, layer, output_of):
    """A call of about 10 s does less than a twentieth of its work after a signal, and the next call
    is right."""
    script = INTERRUPTED.replace("OPERATION", operation).replace("THREADS", str(threads))
    environment = {"REGARD_TARGET": target or "", "REGARD_THREADING_LAYER": layer}
    told = json.loads(output_of(script, timeout=120, **environment))
    assert told.pop("share") < 1 / 20
    assert told == {"outcome": "interrupted", "works": True, "beyond": True}


def test_a_call_looks_for_signals_between_pieces_of_a_few_milliseconds(target, output_of):
    """A piece has some 10 million multiplications on average."""
    sizes = {name: 3 * 10**8 // each for name, each in MULTIPLICATIONS.items()}
    script = OPERATIONS.replace("THREADS", "1")
    script += f"print(json.dumps({{k: cost_of(globals()[k], n)[0] for k, n in {sizes}.items()}}))"
    for name, looks in json.loads(output_of(script, REGARD_TARGET=target)).items():
        assert sizes[name] * MULTIPLICATIONS[name] < looks * 2**26, name


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="the system has no SIGALRM")
def test_a_handler_raises_while_the_caller_waits_for_a_worker(layer, output_of):
    """Nothing else ends the worker, so a caller that still waited for it would wait forever."""
    if layer == "serial":
        pytest.skip("there is no worker")
    script = """
    import signal
    import regard
    regard.softmax([[1.0, 2.0]])  # the layer of the environment is chosen
    def handle(*_):
        raise KeyboardInterrupt
    signal.signal(signal.SIGALRM, handle)
    try:
        regard._core.testing.wait_for_a_worker(signal.SIGALRM)
    except KeyboardInterrupt:
        print("interrupted")
    """
    assert output_of(script, REGARD_THREADING_LAYER=layer) == "interrupted"
