"""The functions that the tasks of a graph call in a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

import regard
from regard._arguments.arrays import as_native
from regard._arguments.masks import Masks
from regard._arguments.option_table import DIFFERENTIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Array = NDArray[Any]
    State = tuple[Array, Array]
    DType = np.dtype[Any]

# The inputs of a task for a pair of chunks, in the order of its arguments.
OPERANDS = ("query", "key", "value", "shown", "bias")


def attend_part(
    query: Array,
    key: Array,
    value: Array,
    shown: Any,
    bias: Array | None,
    options: Mapping[str, Any],
    dtype: DType,
) -> State:
    """Compute attention of one query chunk over one key chunk.

    `dtype` is the type of the arithmetic. Queries are converted to it so that the output is not
    rounded to 16 bits before the merge.
    """
    query, mask = as_native(query, dtype), _mask(shown, bias)
    return regard.scaled_dot_product_attention(query, key, value, mask, return_lse=True, **options)


def attend_to_nothing(shape: tuple[int, ...], dtype: DType) -> State:
    """Return the state of fully masked rows."""
    return np.zeros(shape, dtype), np.full(shape[:-1], -np.inf, dtype)


def merge_states(states: list[State], threads: int | None) -> State:
    """Merge the states of several key chunks."""
    return regard.merge_attention_states(*zip(*states, strict=True), threads=threads)


def finish_states(
    states: list[State], sinks: Array | None, dtype: DType, threads: int | None
) -> State:
    """Merge the last states, and then the sinks, which are a state with values of 0."""
    output, lse = merge_states(states, threads) if len(states) > 1 else states[0]
    if sinks is not None:
        # 2-D arrays have no heads axis.
        logits = sinks.astype(lse.dtype).reshape((-1, 1) if output.ndim > 2 else (1,))
        nothing = np.zeros((*logits.shape, output.shape[-1]), output.dtype)
        output, lse = merge_states([(output, lse), (nothing, logits)], threads)
    return output.astype(dtype, copy=False), lse


def part_of(results: tuple[Any, ...], number: int) -> Any:
    """Return one of the results of a task."""
    return results[number]


def gradients_of_part(
    query: Array,
    key: Array,
    value: Array,
    shown: Any,
    bias: Array | None,
    rows: list[Any],
    with_respect_to: tuple[str, ...],
    options: Mapping[str, Any],
    dtype: DType,
) -> tuple[Array, ...]:
    """Return the contribution of a pair of chunks to the gradients, in arithmetic precision.

    `rows` contains the gradient of the output, the output, lse, and its gradient or None, all for
    whole rows.
    """
    query = as_native(query, _wide(query.dtype, dtype))
    key = as_native(key, _wide(key.dtype, dtype))
    value = as_native(value, _wide(value.dtype, dtype))
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
        _mask(shown, bias),
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


def finish_sum(parts: list[Array], dtype: DType) -> Array:
    """Add the last parts and round the sum to the type of the result."""
    return (add_up(parts) if len(parts) > 1 else parts[0]).astype(dtype, copy=False)


def zeros(shape: tuple[int, ...], dtype: DType) -> Array:
    """Return the gradient of an input on which nothing depends."""
    return np.zeros(shape, dtype)


def _mask(shown: Any, bias: Array | None) -> Any:
    return Masks(shown, bias).argument


def _wide(own: DType, arithmetic: DType) -> DType:
    """Return the type in which the gradient of an input of type `own` is summed."""
    return own if own.itemsize > 2 and own.kind == "f" else arithmetic
