"""The tiles of a served page, computed when they are viewed."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from regard._explore._heads import with_lse
from regard._explore._tiles import computed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from regard._attention.check import CheckedCall
    from regard._explore._layers import Layer
    from regard._explore._plan import TileLevel
    from regard._explore._tiles import Tile

# The number of layers whose lse is kept. Of given weights, one layer's logarithms are kept.
_MOST_LAYERS = 64


class TileSource:
    """All tiles of all heads, none of which is stored.

    It has references to the arrays of the call, and may be used by several threads: one of them
    computes at a time, with all threads of regard.
    """

    def __init__(self, layers: Sequence[Layer], levels: Sequence[TileLevel]) -> None:
        self._layers = list(layers)
        self.levels = list(levels)
        self._calls: OrderedDict[int, tuple[CheckedCall, NDArray[Any]]] = OrderedDict()
        self._lock = threading.Lock()

    def tiles(
        self, layer: int, head: int, level: int, row: int, columns: Sequence[int]
    ) -> list[Tile]:
        """Return tiles of one row of a level.

        Raises
        ------
        ValueError
            If there is no such layer, head, level, row or column.
        """
        for name, number, size in (
            ("layer", layer, len(self._layers)),
            ("level", level, len(self.levels)),
        ):
            _check(name, number, size)
        own = self.levels[level]
        _check("head", head, self._layers[layer].heads)
        _check("row", row, own.rows)
        for column in columns:
            _check("column", column, own.columns)
        with self._lock:
            call, lse = self._call_of(layer)
            places = [(row, column) for column in columns]
            return list(computed(call.head(head), lse[head], own, places))

    def _call_of(self, layer: int) -> tuple[CheckedCall, NDArray[Any]]:
        if layer not in self._calls:
            most = _MOST_LAYERS if self._layers[layer].has_scores else 1
            while len(self._calls) >= most:
                self._calls.popitem(last=False)
            self._calls[layer] = with_lse(self._layers[layer])
        self._calls.move_to_end(layer)
        return self._calls[layer]


def _check(name: str, number: int, size: int) -> None:
    if not 0 <= number < size:
        raise ValueError(f"{name} must be from 0 to {size - 1}, got {number}")
