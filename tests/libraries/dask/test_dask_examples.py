"""Run the examples that need Dask and Zarr, or MPI."""

import re
import shutil

import pytest


@pytest.mark.slow
def test_million_keys(run_example):
    """The example runs with fewer keys, in chunks that do not divide them."""
    pytest.importorskip("dask.array", reason='pip install ".[dask]"')
    pytest.importorskip("zarr", reason="pip install zarr")
    printed, _ = run_example("million_keys.py", "--keys", "100000", "--chunk", "7000")
    assert "16 queries, 100,000 keys in 15 chunks" in printed
    assert "100% Completed" in printed
    assert "equal to NumPy in float64 up to rounding: True" in printed


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_mpi_ring(ranks, run_example):
    pytest.importorskip("mpi4py", reason="pip install mpi4py")
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun: apt-get install openmpi-bin libopenmpi-dev")
    mpirun = ("mpirun", "--oversubscribe", "-n", str(ranks))
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    printed, _ = run_example("mpi_ring.py", launcher=mpirun, **as_root)
    assert re.search(rf"^{ranks} ranks, 20\d\d tokens: ", printed)
    assert "equal to a single call up to rounding: True" in printed
