"""Attention for JAX arrays on the CPU, under `jax.jit`, `jax.grad`, `jax.jvp` and `jax.vmap`."""

from regard._runtime.public import needed
from regard._runtime.public import publish as _publish

needed("jax", "regard.jax", "jax")

from regard.jax._attention import scaled_dot_product_attention  # noqa: E402

__all__ = ["scaled_dot_product_attention"]

_publish(globals())
