"""Choose layers by number, slice or name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex

from regard._arguments.arrays import shown
from regard._arguments.numbers import count, listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Layers = SupportsIndex | slice | str | Iterable[SupportsIndex | str]


class Selection(NamedTuple):
    """Some layers of a recording, or of a run before the number of layers is known."""

    numbers: frozenset[int]
    names: tuple[str, ...]
    """Whole names, or consecutive parts of them, without dots at the ends."""

    @classmethod
    def of(cls, layers: Any, length: int | None = None) -> Selection:
        """Read the argument `layers` of a call, or raise TypeError or ValueError.

        While a model runs, its number of layers, `length`, is not known: numbers count from the
        first layer, and slices are refused.
        """
        if isinstance(layers, slice):
            if length is None:
                raise TypeError(
                    "layers must be a number, a name or some of them, got "
                    f"{layers}: pass range({layers.start or 0}, ...)"
                )
            layers = range(length)[layers]
        is_array = getattr(layers, "ndim", 0) > 0  # which has __index__ too
        if isinstance(layers, str) or (hasattr(layers, "__index__") and not is_array):
            layers = [layers]
        try:
            parts = list(layers)
        except TypeError:
            raise TypeError(
                "layers must be a number, a name, a slice or some numbers and names of layers, got "
                f"{shown(layers)}"
            ) from None
        if not parts:
            raise ValueError("layers must select at least one layer, got none")
        names = tuple(each.strip(".") for each in parts if isinstance(each, str))
        if "" in names:
            raise ValueError("layers must name layers, got ''")
        numbers = (each for each in parts if not isinstance(each, str))
        return cls(
            frozenset(
                count("layers", each) if length is None else number_in(each, length)
                for each in numbers
            ),
            names,
        )

    def has(self, number: int, name: str) -> bool:
        """Return whether a layer is selected."""
        return number in self.numbers or any(_has_part(name, part) for part in self.names)

    def check(self, names: Sequence[str]) -> None:
        """Raise ValueError if a part of the selection selects none of the layers of a run."""
        last = max(self.numbers, default=-1)
        if last >= len(names):
            raise ValueError(
                f"layers must be less than {len(names)}, the number of layers, got {last}"
            )
        for part in self.names:
            if not any(_has_part(name, part) for name in names):
                raise ValueError(
                    f"layers must name layers, got {part!r}; there are {listed(names)}"
                )


def places_in(layers: Any, names: Sequence[str]) -> list[int]:
    """Return the numbers of the selected layers of a recording, in its order.

    Raises TypeError or ValueError, also if a part of the selection selects nothing.
    """
    selection = Selection.of(layers, len(names))
    selection.check(names)
    return [number for number, name in enumerate(names) if selection.has(number, name)]


def number_in(layer: SupportsIndex, length: int) -> int:
    """Return the number of a layer, counted from the end if it is negative."""
    return count("layer", layer, minimum=-length, maximum=length - 1) % length


def _has_part(name: str, part: str) -> bool:
    """Return whether a name contains a part, between dots or before the colon of a later call."""
    return any(f".{part}{end}" in f".{name}." for end in ".:")
