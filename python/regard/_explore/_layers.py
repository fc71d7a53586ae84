"""The layers that a page shows: an attention call for each layer, checked before any work.

Existing weights become calls that reproduce the weights. Their scores are the logarithms of the
weights, and their lse is 0, so that a weight is exp(score - lse) whatever the sum of a row.
Everything that reads layers can therefore read weights too.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard._arguments.arrays import is_list_of_arrays
from regard._arguments.masks import Masks
from regard._attention.check import check_call
from regard._recording.given import calls_of_layers, pairs_of_layers, recorded_layers
from regard._recording.layer import RecordedLayer
from regard._recording.recording import Recording, of_one_text
from regard._show.weights import attention_weights

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike

    from regard._arguments.arrays import Array
    from regard._attention.check import CheckedCall


# Options for the positions of queries and for the computation, which do not change weights.
OPTIONS_OF_WEIGHTS = ("query_offset", "threads")
# The kernels return 0, which means hidden, for float32 weights below 2 ** -100.
_LEAST = 1e-29


class Layer(NamedTuple):
    """One attention call without batch axes."""

    name: str
    call: CheckedCall
    has_scores: bool = True
    """Whether query and key give scores; otherwise the call's float mask contains its weights."""

    @property
    def heads(self) -> int:
        """The number of query heads."""
        return self.call.sizes.heads

    @property
    def first_position(self) -> int:
        """The position of the first query."""
        return int(self.call.positions.query_offset)


def layers_of(query: Any, key: Any, mask: Any, options: Mapping[str, Any]) -> list[Layer]:
    """Return the layers of a call or a recording, or raise the errors of their arguments."""
    if isinstance(query, Recording | RecordedLayer):
        recorded = recorded_layers(query, options, key=key, mask=mask)
        calls = calls_of_layers(map(of_one_text, recorded), options, "lengths")
        layers = [Layer(*each) for each in zip((x.name for x in recorded), calls, strict=True)]
        check_sizes(layers)
        return layers
    if key is None:
        raise TypeError("key must be an array, got None: only a recording needs no key")
    pairs = pairs_of_layers(query, key)
    if pairs is None:
        layers = _layers_of_arrays(query, key, mask, options)
    else:
        layers = []
        for number, pair in enumerate(pairs):
            found = _layers_of_arrays(*pair, mask, options)
            if len(found) != 1 or np.ndim(pair[0]) > 3 or np.ndim(pair[1]) > 3:
                raise ValueError(
                    "query and key must be lists of arrays without batch axes, (heads, length, "
                    f"head_dim), got shapes {np.shape(pair[0])} and {np.shape(pair[1])} for layer "
                    f"{number}"
                )
            layers.append(found[0]._replace(name=str(number)))
    check_sizes(layers)
    return layers


def _layers_of_arrays(
    query: ArrayLike, key: ArrayLike, mask: Any, options: Mapping[str, Any]
) -> list[Layer]:
    """Return a layer for each entry of the batch axes."""
    call = check_call(query, key, None, mask, options)
    return [
        Layer(", ".join(map(str, place)) or "0", entry.with_heads())
        for place, entry in call.entries()
    ]


def check_sizes(layers: Sequence[Layer], names: str = "query and key") -> None:
    """Raise ValueError unless the layers have the same lengths, and something to show."""
    if not layers or not any(layer.heads for layer in layers):
        name = names.partition(" ")[0]
        raise ValueError(f"{name} must have at least one layer and one head, got none")
    lengths = [(layer.call.sizes.q_len, layer.call.sizes.kv_len) for layer in layers]
    if not math.prod(lengths[0]):
        raise ValueError(
            f"{names} must have at least one query and one key, got {lengths[0][0]} and "
            f"{lengths[0][1]}"
        )
    for number, each in enumerate(lengths):
        if each != lengths[0]:
            raise ValueError(
                f"{names} must have the same q_len and kv_len in all layers, got {lengths[0]} in "
                f"layer 0 and {each} in layer {number}"
            )


def layers_of_weights(weights: Any, options: Mapping[str, Any]) -> list[Layer]:
    """Return the layers of the argument `weights`, or raise its errors."""
    if isinstance(weights, list | tuple) and all(each is None for each in weights):
        raise ValueError(
            f"weights must have at least one layer, got {weights}: if a model returns no weights, "
            "record() of regard.transformers or regard.torch makes a recording of it, which "
            "explore() accepts"
        )
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
