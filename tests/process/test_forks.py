"""A forked child computes, whatever its parent did before the fork."""

import json
import os

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")


def test_forked_children_compute(target, layer, output_of):
    """The fork happens after the parent has computed, from a second thread, and while another
    thread computes. A grandchild computes too."""
    script = """
    import multiprocessing, threading, warnings
    import numpy as np, regard
    warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads
    x = np.random.default_rng(0).standard_normal((4, 200, 16))
    def compute():
        return regard.scaled_dot_product_attention(x, x, x, threads=2).tobytes()
    wanted = compute()
    context = multiprocessing.get_context("fork")
    def child(deeper):
        assert compute() == wanted and regard.softmax(x, threads=2).any()
        if deeper:
            fork(False)
    def fork(deeper=True):
        process = context.Process(target=child, args=(deeper,))
        process.start()
        process.join(60)
        assert process.exitcode == 0, "the child hangs or died"
    fork()
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
    environment = {"REGARD_TARGET": target, "REGARD_THREADING_LAYER": layer}
    assert output_of(script, timeout=300, **environment) == "done"


FORKED_IN_A_HANDLER = """
import json, os, signal, time
import numpy as np, regard

def attend(q_len, threads):
    few = np.broadcast_to(x[:, :1], (1, q_len, 64))
    return regard.scaled_dot_product_attention(few, x, x, threads=threads)

x = np.random.default_rng(0).standard_normal((1, 8192, 64)).astype("f4")
row = attend(1, 1).tobytes()

# Long enough that a handler runs in the first quarter of what the caller does.
testing, looks_at_handler = regard._core.testing, []
signal.signal(signal.SIGALRM, lambda *_: looks_at_handler.append(testing.looks()))
q_len, share = 256, 1.0
while share > 0.25:
    q_len *= 2
    before = testing.looks()
    testing.raise_at_look(signal.SIGALRM, 1)
    attend(q_len, THREADS)
    share = (looks_at_handler[-1] - before) / (testing.looks() - before)

read, write = os.pipe()
children = []
def fork(*_):
    child = os.fork()
    if child:
        children.append(child)
    NESTED
signal.signal(signal.SIGALRM, fork)
testing.raise_at_look(signal.SIGALRM, 1)
try:
    outcome = "right" if attend(q_len, THREADS)[0, 0].tobytes() == row else "wrong"
except RuntimeError as error:
    outcome = str(error)
told = {"outcome": outcome, "again": attend(50, 3)[0, 7].tobytes() == row}
if not children:
    os.write(write, json.dumps(told).encode())
    os._exit(0)
deadline = time.monotonic() + 60
while os.waitpid(children[0], os.WNOHANG)[0] == 0:
    assert time.monotonic() < deadline or os.kill(children[0], signal.SIGKILL), "the child hangs"
    time.sleep(0.01)
print(json.dumps({"parent": told, "child": json.loads(os.read(read, 10_000))}))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("threads", "nested"), [(1, False), (2, True), (3, False)])
def test_a_signal_handler_forks(threads, nested, layer, output_of):
    """The parent goes on, and so does a child if the parent's call ran on one thread. Otherwise the
    work of the other threads is lost, and the child's call raises. Both compute afterwards."""
    handler = "assert attend(50, 2)[0, 3].tobytes() == row" if nested else "pass"
    script = FORKED_IN_A_HANDLER.replace("THREADS", str(threads)).replace("NESTED", handler)
    # If OpenMP allows nested regions, the handler's call would start one.
    environment = {"REGARD_THREADING_LAYER": layer, "OMP_MAX_ACTIVE_LEVELS": "4"}
    told = json.loads(output_of(script, timeout=150, **environment))
    right = {"outcome": "right", "again": True}
    assert told["parent"] == right
    if threads == 1 or layer == "serial":
        assert told["child"] == right
    else:
        assert told["child"]["again"]
        assert "forked by a signal handler" in told["child"]["outcome"]


def test_forks_during_first_uses(output_of):
    """Threads name functions for the first time while the process forks."""
    script = """
    import os, random, threading
    import regard
    names = [each for each in regard.__all__ if each != "plot"]
    random.Random(0).shuffle(names)
    def name_all(names):
        for each in names:
            getattr(regard, each)
    threads = [threading.Thread(target=name_all, args=(names[i:] + names[:i],)) for i in (0, 20)]
    for thread in threads:
        thread.start()
    children = []
    while any(thread.is_alive() for thread in threads) or len(children) < 8:
        children.append(os.fork())
        if not children[-1]:
            name_all(names)
            os._exit(0)
        if len(children) >= 10:
            break
    for thread in threads:
        thread.join()
    print({os.waitpid(child, 0)[1] for child in children})
    """
    assert output_of(script, timeout=120) == "{0}"
