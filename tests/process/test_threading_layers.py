"""Which layer runs the threads of a call, when that is decided, and what it meets in the process:
other runtimes, other callers, forks. No bit depends on it (tests/attention/test_same_bits.py)."""

import importlib.util
import json
import pathlib
import textwrap

import pytest

LAYERS = ("pool", "openmp", "serial")
has_openmp = importlib.util.find_spec("regard._openmp") is not None
needs_openmp = pytest.mark.skipif(not has_openmp, reason="this build has no OpenMP")
AVAILABLE = [pytest.param(name, marks=needs_openmp if name == "openmp" else ()) for name in LAYERS]

# A call on several threads, and the OpenMP runtimes that the process has loaded.
PREAMBLE = """
import numpy as np, os, regard, threading
x = np.random.default_rng(0).standard_normal((8, 200, 16))
def compute(threads=2):
    return regard.scaled_dot_product_attention(x, x, x, threads=threads).tobytes()
def runtimes():
    with open("/proc/self/maps") as maps:
        files = {line.split()[-1] for line in maps if "/" in line}
    return {path for path in files if os.path.basename(path).startswith(RUNTIMES)}
RUNTIMES = ("libgomp", "libomp", "libiomp")
"""


# Choosing


@pytest.mark.parametrize("name", AVAILABLE)
@pytest.mark.parametrize("way", ["environment", "function"])
def test_a_layer_is_chosen(name, way, output_of):
    """The function comes before the environment, and nothing is loaded until then. The choice is
    final once threads have run, which the serial layer does not leave behind."""
    script = f"""
    import json
    assert not runtimes()
    if {way == "function"}:
        regard.set_threading_layer({name!r})
    chosen = regard.threading_layer()
    several = compute()
    assert several == compute(1)
    assert regard.threading_layer() == chosen
    assert regard.show_config(mode="dicts")["threading_layer"] == chosen._asdict()
    told = [chosen._asdict(), sorted(runtimes()), regard.get_num_threads()]
    try:
        regard.set_threading_layer({"serial" if name == "pool" else "pool"!r})
    except RuntimeError as error:
        assert {name!r} in str(error)
    assert (regard.threading_layer().name == {name!r}) == ({name!r} != "serial")
    print(json.dumps(told))
    """
    environment = {"REGARD_THREADING_LAYER": name if way == "environment" else "no such layer"}
    printed = output_of(PREAMBLE + textwrap.dedent(script), REGARD_NUM_THREADS="3", **environment)
    chosen, runtimes, threads = json.loads(printed)
    reasons = {"environment": "REGARD_THREADING_LAYER", "function": "set_threading_layer"}
    assert (chosen["name"], chosen["reason"]) == (name, reasons[way])
    assert threads == (1 if name == "serial" else 3)
    if name == "openmp":
        path = pathlib.Path(chosen["path"])
        assert [pathlib.Path(runtime).resolve() for runtime in runtimes] == [path.resolve()]
        assert path.name == chosen["runtime"]
        assert float(chosen["version"]) >= 4.5
    else:
        assert (chosen["runtime"], chosen["path"], chosen["version"]) == (None,) * 3
        assert not runtimes


def test_the_pool_is_the_default_and_final_once_threads_have_run(output_of):
    """Calls on one thread decide nothing. A layer that is refused is not loaded."""
    script = f"""
    regard.set_threading_layer("serial")
    compute(1)
    regard.set_threading_layer("pool")
    compute()
    regard.set_threading_layer("pool")
    for other in {[name for name in LAYERS[1:] if name != "openmp" or has_openmp]}:
        try:
            regard.set_threading_layer(other)
        except RuntimeError as error:
            assert "before the first call that uses several threads" in str(error)
            assert f"'{{other}}'" in str(error)
    assert not runtimes()
    print(regard.threading_layer().name)
    """
    assert output_of(PREAMBLE + textwrap.dedent(script)) == "pool"
    # An empty variable counts as not set.
    script = "import regard; print(*regard.threading_layer())"
    chosen = output_of(script, REGARD_THREADING_LAYER="")
    assert chosen == "pool default None None None"


def test_choosing_beside_calls(output_of):
    """Threads choose and compute at the same time: one layer wins, and no result is wrong."""
    script = f"""
    from concurrent.futures import ThreadPoolExecutor
    names = {["pool", "serial", *(["openmp"] if has_openmp else [])]}
    wanted, kept, start = compute(1), [], threading.Barrier(6)
    def work(i):
        start.wait(30)
        for repeat in range(40):
            try:
                regard.set_threading_layer(names[(i + repeat) % len(names)])
            except RuntimeError:
                kept.append(regard.threading_layer().name)
            assert compute(2) == wanted
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert set(kept) == {{regard.threading_layer().name}}, set(kept)
    print("done")
    """
    assert output_of(PREAMBLE + textwrap.dedent(script)) == "done"


# Without OpenMP, or with another runtime


def other_module(folder, replacements):
    """Copy regard._openmp so that it asks for other names, like a module from another machine."""
    origin = pathlib.Path(importlib.util.find_spec("regard._openmp").origin)
    content = origin.read_bytes()
    assert any(name in content for name in replacements)
    for name, other in replacements.items():
        assert len(name) == len(other)
        content = content.replace(name, other)
    copy = folder / origin.name
    copy.write_bytes(content)
    return copy


def test_a_build_without_openmp(output_of):
    script = """
    import sys
    import numpy as np, regard
    sys.modules["regard._openmp"] = None
    x = np.ones((2, 3, 4))
    for use in (
        lambda: regard.set_threading_layer("openmp"),
        lambda: regard.softmax(x),
        lambda: regard.set_threading_layer("serial"),
        lambda: print(regard.softmax(x).shape),
    ):
        try:
            use()
        except ImportError as error:
            assert isinstance(error.__cause__, ModuleNotFoundError)
            print(error)
    """
    *refusals, shape = output_of(script, REGARD_THREADING_LAYER="openmp").splitlines()
    assert len(refusals) == 2
    assert all("-Ccmake.define.REGARD_OPENMP=ON" in refusal for refusal in refusals)
    assert shape == "(2, 3, 4)"


# Other code in the process


@pytest.fixture
def libgomp(output_of):
    """Skip the test unless the layer uses GCC's runtime."""
    script = "import regard; print(regard.threading_layer().runtime)"
    if not output_of(script, REGARD_THREADING_LAYER="openmp").startswith("libgomp.so.1"):
        pytest.skip("this build uses another runtime")


@needs_openmp
@pytest.mark.usefixtures("libgomp")
def test_within_a_region_of_another_library(output_of):
    """In each thread of the team, regard computes on the calling thread, with the right bits. Other
    code loaded the runtime before, and it stays the only one."""
    script = """
    import ctypes
    runtime = ctypes.CDLL("libgomp.so.1")
    x = np.tile(x, (1, 5, 1))
    wanted, results, lock = compute(1), [], threading.Lock()
    seen, done = [], threading.Event()
    def watch():
        while not done.wait(0.001):
            seen.append(len(os.listdir("/proc/self/task")))
    def body(_):
        result = compute(2)
        with lock:
            results.append(result)
    region = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(body)
    watcher = threading.Thread(target=watch)
    watcher.start()
    before = len(os.listdir("/proc/self/task"))
    for repeat in range(4):
        runtime.GOMP_parallel(region, None, 3, 0)
    done.set()
    watcher.join()
    assert len(results) == 12 and set(results) == {wanted}
    assert max(seen) == before + 2, (before, max(seen))
    assert compute(2) == wanted
    print(len(runtimes()))
    """
    script = PREAMBLE + textwrap.dedent(script)
    # If nested regions are allowed, regard's regions would start threads inside them.
    environment = {"REGARD_THREADING_LAYER": "openmp", "OMP_MAX_ACTIVE_LEVELS": "4"}
    assert output_of(script, **environment) == "1"


@needs_openmp
@pytest.mark.usefixtures("libgomp")
def test_a_runtime_that_does_not_survive_forks(tmp_path, output_of):
    """GCC's runtime before version 9 cannot end its threads: a region in the child would wait for
    them forever. The child computes on one thread and says so once, and so does its own child."""
    old = other_module(tmp_path, {b"omp_pause_resource_all": b"omp_pause_nothing_here"})
    script = """
    import warnings
    wanted = compute()
    def in_child(depth):
        child = os.fork()
        if child:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            return
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            right = [compute(), compute(3)] == [wanted] * 2
        alone = [str(each.message) for each in caught if each.category is RuntimeWarning]
        if depth > 1:
            right = right and len(alone) == 1 and "regard uses one thread here" in alone[0]
            in_child(depth - 1)
        os._exit(0 if right else 1)
    in_child(2)
    assert compute() == wanted
    print("done")
    """
    script = PREAMBLE + textwrap.dedent(script)
    script = f"import regard; regard.__path__.insert(0, {str(old.parent)!r})\n" + script
    assert output_of(script, "-W", "ignore", REGARD_THREADING_LAYER="openmp") == "done"
