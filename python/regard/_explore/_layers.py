"""The layers that a page shows: an attention call for each layer, checked before any work."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard._arguments.arrays import is_list_of_arrays
from regard._attention.check import check_call
from regard._recording.given import check_equal, recorded_layers
from regard._recording.layer import RecordedLayer, call_of
from regard._recording.recording import Recording, of_one_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike

    from regard._attention.check import CheckedCall


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
        check_equal(recorded, _lengths_of, "lengths")
        layers = [_recorded(layer, options) for layer in recorded]
        check_sizes(layers)
        return layers
    if key is None:
        raise TypeError("key must be an array, got None: only a recording needs no key")
    if is_list_of_arrays(query) != is_list_of_arrays(key):
        raise TypeError(
            "query and key must both be arrays, or both be lists of the layers' arrays, got "
            f"{type(query).__name__} and {type(key).__name__}"
        )
    if not is_list_of_arrays(query):
        layers = _layers_of_arrays(query, key, mask, options)
    elif len(query) != len(key):
        raise ValueError(
            "query and key must be lists of the same length, one array for each layer, got "
            f"{len(query)} and {len(key)}"
        )
    else:
        layers = []
        for number, pair in enumerate(zip(query, key, strict=True)):
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


def _recorded(layer: RecordedLayer, options: Mapping[str, Any]) -> Layer:
    """Return a layer of a recording, with options of the call such as threads."""
    call = call_of(of_one_text(layer))
    return Layer(layer.name, replace(call, options={**call.options, **options}))


def _lengths_of(layer: RecordedLayer) -> str:
    sizes = call_of(layer).sizes
    return f"q_len {sizes.q_len}, kv_len {sizes.kv_len}"


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
