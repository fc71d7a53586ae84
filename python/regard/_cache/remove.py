"""Remove tokens from the middle of a text, and rotate the keys that move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._cache.append import append_stored
from regard._cache.quantize import entry_rows, entry_tokens, quantized
from regard.positional import rotary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from regard import _core
    from regard._cache.geometry import Geometry, LayerGeometry

    Array = NDArray[Any]


def remove(
    pages: _core.PageTable,
    geometry: Geometry,
    entry: int,
    start: int,
    stop: int,
    inverse_frequencies: ArrayLike | Sequence[ArrayLike | None] | None,
    interleaved: bool,
) -> None:
    """Remove the tokens from `start` to before `stop`, in all layers.

    The later tokens are appended again to a fork, which then takes the place of the entries.
    """
    _check_evicted(pages, geometry, entry, start, stop)
    of_layers = _of_layers(inverse_frequencies, len(geometry.layers))
    changed = pages.fork(np.arange(len(pages.lengths)))
    lengths = changed.lengths
    moved = int(lengths[entry]) - stop
    starts = np.where(np.arange(len(lengths) + 1) > entry, moved, 0)
    lengths[entry] = start
    changed.truncate(lengths)
    for number, (layer, frequencies) in enumerate(zip(geometry.layers, of_layers, strict=True)):
        own = pages.layer(number)
        rows = _rows(own, layer, entry, stop)
        if frequencies is not None:
            keys = entry_tokens(own, layer, 0, entry, stop)
            keys = keys if keys.dtype == np.float64 else keys.astype(np.float32)
            _rotate(keys, layer, start - stop, frequencies, interleaved)
            rows[0], rows[2] = _stored_keys(own, layer, keys)
        packed = [None if each is None else each.swapaxes(0, 1) for each in rows]
        append_stored(changed.layer(number), layer, packed, None, starts, is_packed=True)
    changed.truncate(changed.lengths)  # forgets the append, which nobody may undo
    pages.exchange(changed)
    changed.close()


def _check_evicted(
    pages: _core.PageTable, geometry: Geometry, entry: int, start: int, stop: int
) -> None:
    """Raise ValueError if evicted tokens would move, or a window would contain them."""
    for number, (page_size, keep_last, keep_first) in enumerate(geometry.pools):
        evicted = int(pages.evicted(number)[entry]) * page_size
        first = -(-keep_first // page_size) * page_size
        held = first + evicted
        are_all_removed = start <= first and held <= stop
        if evicted and not are_all_removed and start < held + (keep_last or 0):
            raise ValueError(
                f"the tokens before {held} of entry {entry} have been evicted (keep_last="
                f"{keep_last}): start must be at least {held + (keep_last or 0)}, or at most "
                f"{first} with stop at least {held}, got start {start} and stop {stop}"
            )


def _of_layers(
    inverse_frequencies: ArrayLike | Sequence[ArrayLike | None] | None, layers: int
) -> list[ArrayLike | None]:
    """Return the frequencies of each layer, which may be the same."""
    given: Any = inverse_frequencies
    is_one = not isinstance(given, list | tuple | np.ndarray) or getattr(given, "ndim", 1) == 0
    if is_one or all(each is not None and np.ndim(each) == 0 for each in given):
        return [given] * layers
    if len(given) != layers:
        raise ValueError(
            f"inverse_frequencies must be one array, or one for each of the {layers} layers, got "
            f"{len(given)}"
        )
    return list(given)


def _rows(
    pages: _core.LayerPages, layer: LayerGeometry, entry: int, start: int
) -> list[Array | None]:
    """Return the stored arrays of an entry: keys, values, and the scales of both.

    Scales that never change, and values in keys, are None.
    """
    has_scales = layer.dtype.scaled in ("rows", "groups")
    is_stored = [
        True,
        not layer.value_from_key,
        has_scales,
        has_scales and not layer.value_from_key,
    ]
    return [
        entry_rows(pages, layer, part, entry, start) if is_there else None
        for part, is_there in enumerate(is_stored)
    ]


def _rotate(
    keys: Array, layer: LayerGeometry, shift: int, frequencies: ArrayLike, interleaved: bool
) -> None:
    """Rotate keys (kv_heads, tokens, dim) to positions that differ by `shift`."""
    rotated = keys[..., layer.value_dim :] if layer.value_from_key else keys
    positions = np.full(keys.shape[1], shift)
    rotary(
        rotated,
        positions,
        inverse_frequencies=frequencies,
        interleaved=interleaved,
        out=rotated,
    )


def _stored_keys(
    pages: _core.LayerPages, layer: LayerGeometry, keys: Array
) -> tuple[Array | None, Array | None]:
    """Return keys in the form in which they are stored, and their scales."""
    if not layer.dtype.is_quantized:
        return keys, None
    parts = quantized(layer, pages.key_means, keys[None], None, None)
    stored, scales = (None if part is None else part[0] for part in (parts[0], parts[2]))
    return stored, scales
