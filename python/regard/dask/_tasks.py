"""The functions that the tasks of a graph call in a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

import regard
from regard import _core
from regard._arguments.arrays import as_native, as_stored_arrays
from regard._arguments.masks import Masks
from regard._arguments.option_table import DIFFERENTIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Array = NDArray[Any]
    State = tuple[Array, Array]
    DType = np.dtype[Any]


def attend_part(arrays: list[Any], options: Mapping[str, Any], dtype: DType) -> State:
    """Compute attention of one query chunk over one key chunk.

    The arrays are query, key, value, and the bool and the float mask or None. `dtype` is the type
    of the arithmetic. Queries are converted to it so that the output is not rounded to 16 bits
    before the merge. Its lse is float64: its rounding error would be an error of all weights.
    """
    query, key, value, shown, bias = arrays
    query, key, value = as_stored_arrays(query=as_native(query, dtype), key=key, value=value)
    mask = Masks.of(Masks(shown, bias).argument).argument
    settings = {**options, "return_lse": True, "_wide_lse": True}
    state: State = _core.attention(query, key, value, mask, settings)
    return state


def merge_states(states: list[State], threads: int | None) -> State:
    """Merge the states of several key chunks."""
    return regard.merge_attention_states(*zip(*states, strict=True), threads=threads)


def finish_states(
    states: list[State],
    shape: tuple[int, ...],
    sinks: Array | None,
    dtypes: tuple[DType, DType],
    threads: int | None,
) -> State:
    """Merge the last states, and then the sinks, which are a state with values of 0.

    `shape` is the shape of the output. `dtypes` are the types of the arithmetic and of the output.
    """
    arithmetic, dtype = dtypes
    if not states:  # fully masked rows
        states = [(np.zeros(shape, arithmetic), np.full(shape[:-1], -np.inf))]
    output, lse = merge_states(states, threads) if len(states) > 1 else states[0]
    if sinks is not None:
        # 2-D arrays have no heads axis.
        logits = sinks.astype(lse.dtype).reshape((-1, 1) if output.ndim > 2 else (1,))
        nothing = np.zeros((*logits.shape, output.shape[-1]), output.dtype)
        output, lse = merge_states([(output, lse), (nothing, logits)], threads)
    return output.astype(dtype, copy=False), lse.astype(arithmetic, copy=False)


def part_of(results: tuple[Any, ...], number: int) -> Any:
    """Return one of the results of a task."""
    return results[number]


def gradients_of_part(
    arrays: list[Any],
    options: Mapping[str, Any],
    dtype: DType,
    rows: list[Any],
    with_respect_to: tuple[str, ...],
) -> tuple[Array, ...]:
    """Return the contribution of a pair of chunks to the gradients, in arithmetic precision.

    The first arguments are those of `attend_part`. `rows` contains the gradient of the output, the
    output, lse, and its gradient or None, all for whole rows.
    """
    query, key, value = (as_native(array, _wide(array.dtype, dtype)) for array in arrays[:3])
    shown, bias = arrays[3:]
    if bias is not None:
        bias = as_native(bias, _wide(bias.dtype, dtype))
    settings: Any = dict(options)
    for name in settings.keys() & set(DIFFERENTIABLE):
        # Also the type of its gradient, a sum over all rows that is rounded at the end.
        settings[name] = settings[name].astype(np.float64)
    grad_output, output, lse, grad_lse = rows
    gradients = regard.scaled_dot_product_attention_backward(
        grad_output,
        query,
        key,
        value,
        output,
        lse,
        Masks(shown, bias).argument,
        grad_lse=grad_lse,
        with_respect_to=with_respect_to,
        **settings,
    )
    return tuple(getattr(gradients, name) for name in with_respect_to)


def gradient_of_sinks(rows: list[Any], sinks: Array) -> Array:
    """Return the contribution of a query chunk to the gradient of the sinks, in float64.

    It depends on the keys only through the output and lse, so the call has no keys.
    """
    grad_output, output, lse, grad_lse = rows
    heads = lse.shape[:-1]
    gradients = regard.scaled_dot_product_attention_backward(
        grad_output,
        np.zeros((*lse.shape, 1), lse.dtype),
        np.zeros((*heads, 0, 1), lse.dtype),
        np.zeros((*heads, 0, output.shape[-1]), lse.dtype),
        output,
        lse,
        grad_lse=grad_lse,
        with_respect_to=("sinks",),
        sinks=sinks.astype(np.float64),
    )
    return cast("Array", gradients.sinks)


def add_up(parts: list[Array]) -> Array:
    """Add arrays in order."""
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


def finish_sum(parts: list[Array], shape: tuple[int, ...], dtype: DType) -> Array:
    """Add the last parts, or none, and round the sum to the type of the result."""
    if not parts:
        return np.zeros(shape, dtype)
    return (add_up(parts) if len(parts) > 1 else parts[0]).astype(dtype, copy=False)


def _wide(own: DType, arithmetic: DType) -> DType:
    """Return the type in which the gradient of an input of type `own` is summed."""
    return own if own.itemsize > 2 and own.kind == "f" else arithmetic
