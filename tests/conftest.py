import contextlib
import importlib.util
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import textwrap
import zlib

import numpy as np
import pytest

import regard
import regard._core
from element_types import TYPES, type_named
from rotation import Rotation

# A shell starts a command in the background with SIGINT ignored. Our processes would inherit this,
# and tests that interrupt them would wait forever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# If a GPU is present, JAX would put its arrays there.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Python 3.12 and later warn at a fork of a process with several threads, but a process with
# regard's threads may be forked.
FORKS_ARE_TESTED = "ignore:This process:DeprecationWarning"


def pytest_xdist_auto_num_workers(config):
    """Run folders on every CPU. Run single files, for which workers cost more than they gain, in
    this process. `-n 0` runs anything in this process."""
    if all(os.path.isfile(argument.partition("::")[0]) for argument in config.args):
        return 0
    # Windows and macOS have no function for the affinity.
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cpus, 8)


def pytest_addoption(parser):
    parser.addoption(
        "--every",
        action="store_true",
        help="also run slow tests, each case on every target and in every threading layer, and "
        "draw more problems",
    )
    parser.addoption(
        "--turn",
        type=int,
        default=0,
        metavar="N",
        help="rotation: 1 gives each case a different target and threading layer than 0",
    )
    parser.addoption(
        "--one-in",
        type=int,
        default=1,
        metavar="N",
        help="run one case in N of each test, for slow machines",
    )


QUICK, ALL = "not slow and not exhaustive", "not exhaustive"


def pytest_configure(config):
    every, one_in = config.getoption("--every"), config.getoption("--one-in")
    if every and config.option.markexpr.strip() == QUICK:
        config.option.markexpr = ALL
    os.environ["REGARD_EXAMPLES"] = str((5 if every else 1) / one_in)


@pytest.hookimpl(trylast=True)  # vary fastest, so that a case's expected results are computed once
def pytest_generate_tests(metafunc):
    for rotation in (TARGETS, INT8_TARGETS, LAYERS):
        rotation.generate(metafunc)
    _leave_out(metafunc)


def _leave_out(metafunc):
    """Remove the cases that would not run: each worker would spend time on items for them."""
    config, calls = metafunc.config, metafunc._calls
    excluded = {name for name in ("slow", "exhaustive") if f"not {name}" in config.option.markexpr}
    kept = [call for call in calls if not excluded & {mark.name for mark in call.marks}]
    step = min(config.getoption("--one-in"), len(kept)) or 1
    first = zlib.crc32(metafunc.definition.nodeid.encode()) % step
    # At least one case remains, since a test without cases would become one without parameters.
    calls[:] = kept[first :: config.getoption("--one-in")] or calls[:1]


def rounds_to_int8(target):
    x = np.ones((1, 4), np.float32)
    regard._core.testing.set_target(target)
    kernel = regard.explain(x, x, x, precision="int8").kernel
    regard._core.testing.set_target(None)
    return kernel == "int8"


has_openmp = importlib.util.find_spec("regard._openmp") is not None

TARGETS = Rotation("target", list(regard.cpu_targets()))
INT8_TARGETS = Rotation("int8_target", [name for name in TARGETS.values if rounds_to_int8(name)])
LAYERS = Rotation("layer", ["pool", *["openmp"] * has_openmp, "serial"])


@pytest.fixture(autouse=True)
def print_options():
    """Keep print options that an example sets away from the docstrings that run after it."""
    with np.printoptions():
        yield


@pytest.fixture
def target(request):
    """Yield a target that runs here."""
    yield from with_target(TARGETS.value(request))


@pytest.fixture
def int8_target(request):
    """Yield a target that runs here and multiplies 8-bit integers."""
    yield from with_target(INT8_TARGETS.value(request))


def with_target(name):
    regard._core.testing.set_target(name)
    assert regard.active_target() == name
    yield name
    regard._core.testing.set_target(None)


@pytest.fixture
def layer(request):
    """Yield a threading layer. A fresh interpreter takes it from REGARD_THREADING_LAYER."""
    before, chosen = regard.threading_layer().name, LAYERS.value(request)
    regard._core.testing.set_threading_layer(chosen)
    yield chosen
    regard._core.testing.set_threading_layer(before)


@pytest.fixture(params=TYPES["dtype"])
def dtype(request):
    """Return each type that attention computes in."""
    return type_named(request.param)


@pytest.fixture(params=TYPES["half"])
def half(request):
    """Return each type of 16 bits."""
    return type_named(request.param)


@pytest.fixture(params=TYPES["single_or_half"])
def single_or_half(request):
    """Return each type that attention computes in float32."""
    return type_named(request.param)


@pytest.fixture(params=TYPES["storage"])
def storage(request):
    """Return each type that attention reads and writes."""
    return type_named(request.param)


@pytest.fixture
def silence(capfd):
    """Check that nothing is printed on stdout or stderr."""
    yield
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def run_python(tmp_path):
    """Run a script in a fresh interpreter, away from the source tree and our environment. The
    timeout is for scripts that hang: a busy or emulated machine may take a minute for a second's
    work."""

    def run(script, *options, timeout=600, **environment):
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name == "REGARD_DISABLE_CPU_FEATURES" or not name.startswith(("REGARD_", "OMP_"))
        }
        return subprocess.run(
            [sys.executable, *options, "-c", textwrap.dedent(script)],
            cwd=tmp_path,
            env=inherited | {"PYTHONWARNINGS": FORKS_ARE_TESTED} | environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture
def start():
    """Start a process, which is killed when the test ends. `with subprocess.Popen` would wait for
    it forever after an assertion that failed."""
    with contextlib.ExitStack() as stack:

        def run(command, **options):
            process = stack.enter_context(subprocess.Popen(command, **options))
            stack.callback(process.kill)
            return process

        yield run


@pytest.fixture
def output_of(run_python):
    """Return what a script prints; it must end well and complain about nothing."""

    def run(script, *options, **settings):
        done = run_python(script, *options, **settings)
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert not done.stderr, done.stderr
        return done.stdout.strip()

    return run


@pytest.fixture
def run_example(tmp_path):
    """Run an example away from the source tree; return what it prints, and on stderr."""
    examples = pathlib.Path(__file__).parents[1] / "examples"

    def run(name, *arguments, launcher=(), **environment):
        done = subprocess.run(
            [*launcher, sys.executable, "-W", "error", examples / name, *arguments],
            cwd=tmp_path,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout, done.stderr

    return run


@pytest.fixture
def path(tmp_path):
    """Return a path for a cache's file."""
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def chromium():
    playwright = pytest.importorskip("playwright.sync_api", reason='pip install ".[browser]"')
    executable = shutil.which("chromium")
    if executable is None:
        pytest.skip("apt-get install chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()
