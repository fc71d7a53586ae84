"""Attention with first and second gradients, as custom derivatives for JAX."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from regard.jax._computation import DIFFERENTIABLE_INPUTS, Computation
from regard.jax._ffi import Result, call

if TYPE_CHECKING:
    Arrays = dict[str, Any]

_ROLES = ("query", "key", "value")


class TracedCall(NamedTuple):
    """The properties of a call that are known when a program is traced."""

    axes: int
    options: tuple[tuple[str, Any], ...]
    output: Result
    lse: Result
    return_lse: bool
    is_residual: bool = False
    """Whether lse is kept for gradients only, and finite in fully masked rows."""


def _called(
    function: str, known: TracedCall, arrays: Arrays, results: tuple[Result, ...], **more: Any
) -> list[Any]:
    options = {**dict(known.options), **more}
    what = Computation(function, tuple(arrays), known.axes, tuple(options.items()))
    return call(what, results, list(arrays.values()))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def attention(known: TracedCall, arrays: Arrays) -> tuple[Any, ...]:
    """Return the output, and lse if it is requested."""
    results = (known.output, known.lse) if known.return_lse else (known.output,)
    function = "attend_with_residual" if known.is_residual else "attend"
    return tuple(_called(function, known, arrays, results))


def _attention_kept(known: TracedCall, arrays: Arrays) -> tuple[tuple[Any, ...], Any]:
    if dict(known.options).get("precision") == "int8":
        raise NotImplementedError(
            "precision must be None or 'bfloat16' if gradients are computed, got 'int8'"
        )
    for name in ("scale", "softcap"):
        if name in arrays and arrays[name].perturbed:
            raise NotImplementedError(
                f"{name} has no gradient: pass jax.lax.stop_gradient({name})"
                + (", or multiply query by it" if name == "scale" else "")
            )
    wanted = [name for name in DIFFERENTIABLE_INPUTS if name in arrays and arrays[name].perturbed]
    values = {name: array.value for name, array in arrays.items()}
    # Not the computation itself, which has no derivative if this pass is also differentiated.
    both = known if known.return_lse else known._replace(return_lse=True, is_residual=True)
    output, lse = attention(both, values)
    # The gradients of query, key and value, the only second gradients, already include theirs.
    stopped = {"output": jax.lax.stop_gradient(output), "lse": jax.lax.stop_gradient(lse)}
    results = (output, lse) if known.return_lse else (output,)
    # Names are stored as keys, which JAX does not treat as arrays.
    return results, (values | stopped, dict.fromkeys(wanted))


def _attention_pulled(known: TracedCall, residuals: Any, grads: tuple[Any, ...]) -> tuple[Arrays]:
    kept, wanted = residuals
    grad_output, *grad_lses = grads
    given = {"grad_output": _filled(grad_output), **kept}
    if grad_lses and not isinstance(grad_lses[0], SymbolicZero):
        given["grad_lse"] = grad_lses[0]
    gradients = _gradients(known, tuple(wanted), given)
    return ({name: gradients.get(name) for name in kept if name not in ("output", "lse")},)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _gradients(known: TracedCall, wanted: tuple[str, ...], given: Arrays) -> Arrays:
    results = tuple(Result(given[name].shape, given[name].dtype) for name in wanted)
    computed = _called("backward", known, given, results, with_respect_to=wanted)
    return dict(zip(wanted, computed, strict=True))


def _gradients_kept(
    known: TracedCall, wanted: tuple[str, ...], given: Arrays
) -> tuple[Arrays, Arrays]:
    for name in DIFFERENTIABLE_INPUTS:
        if name in given and name not in _ROLES and given[name].perturbed:
            _refuse(name)
    values = {name: array.value for name, array in given.items()}
    return _gradients(known, wanted, values), values


def _gradients_pulled(
    known: TracedCall, wanted: tuple[str, ...], given: Arrays, grads: Arrays
) -> tuple[Arrays]:
    along = {}
    for name, grad in grads.items():
        if isinstance(grad, SymbolicZero):
            continue
        if name not in _ROLES:
            _refuse(name)
        along[f"grad_grad_{name}"] = grad
    along = {
        name: along.get(name, jnp.zeros_like(given[name.removeprefix("grad_grad_")]))
        for name in map("grad_grad_{}".format, _ROLES)
    }
    names = ["grad_output", *_ROLES, *(["grad_lse"] if "grad_lse" in given else [])]
    results = tuple(Result(given[name].shape, given[name].dtype) for name in names)
    if dict(known.options).get("precision") is not None:
        raise NotImplementedError(
            "precision must be None in gradients of gradients, which are always exact"
        )
    computed = _called("double_backward", known, along | given, results)
    of_inputs = dict(zip(names, computed, strict=True))
    return ({name: of_inputs.get(name) for name in given},)


def _refuse(name: str) -> None:
    name = name.removeprefix("float_")
    raise NotImplementedError(
        f"{name} must be a constant in gradients of gradients, which regard computes for "
        f"query, key and value only: pass jax.lax.stop_gradient({name})"
    )


def _filled(grad: Any) -> Any:
    return jnp.zeros(grad.shape, grad.dtype) if isinstance(grad, SymbolicZero) else grad


attention.defvjp(_attention_kept, _attention_pulled, symbolic_zeros=True)
_gradients.defvjp(_gradients_kept, _gradients_pulled, symbolic_zeros=True)
