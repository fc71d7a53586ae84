"""The layers that a page shows: a call of attention for each, checked before any work."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard import _core
from regard._arguments.arrays import as_masks, as_stored_arrays
from regard._arguments.hints import raise_with_hint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[Any]

_OF_BATCH_ENTRIES = ("query_offset", "key_lengths", "left_padding")


class Layer(NamedTuple):
    """One call of attention without batch axes."""

    name: str
    query: Array  # (heads, q_len, head_dim)
    key: Array  # (kv_heads, kv_len, head_dim)
    mask: Any
    options: dict[str, Any]

    @property
    def heads(self) -> int:
        """The number of query heads."""
        return int(self.query.shape[0])

    @property
    def positions(self) -> int:
        """The position of the first query."""
        offset = self.options.get("query_offset", 0)
        if isinstance(offset, str):
            lengths = self.options.get("key_lengths")
            end = self.key.shape[-2] if lengths is None else int(np.asarray(lengths))
            return end - int(self.query.shape[-2])
        return int(np.asarray(offset))


def layers_of(query: Any, key: Any, mask: Any, options: Mapping[str, Any]) -> list[Layer]:
    """Return the layers of a call, or raise the errors of attention's arguments."""
    if _is_list_of_arrays(query) != _is_list_of_arrays(key):
        raise TypeError(
            "query and key must both be arrays, or both be lists of the layers' arrays, got "
            f"{type(query).__name__} and {type(key).__name__}"
        )
    if not _is_list_of_arrays(query):
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
    _check_sizes(layers)
    return layers


def _is_list_of_arrays(value: Any) -> bool:
    if not isinstance(value, list | tuple) or not value:
        return False
    return all(hasattr(each, "__array__") and np.ndim(each) >= 2 for each in value)


def _layers_of_arrays(
    query: ArrayLike, key: ArrayLike, mask: Any, options: Mapping[str, Any]
) -> list[Layer]:
    """Return a layer for each entry of the batch axes."""
    query, key = as_stored_arrays(query=query, key=key)
    mask = as_masks(mask)
    try:
        _core.attention_sizes(query, key, key[..., :0], mask, dict(options))
    except ValueError as error:
        raise_with_hint(error, query, key)
    if query.ndim == 2 and key.ndim == 2:
        query, key = query[None], key[None]
    batch = np.broadcast_shapes(query.shape[:-3], key.shape[:-3])
    query = np.broadcast_to(query, (*batch, *query.shape[-3:]))
    key = np.broadcast_to(key, (*batch, *key.shape[-3:]))
    return [
        Layer(
            ", ".join(map(str, entry)) or "0",
            query[entry],
            key[entry],
            _masks_of_entry(mask, batch, entry),
            _options_of_entry(options, batch, entry),
        )
        for entry in np.ndindex(*batch)
    ]


def _masks_of_entry(mask: Any, batch: tuple[int, ...], entry: tuple[int, ...]) -> Any:
    if isinstance(mask, tuple):
        return tuple(_masks_of_entry(each, batch, entry) for each in mask)
    if mask is None or mask.ndim <= 3:
        return mask
    return np.broadcast_to(mask, (*batch, *mask.shape[-3:]))[entry]


def _options_of_entry(
    options: Mapping[str, Any], batch: tuple[int, ...], entry: tuple[int, ...]
) -> dict[str, Any]:
    own = dict(options)
    for name in _OF_BATCH_ENTRIES:
        value = options.get(name)
        if value is not None and not isinstance(value, str):
            own[name] = int(np.broadcast_to(np.asarray(value), batch)[entry])
    slopes = options.get("alibi_slopes")
    if slopes is not None and np.ndim(slopes) > 1:
        slopes = np.asarray(slopes)
        own["alibi_slopes"] = np.broadcast_to(slopes, (*batch, slopes.shape[-1]))[entry]
    return own


def _check_sizes(layers: Sequence[Layer]) -> None:
    """Raise ValueError unless the layers have the same lengths, and something to show."""
    if not layers or not any(layer.heads for layer in layers):
        raise ValueError("query must have at least one layer and one head, got none")
    lengths = [(layer.query.shape[-2], layer.key.shape[-2]) for layer in layers]
    if not math.prod(lengths[0]):
        raise ValueError(
            f"query and key must have at least one row each, got {lengths[0][0]} and "
            f"{lengths[0][1]}"
        )
    for number, each in enumerate(lengths):
        if each != lengths[0]:
            raise ValueError(
                "query and key must have the same q_len and kv_len in all layers, got "
                f"{lengths[0]} in layer 0 and {each} in layer {number}"
            )
