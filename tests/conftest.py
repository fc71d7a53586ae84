import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import regard
import regard._core


@pytest.fixture(params=regard.cpu_targets())
def target(request):
    """Every target that runs here, one after the other."""
    regard._core.testing.set_target(request.param)
    assert regard.active_target() == request.param
    yield request.param
    regard._core.testing.set_target(None)


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    return np.dtype(request.param)


def _stored(name):
    return np.dtype(getattr(pytest.importorskip("ml_dtypes"), name) if name[0] == "b" else name)


@pytest.fixture(params=["float16", "bfloat16"])
def half(request):
    return _stored(request.param)


@pytest.fixture(params=["float32", "float64", "float16", "bfloat16"])
def storage(request):
    """Every type that attention reads and writes."""
    return _stored(request.param)


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
