"""How a layer turns its queries and keys by their positions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._inputs import flag, integers
from regard.positional import rotary, rotary_cache, rotary_frequencies
from regard.positional._frequencies import given
from regard.positional._scaling import length_matters

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from regard.layers._linear import FloatArray

    Integers = NDArray[np.int64]

_OPTIONS = ("base", "rotary_dim", "interleaved", "inverse_frequencies", "scaling")


class Rotation:
    """Rotary embedding with its options settled once.

    Parameters
    ----------
    options : True or mapping
        Options of `regard.positional.rotary`.
    head_dim : int
        Size of the vectors that are turned.
    """

    def __init__(self, options: bool | Mapping[str, Any], head_dim: int) -> None:
        if options is not True and not isinstance(options, Mapping):
            raise TypeError(f"rotary must be None, True or a mapping, got {type(options).__name__}")
        left = {} if options is True else dict(options)
        unexpected = [str(name) for name in left if name not in _OPTIONS]
        if unexpected:
            raise ValueError(
                f"rotary must have keys among {', '.join(_OPTIONS)}, got {', '.join(unexpected)}"
            )
        self._interleaved = flag("rotary['interleaved']", left.pop("interleaved", False))
        own = left.pop("inverse_frequencies", None)
        self._trained: float | None = None
        if own is None:
            self._of_length = partial(rotary_frequencies, **{"rotary_dim": head_dim, **left})
            self._frequencies, self._factor = self._of_length()
            scaling = left.get("scaling")
            if scaling is not None and length_matters(scaling):
                self._trained = scaling["original_max_position_embeddings"]
        elif left:
            raise ValueError(
                "rotary's inverse_frequencies already say how far each pair turns: leave "
                f"{', '.join(left)} out"
            )
        else:
            self._frequencies, self._factor = given(own), 1.0
        if 2 * self._frequencies.size > head_dim:
            raise ValueError(
                "rotary_dim must be at most head_dim, got "
                f"{2 * self._frequencies.size} and {head_dim}"
            )

    def turn(self, *vectors: tuple[FloatArray, Integers], cached: bool) -> None:
        """Turn arrays ``(..., heads, length, head_dim)`` in place, each at its positions."""
        frequencies = self._frequencies
        if self._trained is not None:
            length = max(int(places.max(initial=-1)) + 1 for _, places in vectors)
            if cached and length > self._trained:
                raise ValueError(
                    f"rotary's scaling 'dynamic' turns every key anew beyond {self._trained} "
                    f"positions, got {length}, and the keys of a cache stay as they are; choose a "
                    "length: rotary={'inverse_frequencies': rotary_frequencies(..., length=...)[0]}"
                )
            frequencies, _ = self._of_length(length=max(length, 0))
        tables: dict[int, tuple[FloatArray, FloatArray]] = {}
        for array, places in vectors:
            if id(places) not in tables:
                cos, sin = rotary_cache(places, inverse_frequencies=frequencies)
                tables[id(places)] = cos * self._factor, sin * self._factor
            rotary(array, cache=tables[id(places)], interleaved=self._interleaved, out=array)


def query_positions(query_offset: ArrayLike, shape: tuple[int, ...]) -> Integers:
    """Return the positions of queries ``(*batch, heads, length, head_dim)``."""
    offset = integers("query_offset", query_offset)
    *batch, _, length, _ = shape
    try:
        fits = np.broadcast_shapes(offset.shape, batch) == tuple(batch)
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"query_offset must broadcast to the batch axes {tuple(batch)}, got {offset.shape}"
        )
    places: Integers = offset.astype(np.int64)[..., None] + np.arange(length)
    return places
