"""Context managers end with the process, in another thread, out of order and in forked children."""

import importlib.util
import inspect
import os

import pytest

import regard

ARRAYS = """
import numpy as np, regard
x = np.random.default_rng(0).standard_normal((1, 2, 5, 8)).astype("f4")
def append(cache):
    cache.append(x, x)
    cache.attend(x)
"""
TORCH = """
import contextlib, torch, regard.torch
x = torch.ones(1, 2, 5, 8)
def call(calls):
    before = calls.by_regard
    torch.nn.functional.scaled_dot_product_attention(x, x, x)
    assert calls.by_regard == before + 1
"""
# How to make each context manager, and to use what it returns.
BLOCKS = {
    "KVCache": """
make, use = (lambda: regard.KVCache(1, 2, 8)), append
""",
    "KVCaches": """
def make():
    return regard.KVCaches(2, 1, 2, 8)
def use(caches):
    for cache in caches:
        append(cache)
""",
    "replacing_sdpa": """
make, use = regard.torch.replacing_sdpa, call
""",
    "install": """
@contextlib.contextmanager
def make():
    yield regard.torch.install()
    regard.torch.uninstall()
use = call
""",
}
OF_TORCH = {"replacing_sdpa", "install"}

# Blocks that are open when the process ends.
LEFT_OPEN = """
import contextlib, sys
stack = contextlib.ExitStack()
use(stack.enter_context(make()))
entered = make()
use(entered.__enter__())

def suspended():
    with make() as value:
        use(value)
        yield

generators = [suspended(), suspended()]
for each in generators:
    next(each)
generators.append(generators)  # a cycle
with make() as value:
    use(value)
    print("done")
    sys.exit()
"""
IN_A_THREAD = """
import threading
is_open = threading.Event()
def wait():
    with make() as value:
        use(value)
        is_open.set()
        threading.Event().wait()

threading.Thread(target=wait, daemon=True).start()
is_open.wait()
print("done")
"""
# Blocks that end out of order, in another thread, and where the garbage collector finds them.
ENDED = """
import gc, threading
for order in (0, 1, 2), (1, 0, 2), (1, 2, 0):
    blocks = [make() for _ in order]
    values = [block.__enter__() for block in blocks]
    for number in order:
        use(values[number])
        thread = threading.Thread(target=blocks[number].__exit__, args=(None, None, None))
        thread.start()
        thread.join()
blocks = [make() for _ in range(2)]
for each in blocks:
    use(each.__enter__())
for each in blocks:
    each.__exit__(None, None, None)

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
    forked(lambda: os._exit(0))
    forked(end_here)
    thread = threading.Thread(target=forked, args=(end_here,))
    thread.start()
    thread.join()
    use(value)

block = make()
use(block.__enter__())
forked(lambda: block.__exit__(None, None, None))
forked(lambda: (block.__exit__(None, None, None), sys.exit()))
block.__exit__(None, None, None)

is_over = False
def work():
    while not is_over:
        end_here()

threads = [threading.Thread(target=work) for _ in range(3)]
for each in threads:
    each.start()
for _ in range(5):
    forked(end_here)
is_over = True
for each in threads:
    each.join()
print("done")
"""
ENDINGS = {
    "left open": LEFT_OPEN,
    "in a thread": IN_A_THREAD,
    "ended": ENDED,
    "forked": FORKED,
}
# The other endings need several blocks, and a process has one installation.
CASES = [
    (name, ending)
    for name in BLOCKS
    for ending in ENDINGS
    if name != "install" or ending == "left open"
]


@pytest.mark.parametrize(("name", "ending"), CASES)
def test_context_managers_end(name, ending, run_python):
    if ending == "forked" and not hasattr(os, "fork"):
        pytest.skip("the system has no fork")
    if name in OF_TORCH:
        pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    script = (TORCH if name in OF_TORCH else ARRAYS) + BLOCKS[name] + ENDINGS[ending]
    done = run_python(script, timeout=300)  # for blocks that wait forever
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_all_are_in_the_table():
    modules = [regard]
    if importlib.util.find_spec("torch"):
        modules.append(importlib.import_module("regard.torch"))
    public = [(name, getattr(module, name)) for module in modules for name in module.__all__]
    managers = {
        name
        for name, value in public
        if hasattr(value, "__enter__")
        or inspect.isgeneratorfunction(getattr(value, "__wrapped__", None))
    }
    assert managers
    assert managers <= BLOCKS.keys()
