"""Context managers end with the process and in forked children. `test_torch_replacing.py`
ends them out of order and in other threads."""

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
import torch, regard.torch
x = torch.ones(1, 2, 5, 8)
def use(calls):
    before = calls.by_regard
    torch.nn.functional.scaled_dot_product_attention(x, x, x)
    assert calls.by_regard == before + 1
"""
# How to make each context manager.
BLOCKS = {
    "KVCache": ARRAYS + "make = lambda: regard.KVCache(1, 2, 8)",
    "replacing_sdpa": TORCH + "make = regard.torch.replacing_sdpa",
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
ENDINGS = {"left open": LEFT_OPEN, "forked": FORKED}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    "name", ["KVCache", pytest.param("replacing_sdpa", marks=pytest.mark.slow)]
)
def test_context_managers_end(name, ending, run_python):
    if ending == "forked" and not hasattr(os, "fork"):
        pytest.skip("the system has no fork")
    if "torch" in BLOCKS[name]:
        pytest.importorskip("torch", reason="pip install torch")
    done = run_python(f"{BLOCKS[name]}\n{ENDINGS[ending]}", timeout=300)  # for endless waits
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
