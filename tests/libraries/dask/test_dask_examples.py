"""Run the examples that need Dask and Zarr, or MPI."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"


def output_of(*command, **environment):
    done = subprocess.run(
        command,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_million_keys():
    """The example runs with fewer keys, in chunks that do not divide them."""
    pytest.importorskip("dask.array", reason='pip install ".[dask]"')
    pytest.importorskip("zarr", reason="pip install zarr")
    command = (sys.executable, "-W", "error", EXAMPLES / "million_keys.py")
    printed = output_of(*command, "--keys", "100000", "--chunk", "7000")
    assert "16 queries, 100,000 keys in 15 chunks" in printed
    assert "100% Completed" in printed
    assert "equal to NumPy in float64 up to rounding: True" in printed


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_mpi_ring(ranks):
    pytest.importorskip("mpi4py", reason="pip install mpi4py")
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun: apt-get install openmpi-bin libopenmpi-dev")
    mpirun = ("mpirun", "--oversubscribe", "-n", str(ranks), sys.executable, "-W", "error")
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    printed = output_of(*mpirun, EXAMPLES / "mpi_ring.py", **as_root)
    assert re.search(rf"^{ranks} ranks, 20\d\d tokens: ", printed)
    assert "equal to a single call up to rounding: True" in printed
