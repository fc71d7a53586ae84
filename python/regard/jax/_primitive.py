"""The primitive by which XLA calls NumPy code.

`jax.pure_callback` makes JAX arrays of the arguments inside the callback, which waits for the
threads that the callback keeps busy, and may wait forever. What is lowered here is handed NumPy
arrays, and calls nothing of JAX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Compute = Callable[..., tuple[np.ndarray[Any, Any], ...]]


class Result(NamedTuple):
    """The shape and the type of an array that NumPy code returns."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def call(compute: Compute, results: tuple[Result, ...], arrays: Sequence[Any]) -> list[Any]:
    """Call NumPy code with the values of JAX arrays, now or when XLA runs.

    `compute` is hashable: programs whose functions are equal are compiled once. Under `jax.vmap`,
    all its arrays have one more axis in front, of size 1 in those that are not mapped.
    """
    if all(0 in result.shape for result in results):
        return [jnp.zeros(*result) for result in results]
    return list(_primitive.bind(*arrays, compute=compute, results=results))


_primitive = Primitive("regard_attention")
_primitive.multiple_results = True
_compiled = jax.jit(_primitive.bind, static_argnames=("compute", "results"))


def _now(*arrays: Any, **parameters: Any) -> Any:
    return _compiled(*arrays, **parameters)


def _abstract(*arrays: Any, compute: Compute, results: tuple[Result, ...]) -> list[Any]:
    return [jax.core.ShapedArray(*result) for result in results]


def _on_cpu(ctx: Any, *operands: Any, compute: Compute, results: tuple[Result, ...]) -> Any:
    values, _, _ = mlir.emit_python_callback(
        ctx,
        compute,
        None,
        list(operands),
        ctx.avals_in,
        ctx.avals_out,
        has_side_effect=False,
        returns_token=False,
    )
    return values


def _elsewhere(ctx: Any, *operands: Any, **parameters: Any) -> NoReturn:
    platforms = ", ".join(ctx.module_context.platforms)
    raise NotImplementedError(
        f"regard.jax computes on the CPU, and this program is compiled for {platforms}: move the "
        'arrays with jax.device_put(array, jax.devices("cpu")[0])'
    )


def _batched(
    arrays: Sequence[Any],
    axes: Sequence[int | None],
    *,
    compute: Compute,
    results: tuple[Result, ...],
) -> tuple[list[Any], list[int]]:
    mapped = [(array, axis) for array, axis in zip(arrays, axes, strict=True) if axis is not None]
    size = mapped[0][0].shape[mapped[0][1]]
    in_front = [
        jnp.expand_dims(array, 0) if axis is None else jnp.moveaxis(array, axis, 0)
        for array, axis in zip(arrays, axes, strict=True)
    ]
    more = tuple(Result((size, *result.shape), result.dtype) for result in results)
    return call(compute, more, in_front), [0] * len(results)


def _derivative(*_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError(
        "regard.jax has gradients and gradients of gradients, and no derivatives beyond these"
    )


_primitive.def_impl(_now)
_primitive.def_abstract_eval(_abstract)
mlir.register_lowering(_primitive, _on_cpu, platform="cpu")
mlir.register_lowering(_primitive, _elsewhere)
batching.primitive_batchers[_primitive] = _batched
ad.primitive_jvps[_primitive] = _derivative
