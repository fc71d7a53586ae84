import importlib.util
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import regard
import regard._core
from element_types import TYPES, type_named


def pytest_xdist_auto_num_workers(config):
    """Run folders on every CPU, and single files, for which workers cost more than they gain, in
    this process. `-n 0` runs anything in this process."""
    if all(os.path.isfile(argument.partition("::")[0]) for argument in config.args):
        return 0
    return min(len(os.sched_getaffinity(0)), 8)


@pytest.hookimpl(tryfirst=True)  # -m chooses by the marks that are there afterwards
def pytest_collection_modifyitems(items):
    """Count exhaustive tests as slow ones, since `-m "not slow"` replaces the `-m "not exhaustive"`
    of pyproject.toml, and let the target vary fastest, so that what is expected of a case is worked
    out once."""
    for item in items:
        if item.get_closest_marker("exhaustive"):
            item.add_marker("slow")

    places = {}

    def place(item):
        params = item.callspec.params if hasattr(item, "callspec") else {}
        # Where no target rounds to int8, the only parameter is pytest's NOTSET, which is no text.
        names = (params.get("target"), params.get("int8_target"))
        target = next((name for name in names if isinstance(name, str)), "")
        return places.setdefault(item.nodeid.replace(target, ""), len(places))

    items.sort(key=place)


def targets():
    """Name those that run here. All have the same source: beside the best one, they are for the
    slow tests."""
    best, *others = regard.cpu_targets()
    return [best, *(pytest.param(name, marks=pytest.mark.slow) for name in others)]


def int8_targets():
    """Name those whose instruction for int8 this CPU has, in the same way."""
    return [param for param in targets() if rounds_to_int8(getattr(param, "values", (param,))[0])]


def rounds_to_int8(target):
    x = np.ones((1, 4), np.float32)
    regard._core.testing.set_target(target)
    kernel = regard.explain(x, x, x, precision="int8").kernel
    regard._core.testing.set_target(None)
    return kernel == "int8"


@pytest.fixture(params=targets())
def target(request):
    """Every target that runs here."""
    yield from with_target(request.param)


@pytest.fixture(params=int8_targets())
def int8_target(request):
    """Every target that runs here and multiplies 8-bit integers."""
    yield from with_target(request.param)


def with_target(name):
    regard._core.testing.set_target(name)
    assert regard.active_target() == name
    yield name
    regard._core.testing.set_target(None)


has_openmp = importlib.util.find_spec("regard._openmp") is not None
needs_openmp = pytest.mark.skipif(not has_openmp, reason="this build has no OpenMP")


@pytest.fixture(
    params=[
        "pool",
        pytest.param("openmp", marks=[pytest.mark.slow, needs_openmp]),
        pytest.param("serial", marks=pytest.mark.slow),
    ]
)
def layer(request):
    """Every threading layer. A fresh interpreter takes it from REGARD_THREADING_LAYER."""
    before = regard.threading_layer().name
    regard._core.testing.set_threading_layer(request.param)
    yield request.param
    regard._core.testing.set_threading_layer(before)


@pytest.fixture(params=TYPES["dtype"])
def dtype(request):
    """The types that attention computes in."""
    return type_named(request.param)


@pytest.fixture(params=TYPES["half"])
def half(request):
    """The types of 16 bits."""
    return type_named(request.param)


@pytest.fixture(params=TYPES["single_or_half"])
def single_or_half(request):
    """The types that attention computes in float32."""
    return type_named(request.param)


@pytest.fixture(params=TYPES["storage"])
def storage(request):
    """Every type that attention reads and writes."""
    return type_named(request.param)


@pytest.fixture
def silence(capfd):
    """Nothing is said on stdout or stderr."""
    yield
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def run_python(tmp_path):
    """Run a script in a fresh interpreter, away from the source tree and our environment."""

    def run(script, *options, timeout=60, **environment):
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("REGARD_", "OMP_"))
        }
        return subprocess.run(
            [sys.executable, *options, "-c", textwrap.dedent(script)],
            cwd=tmp_path,
            env=inherited | environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture
def output_of(run_python):
    """What a script prints; it must end well and complain about nothing."""

    def run(script, *options, **settings):
        done = run_python(script, *options, **settings)
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert not done.stderr, done.stderr
        return done.stdout.strip()

    return run


@pytest.fixture
def path(tmp_path):
    """Where a cache's file may lie."""
    return tmp_path / "cache"
