import pytest


@pytest.fixture(autouse=True)
def double_precision():
    """JAX has no float64 unless it is asked for."""
    jax = pytest.importorskip("jax", reason="JAX is not installed: pip install 'regard[jax]'")
    with jax.enable_x64(True):
        yield
