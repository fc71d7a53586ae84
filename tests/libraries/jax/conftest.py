import pytest


@pytest.fixture(autouse=True)
def double_precision():
    """Enable float64, which JAX has only on request."""
    jax = pytest.importorskip("jax", reason='JAX is not installed: pip install ".[jax]"')
    with jax.enable_x64(True):
        yield
