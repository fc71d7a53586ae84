"""Attention with its gradients, as custom derivatives for JAX.

Gradients of gradients are those of the formula.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from regard._gradients.formula import attention_formula
from regard.jax._computation import DIFFERENTIABLE_INPUTS, Computation, Result

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
    return what.of(results, list(arrays.values()))


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
    return _gradients(known, wanted, given), given


def _gradients_pulled(
    known: TracedCall, wanted: tuple[str, ...], given: Arrays, grads: Arrays
) -> tuple[Arrays]:
    if dict(known.options).get("precision") is not None:
        raise NotImplementedError(
            "precision must be None in gradients of gradients, which are always exact"
        )
    types = {name: x.dtype for name, x in given.items()}
    given = {name: _wide(known, x) for name, x in given.items()}
    names = ("grad_output", "grad_lse", *DIFFERENTIABLE_INPUTS)
    inputs = {name: given[name] for name in names if name in given}

    def gradients(inputs: Arrays) -> Arrays:
        def attention(some: Arrays) -> tuple[Any, Any]:
            return _by_formula(known, given | inputs | some)

        results, pull = jax.vjp(attention, {name: inputs[name] for name in wanted})
        of_lse = inputs.get("grad_lse", jnp.zeros_like(results[1]))
        found: Arrays = pull((inputs["grad_output"], of_lse))[0]
        return found

    (found,) = jax.vjp(gradients, inputs)[1]({n: _wide(known, x) for n, x in grads.items()})
    return ({name: found[name].astype(types[name]) if name in found else None for name in types},)


def _wide(known: TracedCall, array: Any) -> Any:
    """Return an array in the type of the arithmetic, in which sums are not rounded."""
    is_real = jnp.issubdtype(array.dtype, jnp.floating)
    return array.astype(known.lse.dtype) if is_real else array


def _by_formula(known: TracedCall, given: Arrays) -> tuple[Any, Any]:
    """Compute output and lse by JAX's own operations, which have all derivatives."""
    options = dict(known.options) | given
    for name in ("scale", "softcap"):
        if isinstance(options.get(name), tuple):
            options[name] = jnp.asarray(options[name], known.lse.dtype)
    if "sparse_mask" in options:
        names: tuple[str, ...] = ("mask_starts", "mask_spans", "mask_bits", "sparse_mask")
        options["bool_mask"] = _is_weighted(known, given, names)
    factors = None
    if options.get("dropout_p"):
        names = ("dropout_p", "dropout_seed", "dropout_origin", "query_offset", "key_lengths")
        factors = _is_weighted(known, given, names) / (1 - options["dropout_p"])
        factors = factors.astype(known.lse.dtype)
    query, key, value = map(options.pop, _ROLES)
    return attention_formula(jnp, query, key, value, options, factors)


def _is_weighted(known: TracedCall, given: Arrays, names: tuple[str, ...]) -> Any:
    """Return which weights are not 0 if scores are equal, with only some of the options.

    They are the output of attention to the identity.
    """
    kv_len = given["key"].shape[-2]
    alone = known._replace(
        options=tuple((name, x) for name, x in known.options if name in names),
    )
    arrays = {
        "query": jnp.zeros((*known.lse.shape, 1), np.float32),
        "key": jnp.zeros((1,) * (known.axes - 2) + (kv_len, 1), np.float32),
        "value": jnp.eye(kv_len, dtype=np.float32).reshape(
            (1,) * (known.axes - 2) + (kv_len, kv_len)
        ),
    }
    arrays |= {name: given[name] for name in names if name in given}
    result = Result((*known.lse.shape, kv_len), np.dtype(np.float32))
    (output,) = _called("attend", alone, arrays, (result,))
    return output != 0


def _filled(grad: Any) -> Any:
    return jnp.zeros(grad.shape, grad.dtype) if isinstance(grad, SymbolicZero) else grad


attention.defvjp(_attention_kept, _attention_pulled, symbolic_zeros=True)
_gradients.defvjp(_gradients_kept, _gradients_pulled)
