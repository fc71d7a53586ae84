"""Layers of existing weights, as attention calls that reproduce the weights.

The scores of such a call are the logarithms of the weights, and its lse is 0, so that a weight is
exp(score - lse) whatever the sum of a row. Everything that reads layers can therefore read weights
too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import is_list_of_arrays
from regard._arguments.masks import Masks
from regard._attention.check import check_call
from regard._explore._layers import Layer, check_sizes
from regard._show.weights import attention_weights

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from regard._attention.check import CheckedCall

    Array = NDArray[Any]

# Options for the positions of queries and for the computation, which do not change weights.
OPTIONS = ("query_offset", "threads")
# The kernels return 0, which means hidden, for float32 weights below 2 ** -100.
_LEAST = 1e-29


def layers_of_weights(weights: Any, options: Mapping[str, Any]) -> list[Layer]:
    """Return the layers of the argument `weights`, or raise its errors."""
    if is_list_of_arrays(weights):
        layers = [
            Layer(str(number), _call(_of_layer(number, each), options))
            for number, each in enumerate(weights)
        ]
    else:
        _refuse_gaps(weights)
        call = _call(_checked(weights, "weights"), options)
        layers = [
            Layer(", ".join(map(str, place)) or "0", entry) for place, entry in call.entries()
        ]
    check_sizes(layers, "weights")
    return [layer._replace(has_scores=False) for layer in layers]


def scored(call: CheckedCall) -> tuple[CheckedCall, Array]:
    """Return the call with the logarithms of the weights as its scores, and its lse.

    They occupy as much memory as the weights of the layer, and are created for one layer at a time.
    """
    weights = call.masks.bias
    is_positive = weights > 0
    scores = np.where(is_positive, np.maximum(weights, _LEAST), 0)
    with np.errstate(divide="ignore"):
        np.log(scores, out=scores)
    lse = np.where(is_positive.any(axis=-1), 0, -np.inf).astype(weights.dtype)
    return replace(call, masks=Masks(None, scores)), lse


def _of_layer(number: int, given: Any) -> Array:
    """Return the weights (heads, q_len, kv_len) of an entry of a list.

    transformers models return (batch, heads, q_len, kv_len).
    """
    name = f"weights[{number}]"
    shape = np.shape(given)
    if len(shape) > 3 and shape[:-3] != (1,) * (len(shape) - 3):
        raise ValueError(
            f"{name} must have shape (heads, q_len, kv_len), got {shape}: pass the weights of one "
            "batch entry, [layer[0] for layer in weights]"
        )
    array = _checked(given, name)
    return array.reshape(array.shape[-3:])


def _checked(given: Any, name: str) -> Array:
    """Return weights with a heads axis."""
    array = attention_weights(given, name, sums=False, nan=False)
    return array[None] if array.ndim == 2 else array


def _refuse_gaps(weights: Any) -> None:
    """Raise TypeError for lists in which something is not an array, before NumPy misreads them."""
    if not isinstance(weights, list | tuple):
        return
    kinds = [
        type(each).__name__ + (f" of shape {each.shape}" if hasattr(each, "shape") else "")
        for each in weights
    ]
    has_arrays = any(hasattr(each, "__array__") for each in weights)
    deeper = [each for each in weights if isinstance(each, list | tuple)]
    if has_arrays or any(hasattr(part, "__array__") for each in deeper for part in each):
        raise TypeError(
            "weights must be an array, or a list of an array (heads, q_len, kv_len) for each "
            f"layer, got a {type(weights).__name__} of {', '.join(dict.fromkeys(kinds))}"
        )


def _call(weights: Array, options: Mapping[str, Any]) -> CheckedCall:
    """Return a checked call with the sizes of the weights, which serve as its mask for now."""
    *lead, q_len, kv_len = weights.shape
    zero = np.zeros((), weights.dtype)
    query = np.broadcast_to(zero, (*lead, q_len, 1))
    key = np.broadcast_to(zero, (*lead[:-1], 1, kv_len, 1))
    return check_call(query, key, None, weights, options)
