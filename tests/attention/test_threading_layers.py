"""Test which layer runs the threads of a call, when that is decided, and that no bit depends on
it."""

import importlib.util
import json
import pathlib
import textwrap

import numpy as np
import pytest

import regard
from reference import assert_same_bits

LAYERS = ("pool", "openmp", "serial")
has_openmp = importlib.util.find_spec("regard._openmp") is not None
needs_openmp = pytest.mark.skipif(not has_openmp, reason="this build has no OpenMP")
AVAILABLE = [pytest.param(name, marks=needs_openmp if name == "openmp" else ()) for name in LAYERS]
OTHERS = {"pool": "serial", "openmp": "pool", "serial": "pool"}

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


def test_the_pool_is_the_default_and_loads_no_openmp(output_of):
    script = """
    assert not runtimes(), runtimes()
    compute()
    regard.threading_layer()
    regard.show_config()
    assert not runtimes(), runtimes()
    layer = regard.threading_layer()
    assert layer == ("pool", "default", None, None, None), layer
    print("done")
    """
    assert output_of(PREAMBLE + textwrap.dedent(script)).splitlines()[-1] == "done"


@pytest.mark.parametrize("name", AVAILABLE)
@pytest.mark.parametrize("way", ["environment", "function"])
def test_a_layer_is_chosen(name, way, output_of):
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
    print(json.dumps([chosen._asdict(), sorted(runtimes()), regard.get_num_threads()]))
    """
    environment = {"REGARD_THREADING_LAYER": name} if way == "environment" else {}
    printed = output_of(PREAMBLE + textwrap.dedent(script), REGARD_NUM_THREADS="3", **environment)
    chosen, runtimes, threads = json.loads(printed)
    assert chosen["name"] == name
    assert (
        chosen["reason"]
        == {
            "environment": "REGARD_THREADING_LAYER",
            "function": "set_threading_layer",
        }[way]
    )
    assert threads == (1 if name == "serial" else 3)
    if name == "openmp":
        path = pathlib.Path(chosen["path"])
        assert [pathlib.Path(runtime).resolve() for runtime in runtimes] == [path.resolve()]
        assert path.name == chosen["runtime"]
        assert float(chosen["version"]) >= 4.5
    else:
        assert (chosen["runtime"], chosen["path"], chosen["version"]) == (None,) * 3
        assert not runtimes


def test_the_function_comes_before_the_environment(output_of):
    script = "import regard; regard.set_threading_layer('serial'); print(regard.threading_layer())"
    for name in ("pool", "no such layer"):
        assert "name='serial'" in output_of(script, REGARD_THREADING_LAYER=name)
    # An empty variable counts as not set.
    script = "import regard; print(regard.threading_layer())"
    assert "name='pool', reason='default'" in output_of(script, REGARD_THREADING_LAYER="")


def test_unknown_names():
    for name in ("tbb", "", "Pool", "openmp "):
        with pytest.raises(ValueError, match=r"'pool', 'openmp' or 'serial', got") as error:
            regard.set_threading_layer(name)
        assert repr(name) in str(error.value)
    for name in (None, 1, b"pool"):
        with pytest.raises(TypeError, match=f"name must be .* got {type(name).__name__}"):
            regard.set_threading_layer(name)


def test_unknown_name_in_the_environment(output_of):
    """Importing regard does not fail because of it, but every use does and says why."""
    script = """
    import numpy as np, regard
    x = np.ones((2, 3, 4))
    for use in (
        lambda: regard.scaled_dot_product_attention(x, x, x),
        lambda: regard.softmax(x, threads=1),
        lambda: regard.merge_attention_states([x, x], [x[..., 0], x[..., 0]]),
        regard.threading_layer,
        regard.get_num_threads,
        regard.show_config,
    ):
        try:
            use()
        except ValueError as error:
            print(error)
    """
    lines = output_of(script, REGARD_THREADING_LAYER="tbb").splitlines()
    message = "REGARD_THREADING_LAYER must be 'pool', 'openmp' or 'serial', got 'tbb'"
    assert lines == [message] * 6


@pytest.mark.parametrize("name", AVAILABLE)
def test_the_choice_is_final_when_threads_have_run(name, output_of):
    """Calls on one thread decide nothing, and the serial layer leaves no threads behind."""
    script = f"""
    other = {OTHERS[name]!r}
    regard.set_threading_layer(other)
    compute(1)
    regard.set_threading_layer({name!r})
    regard.set_threading_layer({name!r})
    compute()
    regard.set_threading_layer({name!r})
    try:
        regard.set_threading_layer(other)
        print("changed")
    except RuntimeError as error:
        print(error)
    print(regard.threading_layer().name)
    """
    told, after = output_of(PREAMBLE + textwrap.dedent(script)).splitlines()
    if name == "serial":
        assert (told, after) == ("changed", OTHERS[name])
    else:
        assert "before the first call that uses several threads" in told
        assert f"'{name}'" in told
        assert f"'{OTHERS[name]}'" in told
        assert after == name


@needs_openmp
def test_a_refused_layer_is_not_loaded(output_of):
    script = """
    compute()
    try:
        regard.set_threading_layer("openmp")
    except RuntimeError:
        print(len(runtimes()))
    """
    assert output_of(PREAMBLE + textwrap.dedent(script)) == "0"


def test_choosing_beside_calls(output_of):
    """Threads choose and compute at the same time: one layer wins, and no result is wrong."""
    script = f"""
    names = {["pool", "serial", *(["openmp"] if has_openmp else [])]}
    wanted, failures, kept = compute(1), [], []
    start = threading.Barrier(6)
    def work(i):
        try:
            start.wait(30)
            for repeat in range(200):
                try:
                    regard.set_threading_layer(names[(i + repeat) % len(names)])
                except RuntimeError:
                    kept.append(regard.threading_layer().name)
                assert compute(2) == wanted
        except BaseException as failure:
            failures.append(failure)
    workers = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for worker in workers: worker.start()
    for worker in workers: worker.join()
    assert not failures, failures
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
    for refusal in refusals:
        assert "'openmp' is not part of this build" in refusal
        assert "-Ccmake.define.REGARD_OPENMP=ON" in refusal
    assert shape == "(2, 3, 4)"


@needs_openmp
def test_a_machine_without_a_runtime(tmp_path, output_of):
    """The loader looks for a library that does not exist, and its message is passed on."""
    lost = other_module(tmp_path, {b"libgomp.so": b"libgone.so", b"libomp.so": b"libone.so"})
    script = f"""
    import regard
    regard.__path__.insert(0, {str(lost.parent)!r})
    try:
        regard.set_threading_layer("openmp")
    except ImportError as error:
        print(error)
    regard.set_threading_layer("pool")
    """
    told = output_of(script)
    assert "needs an OpenMP runtime" in told
    assert "libgone.so" in told or "libone.so" in told
    assert "apt-get install libgomp1" in told


# Bit equality


@needs_openmp
def test_same_bits_in_every_layer(dtype, target):
    def normal(*shape, seed):
        return np.random.default_rng(seed).standard_normal(shape).astype(dtype)

    query, key, value = (normal(2, 4, 150, 40, seed=i) for i in range(3))
    few, long = normal(1, 8, 3, 64, seed=3), normal(1, 2, 5000, 64, seed=4)
    mask = np.random.default_rng(5).random((150, 150)) < 0.8
    left, right = (normal(520, 520, seed=i) for i in (6, 7))  # parts are packed once for all tasks
    parts = [
        regard.scaled_dot_product_attention(query, k, k, return_lse=True) for k in (key, value)
    ]

    def results(threads):
        yield regard.scaled_dot_product_attention(query, key, value, threads=threads)
        yield regard.scaled_dot_product_attention(
            query, key, value, mask, is_causal=True, return_lse=True, threads=threads
        )
        yield regard.scaled_dot_product_attention(few, long, long, threads=threads)
        yield regard.scaled_dot_product_attention(
            few, long, long, precision="int8" if dtype == np.float32 else None, threads=threads
        )
        yield regard.matmul(query, key.swapaxes(2, 3), threads=threads)
        yield regard.matmul(left, right, threads=threads)
        yield regard.softmax(long, threads=threads)
        yield regard.merge_attention_states(*zip(*parts, strict=True))

    wanted = list(results(1))
    try:
        for name in LAYERS:
            regard._core.testing.set_threading_layer(name)
            for threads in (2, 3, 7, 40):
                for actual, one in zip(results(threads), wanted, strict=True):
                    assert_same_bits(actual, one)
    finally:
        regard._core.testing.set_threading_layer("pool")


def test_explain_shows_the_threads_of_the_layer():
    x = np.ones((4, 500, 64), np.float32)
    try:
        regard._core.testing.set_threading_layer("pool")
        assert regard.explain(x, x, x, threads=2).threads == 2
        regard._core.testing.set_threading_layer("serial")
        assert regard.explain(x, x, x, threads=2).threads == 1
    finally:
        regard._core.testing.set_threading_layer("pool")


# Under pressure


def test_many_short_calls_of_several_threads(layer, output_of):
    script = """
    failures, wanted = [], compute(1)
    small = x[:, :40, :8].astype("f4")
    wanted_small = regard.softmax(small, threads=1).tobytes()
    def work():
        try:
            for repeat in range(500):
                assert regard.softmax(small, threads=2).tobytes() == wanted_small
                if repeat % 3 == 0:
                    assert compute(2 + repeat % 2) == wanted
        except BaseException as failure:
            failures.append(failure)
    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers: worker.start()
    for worker in workers: worker.join()
    assert not failures, failures
    print("done")
    """
    script = PREAMBLE + textwrap.dedent(script)
    assert output_of(script, REGARD_THREADING_LAYER=layer) == "done"


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
    for repeat in range(10):
        runtime.GOMP_parallel(region, None, 3, 0)
    done.set()
    watcher.join()
    assert len(results) == 30 and set(results) == {wanted}
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
