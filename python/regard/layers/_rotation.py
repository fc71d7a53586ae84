"""Rotation of a layer's queries and keys by their positions."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.numbers import flag
from regard.positional import rotary_cache, rotary_frequencies
from regard.positional._rotary import rotate
from regard.positional._scaling import numbers_of_pairs, read_rope_parameters

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard.layers._linear import FloatArray

    Integers = NDArray[np.int64]

_OPTIONS = ("base", "rotary_dim", "interleaved", "inverse_frequencies", "scaling", "length")

_AHEAD = 64  # additional positions in a table, after the requested positions


class Rotation:
    """Rotary embedding whose options are checked once.

    Parameters
    ----------
    options : True or mapping
        Options of `regard.positional.rotary`.
    head_dim : int
        Size of the rotated vectors.
    dtype : numpy.dtype
        Dtype of the rotated vectors.
    """

    def __init__(
        self, options: bool | Mapping[str, Any], head_dim: int, dtype: np.dtype[Any]
    ) -> None:
        if options is not True and not isinstance(options, Mapping):
            raise TypeError(f"rotary must be None, True or a mapping, got {type(options).__name__}")
        self.options = deepcopy(options)
        left = {} if options is True else dict(options)
        self._shown = _shown(left)
        unexpected = [str(name) for name in left if name not in _OPTIONS]
        if unexpected:
            raise ValueError(
                f"rotary must have keys among {', '.join(_OPTIONS)}, got {', '.join(unexpected)}"
            )
        self._interleaved = flag("rotary['interleaved']", left.pop("interleaved", False))
        own = left.pop("inverse_frequencies", None)
        self._rope = read_rope_parameters(left.get("scaling"))
        self._trained: float | None = None
        if own is None:
            self._of_length = partial(rotary_frequencies, head_dim=head_dim, **left)
            self._frequencies, self._factor = self._of_length()
            if left.get("length") is None:
                self._trained = self._rope.trained_length
        elif left:
            raise ValueError(
                "rotary's inverse_frequencies already determine the angles: leave "
                f"{', '.join(left)} out"
            )
        else:
            self._frequencies, self._factor = numbers_of_pairs("inverse_frequencies", own), 1.0
        if 2 * self._frequencies.size > head_dim:
            raise ValueError(
                "rotary_dim must be at most head_dim, got "
                f"{2 * self._frequencies.size} and {head_dim}"
            )

        # The cosines and sines of consecutive positions from a first one on, since decoding needs
        # one more at every step.
        self._dtype = dtype
        nothing = np.empty((0, 1), dtype)
        self._table: tuple[int, FloatArray, FloatArray] = 0, nothing, nothing

    @classmethod
    def of(cls, options: Any, head_dim: int, dtype: np.dtype[Any]) -> Rotation | None:
        """Return the rotation of a layer, or None if there is none."""
        return None if options is None else cls(options, head_dim, dtype)

    def __repr__(self) -> str:
        return self._shown

    def turn(
        self, *vectors: tuple[FloatArray, Integers], cached: bool, transposed: bool = False
    ) -> None:
        """Rotate arrays ``(..., heads, length, head_dim)`` in place, each by its positions.

        The first array contains the queries.

        With `transposed`, multiply by the transposed matrices, which turns gradients of rotated
        vectors into gradients of the original vectors.
        """
        frequencies = self._frequencies
        if self._trained is not None:
            length = max(int(places.max(initial=-1)) + 1 for _, places in vectors)
            if cached and length > self._trained:
                raise ValueError(
                    f"rotary's scaling rotates all keys differently beyond {int(self._trained)} "
                    f"positions, and the keys in a cache stay as they are; got {length} positions: "
                    "pass the length of the whole sequence, rotary={'scaling': ..., 'length': ...}"
                )
            frequencies, _ = self._of_length(length=max(length, 0))
        found: dict[int, tuple[FloatArray, FloatArray]] = {}
        for number, (array, places) in enumerate(vectors):
            if array.size == 0:
                continue
            if id(places) not in found:
                found[id(places)] = self._looked_up(places, frequencies)
            cos, sin = found[id(places)]
            factor = self._rope.query_factor(places, number == 0)
            if factor is not None:
                of_rows = factor[..., None].astype(self._dtype)
                cos, sin = cos * of_rows, sin * of_rows
            rotate(array, cos, -sin if transposed else sin, self._interleaved, array)

    def _looked_up(
        self, places: Integers, frequencies: NDArray[np.float64]
    ) -> tuple[FloatArray, FloatArray]:
        """Return the cosines and sines of positions ``(*batch, length)``, one for each pair."""
        (start, cos, sin), first, last = self._table, int(places.min()), int(places.max())
        is_own = frequencies is self._frequencies
        if not (is_own and start <= first and last < start + len(cos)):
            if not is_own or last - first > 4 * places.size + _AHEAD:
                return self._computed(places, frequencies)
            # Include the next positions in decoding.
            ahead = np.arange(first, last + 1 + _AHEAD)
            start, cos, sin = self._table = first, *self._computed(ahead, frequencies)
        return cos[places - start], sin[places - start]

    def _computed(
        self, places: Integers, frequencies: NDArray[np.float64]
    ) -> tuple[FloatArray, FloatArray]:
        cos, sin = rotary_cache(places, inverse_frequencies=frequencies)
        return (cos * self._factor).astype(self._dtype), (sin * self._factor).astype(self._dtype)


def _shown(options: Mapping[str, Any]) -> str:
    """Return options in one line: numbers in full, mappings and arrays as dots."""
    parts = (
        f"{name!r}: {value!r}" if isinstance(value, int | float) else f"{name!r}: ..."
        for name, value in options.items()
        if value is not None
    )
    return f"{{{', '.join(parts)}}}" if options else "True"
