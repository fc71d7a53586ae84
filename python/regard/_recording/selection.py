"""Choose layers by number, slice or name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex

from regard._arguments.arrays import shown
from regard._arguments.numbers import count, listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Layers = SupportsIndex | slice | str | Iterable[SupportsIndex | str]

_WANTED = "a number, a name, a slice or some numbers and names of layers"


class Selection(NamedTuple):
    """Some layers of a run, before the number of layers is known."""

    numbers: frozenset[int]
    names: tuple[str, ...]
    """Whole names, or the first parts of them, without a dot at the end."""

    @classmethod
    def of(cls, layers: Any) -> Selection | None:
        """Read the argument `layers` of a call that records; None selects all layers.

        Numbers count from the first layer, because the number of layers is not known.
        """
        if layers is None:
            return None
        if isinstance(layers, slice):
            raise TypeError(
                f"layers must be {_WANTED[: _WANTED.index(', a slice')]} or some of them, got "
                f"{layers}: pass range({layers.start or 0}, ...)"
            )
        numbers, names = set(), []
        for each in _listed(layers):
            if isinstance(each, str):
                names.append(_prefix(each))
            else:
                numbers.add(count("layers", each))
        return cls(frozenset(numbers), tuple(names))

    def has(self, number: int, name: str) -> bool:
        """Return whether a layer is selected."""
        return number in self.numbers or any(is_within(name, prefix) for prefix in self.names)

    def check(self, names: Sequence[str]) -> None:
        """Raise ValueError if a part of the selection selects none of the layers of a run."""
        for number in sorted(self.numbers):
            if number >= len(names):
                raise ValueError(
                    f"layers must be less than {len(names)}, the number of layers, got {number}"
                )
        for prefix in self.names:
            places_of(prefix, names)


def places_in(layers: Any, names: Sequence[str]) -> list[int]:
    """Return the numbers of the selected layers of a recording, in its order.

    Raises TypeError or ValueError, also if a part of the selection selects nothing.
    """
    places: set[int] = set()
    if isinstance(layers, slice):
        places.update(range(*layers.indices(len(names))))
        if not places:
            raise ValueError(f"layers must select something of {len(names)} layers, got {layers}")
        return sorted(places)
    for each in _listed(layers):
        if isinstance(each, str):
            places.update(places_of(_prefix(each), names))
        else:
            places.add(number_in(each, len(names)))
    return sorted(places)


def number_in(layer: SupportsIndex, length: int) -> int:
    """Return the number of a layer, counted from the end if it is negative."""
    number = count("layer", layer, minimum=-length, maximum=length - 1)
    return number % length


def places_of(prefix: str, names: Sequence[str]) -> list[int]:
    """Return the numbers of the layers with a name or prefix, or raise ValueError for none."""
    found = [number for number, name in enumerate(names) if is_within(name, prefix)]
    if not found:
        raise ValueError(f"layers must name layers, got {prefix!r}; there are {listed(names)}")
    return found


def is_within(name: str, prefix: str) -> bool:
    """Return whether a layer has a name, or is in the module of this name."""
    return name == prefix or name.startswith((f"{prefix}.", f"{prefix}:"))


def _prefix(name: str) -> str:
    prefix = name.removesuffix(".")
    if not prefix:
        raise ValueError(f"layers must name layers, got {name!r}")
    return prefix


def _listed(layers: Any) -> list[Any]:
    """Return the parts of a selection, or raise TypeError or ValueError."""
    is_array = getattr(layers, "ndim", 0) > 0  # which has __index__ too
    if isinstance(layers, str) or (hasattr(layers, "__index__") and not is_array):
        return [layers]
    try:
        parts = list(layers)
    except TypeError:
        raise TypeError(f"layers must be {_WANTED}, got {shown(layers)}") from None
    if not parts:
        raise ValueError("layers must select at least one layer, got none")
    return parts
