"""Context managers end with the process, in another thread, out of order and in forked children."""

import os

import pytest

ARRAYS = """
import numpy as np, regard
x = np.random.default_rng(0).standard_normal((1, 2, 5, 8)).astype("f4")
def use(cache):
    cache.append(x, x)
    cache.attend(x)
"""
TORCH = """
import contextlib, torch, regard.torch
x = torch.ones(1, 2, 5, 8)
def use(calls):
    before = calls.by_regard
    torch.nn.functional.scaled_dot_product_attention(x, x, x)
    assert calls.by_regard == before + 1
"""
# How to make each context manager.
BLOCKS = {
    "KVCache": ARRAYS + "make = lambda: regard.KVCache(1, 2, 8)",
    "KVCaches": ARRAYS + "make, use_one = (lambda: regard.KVCaches(2, 1, 2, 8)), use\n"
    "def use(caches): [*map(use_one, caches)]",
    "replacing_sdpa": TORCH + "make = regard.torch.replacing_sdpa",
    "install": TORCH + "@contextlib.contextmanager\ndef make():\n"
    "    yield regard.torch.install()\n    regard.torch.uninstall()",
}
# Blocks that are open when the process ends: in the main thread, in a generator that belongs to a
# cycle, and in a thread.
LEFT_OPEN = """
import contextlib, sys, threading
stack = contextlib.ExitStack()
use(stack.enter_context(make()))

def suspended():
    with make() as value:
        use(value)
        yield

generators = [suspended()]
next(generators[0])
generators.append(generators)
is_open = threading.Event()
def wait():
    with make() as value:
        use(value)
        is_open.set()
        threading.Event().wait()

threading.Thread(target=wait, daemon=True).start()
is_open.wait()
with make() as value:
    use(value)
    print("done")
    sys.exit()
"""
# Blocks that end out of order, in another thread, and where the garbage collector finds them.
ENDED = """
import gc, threading
for order in (1, 0, 2), (1, 2, 0):
    blocks = [make() for _ in order]
    values = [block.__enter__() for block in blocks]
    for number in order:
        use(values[number])
        thread = threading.Thread(target=blocks[number].__exit__, args=(None, None, None))
        thread.start()
        thread.join()

def suspended(cycle):
    with make() as value:
        use(value)
        yield

gc.set_threshold(1)
for _ in range(3):
    cycle = []
    cycle.append(suspended(cycle))
    next(cycle[0])
    del cycle
    with make() as value:
        use(value)
print("done")
"""
FORKED = """
import os, sys, threading

def forked(child):
    pid = os.fork()
    if pid == 0:
        child()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0

def end_here():
    with make() as value:
        use(value)

with make() as value:
    use(value)
    forked(lambda: sys.exit())  # the blocks of the child end, and then its interpreter
    thread = threading.Thread(target=forked, args=(end_here,))
    thread.start()
    thread.join()
    use(value)

is_over = False
def work():
    while not is_over:
        end_here()

threads = [threading.Thread(target=work) for _ in range(3)]
for each in threads:
    each.start()
for _ in range(3):
    forked(end_here)
is_over = True
for each in threads:
    each.join()
print("done")
"""
ENDINGS = {"left open": LEFT_OPEN, "ended": ENDED, "forked": FORKED}
# The other endings need several blocks, and a process has one installation.
CASES = [(name, ending) for name in BLOCKS for ending in ENDINGS if name != "install"]


@pytest.mark.parametrize(("name", "ending"), [*CASES, ("install", "left open")])
def test_context_managers_end(name, ending, run_python):
    if ending == "forked" and not hasattr(os, "fork"):
        pytest.skip("the system has no fork")
    if "torch" in BLOCKS[name]:
        pytest.importorskip("torch", reason="pip install torch")
    done = run_python(f"{BLOCKS[name]}\n{ENDINGS[ending]}", timeout=300)  # for endless waits
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
