"""Attention with its derivatives, as a JAX primitive.

First derivatives, in reverse and in forward mode, are fused. Derivatives of derivatives, and of
other inputs than query, key and value in forward mode, are those of the formula.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from regard._gradients.formula import attention_formula
from regard.jax._computation import DIFFERENTIABLE_INPUTS, Result, Step, TracedCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    Arrays = dict[str, Any]

_ROLES = ("query", "key", "value")


def attention(known: TracedCall, arrays: Arrays, mapped: tuple[int, ...] = ()) -> tuple[Any, ...]:
    """Return the output, and lse if it is requested."""
    results = (known.output, known.lse) if known.return_lse else (known.output,)
    function = "attend_with_residual" if known.is_residual else "attend"
    return _bound(Step(function, known, tuple(arrays), results, mapped=mapped), arrays)


def _bound(step: Step, arrays: Arrays) -> tuple[Any, ...]:
    """Compute a step now, or when XLA runs."""
    return tuple(_primitive.bind(*(arrays[name] for name in step.names), step=step))


def _derivative(step: Step, function: str, wanted: Any, given: Arrays, results: Any) -> Any:
    """Compute a derivative of a step, now or when XLA runs."""
    what = Step(function, step.known, tuple(given), results, tuple(wanted), step.mapped)
    return _bound(what, given)


def _compute(*arrays: Any, step: Step) -> Any:
    if step.function == "jvp":
        _refuse_precision(step.known)
        if not set(step.wanted) <= set(_ROLES):
            return list(_formula(step, dict(zip(step.names, arrays, strict=True))))
    return step.compute(*arrays)


def _formula(step: Step, given: Arrays) -> tuple[Any, ...]:
    """Compute a derivative by JAX's own operations."""
    function = partial(_derivative_by_formula, step)
    given = {name: jnp.asarray(x) for name, x in given.items()}  # constants are NumPy arrays
    if step.mapped:
        axes = len(step.mapped)
        given = {n: jnp.broadcast_to(x, step.mapped + x.shape[axes:]) for n, x in given.items()}
    for _ in step.mapped:
        function = jax.vmap(function)
    return function(given)


def _derivative_by_formula(step: Step, given: Arrays) -> tuple[Any, ...]:
    """Compute a derivative of one mapped call."""
    wide = {name: _wide(step.known, x) for name, x in given.items()}

    def attention(some: Arrays) -> tuple[Any, Any]:
        return _by_formula(step.known, wide | some)

    inputs = {name: wide[name] for name in step.wanted}
    if step.function == "backward":
        results, pull = jax.vjp(attention, inputs)
        of_lse = wide.get("grad_lse", jnp.zeros_like(results[1]))
        (gradients,) = pull((wide["grad_output"], of_lse))
        found = [gradients[name] for name in step.wanted]
    else:
        tangents = {name: wide[f"tangent_{name}"] for name in step.wanted}
        found = jax.jvp(attention, (inputs,), (tangents,))[1]
    return tuple(x.astype(each.dtype) for x, each in zip(found, step.results, strict=False))


def _tangents(primals: Sequence[Any], tangents: Sequence[Any], *, step: Step) -> Any:
    """Return the results of a step, and their derivatives along tangents."""
    given = dict(zip(step.names, primals, strict=True))
    moved = {
        name: tangent
        for name, tangent in zip(step.names, tangents, strict=True)
        if type(tangent) is not ad.Zero and tangent.dtype != jax.dtypes.float0
    }
    if step.wanted:
        _refuse_precision(step.known)
        inputs = {name: given[name] for name in moved}
        along = jax.jvp(lambda x: _formula(step, given | x), (inputs,), (moved,))[1]
        return _bound(step, given), along
    known = step.known
    if dict(known.options).get("precision") == "int8":
        raise NotImplementedError(
            "precision must be None or 'bfloat16' if gradients are computed, got 'int8'"
        )
    for name in ("scale", "softcap"):
        if name in moved:
            raise NotImplementedError(
                f"{name} has no gradient: pass jax.lax.stop_gradient({name})"
                + (", or multiply query by it" if name == "scale" else "")
            )
    both = known if known.return_lse else known._replace(return_lse=True, is_residual=True)
    results = output, lse = attention(both, given, step.mapped)
    wanted = [name for name in DIFFERENTIABLE_INPUTS if name in moved]
    # A transposed derivative needs the output and lse. They are not inputs of the formula, whose
    # derivatives with respect to the other inputs include theirs.
    given |= {"output": jax.lax.stop_gradient(output), "lse": jax.lax.stop_gradient(lse)}
    given |= {f"tangent_{name}": moved[name] for name in wanted}
    along = _derivative(step, "jvp", wanted, given, step.results)
    return results[: len(step.results)], along


def _gradients(grads: Sequence[Any], *arrays: Any, step: Step) -> list[Any]:
    """Return the gradients of the tangents, in which a derivative along them is linear."""
    named = dict(zip(step.names, arrays, strict=True))
    given = {name: x for name, x in named.items() if not name.startswith("tangent_")}
    grad_output, *grad_lses = grads
    given["grad_output"] = ad.instantiate_zeros(grad_output)
    if grad_lses and type(grad_lses[0]) is not ad.Zero:
        given["grad_lse"] = grad_lses[0]
    wanted = [name for name in step.wanted if ad.is_undefined_primal(named[f"tangent_{name}"])]
    axes = len(step.mapped)
    results = tuple(Result(given[name].shape[axes:], given[name].dtype) for name in wanted)
    computed = _derivative(step, "backward", wanted, given, results)
    found = {
        f"tangent_{name}": _summed(array, given[name].shape)
        for name, array in zip(wanted, computed, strict=True)
    }
    return [found.get(name) for name in step.names]


def _mapped(arrays: Sequence[Any], axes: Sequence[Any], *, step: Step) -> Any:
    """Compute a step for all entries of an axis that `jax.vmap` adds."""
    each = zip(arrays, axes, strict=True)
    size = next(x.shape[axis] for x, axis in each if axis is not None)
    moved = {
        name: x[None] if axis is None else jnp.moveaxis(x, axis, 0)
        for name, x, axis in zip(step.names, arrays, axes, strict=True)
    }
    wider = replace(step, mapped=(size, *step.mapped))
    return _bound(wider, moved), (0,) * len(step.results)


_primitive = Primitive("regard_attention")
_primitive.multiple_results = True
_primitive.def_impl(_compute)
_primitive.def_abstract_eval(lambda *_, step: step.types())
mlir.register_lowering(_primitive, mlir.lower_fun(_compute, multiple_results=True))
ad.primitive_jvps[_primitive] = _tangents
ad.primitive_transposes[_primitive] = _gradients
batching.primitive_batchers[_primitive] = _mapped


def _refuse_precision(known: TracedCall) -> None:
    if dict(known.options).get("precision") is not None:
        raise NotImplementedError(
            "precision must be None in gradients of gradients and in forward mode, which are "
            "always exact"
        )


def _summed(array: Any, shape: tuple[int, ...]) -> Any:
    """Return the sum over the mapped axes that an input does not have."""
    axes = tuple(i for i, size in enumerate(shape) if size == 1 < array.shape[i])
    return array.sum(axes, keepdims=True) if axes else array


def _wide(known: TracedCall, array: Any) -> Any:
    """Return an array in the type of the arithmetic, in which sums are not rounded."""
    dtype = known.lse.dtype
    is_narrow = jnp.issubdtype(array.dtype, jnp.floating) and array.dtype != dtype
    return array.astype(dtype) if is_narrow else array


def _by_formula(known: TracedCall, given: Arrays) -> tuple[Any, Any]:
    """Compute output and lse by JAX's own operations, which have all derivatives."""
    options = dict(known.options) | given
    for name in ("scale", "softcap"):
        if isinstance(options.get(name), tuple):
            options[name] = jnp.asarray(options[name], known.lse.dtype)
    query, key, value = map(options.pop, _ROLES)
    is_weighted = partial(_is_weighted, known, given)
    return attention_formula(jnp, query, key, value, options, is_weighted)


def _is_weighted(known: TracedCall, given: Arrays, names: tuple[str, ...]) -> Any:
    """Return which weights are not 0 if scores are equal, with only some of the options.

    They are the output of attention to the identity.
    """
    kv_len = given["key"].shape[-2]
    reduced = known._replace(
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
    (output,) = _bound(Step("attend", reduced, tuple(arrays), (result,)), arrays)
    return output != 0
