"""A process with regard: its imports, its end while threads compute, and subinterpreters."""

import textwrap

import pytest

SETUP = """
import sys, threading, time
import numpy as np, regard

class Late:
    # An object that is torn down late keeps the interpreter alive while threads request the GIL.
    def __del__(self, sleep=time.sleep):
        sleep(0.3)

class Loads:
    def __init__(self, array):
        self.array = array
    def __array__(self, dtype=None, copy=None):
        return self.array

regard.late = Late()
rng = np.random.default_rng(0)
x = rng.standard_normal((2, 5, 8)).astype("f4")
wide = rng.standard_normal((2, 300, 64)).astype("f4")
packed, numbers = x.swapaxes(0, 1), np.array([0, 5], "u8")
sdpa, ragged = regard.scaled_dot_product_attention, regard.scaled_dot_product_attention_ragged
lengths, slopes, table = np.array([4], "u8"), np.ones(2, "f2"), np.ones((2, 9), "f2")
output, lse = sdpa(x, x, x, return_lse=True)
many = np.broadcast_to(np.array(4, "u2"), (3000,))
entries = np.broadcast_to(x, (3000, *x.shape))
cache, sparse = regard.KVCache(1, 2, 8), regard.masks.sliding(5, window=(2, 0))
"""

CALLS = {
    "small": "sdpa(x, x, x)",
    "large": "sdpa(wide, wide, wide, threads=2)",
    "foreign arrays": "sdpa(Loads(x), Loads(x), Loads(x), mask=np.ones((5, 5), bool).tolist())",
    "lengths": "sdpa(x[None], x[None], x[None], key_lengths=lengths)",
    "many lengths": "sdpa(entries, entries, entries, key_lengths=many)",
    "lists": "sdpa(x, x, x, alibi_slopes=[0.5, 1.0], sinks=[0.0, 1.0], scale=[1.0, 2.0])",
    "slopes": "sdpa(x, x, x, alibi_slopes=slopes, distance_bias=table)",
    "sparse mask": "sdpa(x, x, x, sparse)",
    "results": "sdpa(x, x, x, out=np.empty_like(x))",
    "ragged": "ragged(packed, packed, packed, numbers, numbers)",
    "backward": "regard.scaled_dot_product_attention_backward(output, x, x, x, output, lse)",
    "jvp": "regard.scaled_dot_product_attention_jvp(x, x, x, x, x, x)",
    "summary": "regard.summarize_attention(x, x)",
    "explain": "regard.explain(x, x, x)",
    "cache": "c = regard.KVCache(1, 2, 8); c.append(x, x); c.attend(x)",
    "linear": "regard.linear_attention(x, x, x, beta=lse, return_state=True)",
    "linear backward": "regard.linear_attention_backward(output, x, x, x, beta=lse)",
    "merge": "regard.merge_attention_states([output] * 3, [lse] * 3)",
    "stages": "regard.softmax(regard.apply_mask(regard.matmul(x, x.mT), [[True]]))",
    "errors": """
        try:
            sdpa(x, x[..., :3], x)
        except ValueError:
            pass
    """,
}


def threads_of(calls):
    """Return a script whose process ends while a thread is in each of the calls."""
    works = [
        f"""
def work_{number}(has_computed):
    while True:
{textwrap.indent(textwrap.dedent(call).strip(), " " * 8)}
        has_computed.set()
"""
        for number, call in enumerate(calls)
    ]
    return f"""
{SETUP}
{"".join(works)}
sys.setswitchinterval(1e-4)  # so that all compute soon
events = [threading.Event() for _ in range({len(calls)})]
for number, event in enumerate(events):
    threading.Thread(target=globals()[f"work_{{number}}"], args=(event,), daemon=True).start()
for event in events:
    event.wait()
print("left")
"""


def test_exit_in_calls(output_of):
    """Daemon threads are in calls of every kind, in whatever Python and NumPy code they run."""
    assert output_of(threads_of(CALLS.values())) == "left"


# The Python functions that calls run: NumPy's own, and methods of the arguments.
IN_PYTHON = {
    "foreign array": ("__array__", "sdpa(Loads(x), x, x)"),
    "str of a type": ("__str__", "regard.explain(x, x, x)"),
    "error": ("__str__", "sdpa(x, x, x, out=np.empty(x.shape))"),
    "name of a type": ("_name_get", "sdpa(x, x, x, out=np.empty(x.shape, 'V2'))"),
    "integer": ("__index__", "sdpa(x, x, x, dropout_p=0.5, dropout_seed=Waits())"),
    "window": ("__getitem__", "sdpa(x, x, x, window=Waits())"),
    "attribute": ("__getattr__", "sdpa(x, x, x, Waits())"),
    "sparse mask": ("_sparse_rows", "sdpa(x, x, x, sparse)"),
    "sum": (
        "sum",
        "regard.scaled_dot_product_attention_backward("
        "x[None], x[None], x, x, output[None], lse[None])",
    ),
}


def test_exit_in_python_within_a_call(output_of):
    """Such a thread is ended at exit. No object of the call is destroyed without the GIL."""
    script = f"""
{SETUP}
class Waits:
    def __index__(self):
        return 0
    def __getitem__(self, index):
        return 0
    def __getattr__(self, name):
        raise AttributeError(name)

def wait_in(function, is_inside, sleep=time.sleep):
    def profile(frame, event, argument):
        if event == "call" and frame.f_code.co_name == function:
            is_inside.set()
            sleep(0.1)
    return profile

def work(function, call, is_inside):
    sys.setprofile(wait_in(function, is_inside))
    while True:
        try:
            exec(call, globals())
        except (TypeError, ValueError):
            pass

for function, call in {list(IN_PYTHON.values())!r}:
    is_inside = threading.Event()
    threading.Thread(target=work, args=(function, call, is_inside), daemon=True).start()
    if not is_inside.wait(10):
        sys.exit(f"{{call}} never calls {{function}}")
print("left")
"""
    # Python's debugging allocator ends a process that frees an object without the GIL.
    assert output_of(script, PYTHONMALLOC="debug") == "left"


def test_a_finalizer_computes_at_exit(target, layer, output_of):
    """The thread that finalizes the interpreter may still compute; the others sleep."""
    script = """
    import threading
    import numpy as np, regard
    x = np.random.default_rng(0).standard_normal((4, 2000, 64)).astype("f4")
    class Late:
        def __del__(self, compute=regard.scaled_dot_product_attention, x=x, write=print):
            two, one = (compute(x, x, x, threads=threads).tobytes() for threads in (2, 1))
            write("same" if two == one else "different")
    regard.late = Late()
    has_computed = threading.Event()
    def work():
        while True:
            regard.scaled_dot_product_attention(x, x, x, threads=2)
            has_computed.set()
    threading.Thread(target=work, daemon=True).start()
    has_computed.wait()
    """
    environment = {"REGARD_TARGET": target, "REGARD_THREADING_LAYER": layer}
    assert output_of(script, **environment) == "same"


SUBINTERPRETER = """
import sys, warnings
warnings.simplefilter("ignore")  # NumPy warns of subinterpreters
if sys.version_info >= (3, 13):
    import _interpreters as interpreters
else:
    import _xxsubinterpreters as interpreters
IMPORT = '''
import warnings
warnings.simplefilter("ignore")
try:
    MODULE
except ImportError as error:
    print(type(error).__name__, error, flush=True)
'''
FIRST
number = interpreters.create()
failure = interpreters.run_string(number, IMPORT.replace("MODULE", "import regard"))
interpreters.destroy(number)
import regard, numpy as np
print(regard.softmax(np.zeros(2)))
"""


@pytest.mark.parametrize("first", ["", "import regard"], ids=["before", "after"])
def test_import_in_a_subinterpreter(first, output_of):
    """It raises, and never waits forever, whether or not the main interpreter has imported regard.
    That one goes on computing."""
    *refused, computed = output_of(SUBINTERPRETER.replace("FIRST", first), timeout=60).splitlines()
    assert computed == "[0.5 0.5]"
    assert refused[0].startswith("ImportError")
