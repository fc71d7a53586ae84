"""Every example runs, on every target, and prints its expected numbers."""

import pathlib
import re
import shutil

import pytest

EXAMPLES = pathlib.Path(__file__).parent.parent.parent / "examples"
PRINTED = {
    "beyond_memory.py": ["39,062 keys in 5 chunks of 8,192", "equal to a single call", "True"],
    "context_vector.py": ["work  0.1885", "[0.2413 0.2311]", "head_dim 256:"],
    "causal_mask.py": ["[0.0884 0.4204 0.049  0.4422]", "scores 3.5492, scaled 0.4437"],
    "positional_encoding.py": ["[0.0018 0.9978 0.0004]", "without positions 0.0000"],
    "rollout.py": ["equal to the dense product: True", "6   0.0156    0.0156"],
    "shared_prefix.py": ["equal up to rounding: True", "34.1 MB         2.6 MB   13.0 times less"],
    "trainable_weights.py": [
        *("[0.3061 0.821 ]", "[1.4035 1.0391]", "[-0.0739  0.0713]"),
        *("the same bits: True", "after 1000 steps 0.0003"),
    ],
    "train.py": ["10,000 characters, ", "step 3  loss ", "Return the "],
}
SLOW = {"rollout.py", "train.py", "trainable_weights.py"}
ARGUMENTS = {
    "rollout.py": ["--length", "2000"],
    "beyond_memory.py": ["--megabytes", "40"],
    "train.py": ["--steps", "3", "--batch", "5", "--characters", "10000", "--sample", "9"],
}
WITH_MODELS = {"generate.py", "serve.py", "similar.py", "transcribe.py"}  # In tests/models.
WITH_PACKAGES = {"million_keys.py", "mpi_ring.py"}


def test_every_example_is_here():
    tested = PRINTED.keys() | WITH_MODELS | WITH_PACKAGES
    assert {path.name for path in EXAMPLES.glob("*.py")} == tested


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in PRINTED]
)
def test_example(name, target, run_example):
    printed, said = run_example(name, *ARGUMENTS.get(name, []), REGARD_TARGET=target)
    assert not said
    for text in PRINTED[name]:
        assert text in printed


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
