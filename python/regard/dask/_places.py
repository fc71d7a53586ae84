"""What the options of a call mean for one pair of chunks, and which pairs see each other."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np

from regard._random.philox import POSITION_PERIOD

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from regard.dask._chunks import Block, Span

    Array = NDArray[Any]

_SMALL = ("query_offset", "key_lengths", "left_padding", "alibi_slopes", "sinks")
# Far beyond any position, and far from where int64 overflows.
_FAR = 2**61


def check_small_options(options: Mapping[str, Any]) -> None:
    """Raise TypeError where an option that the graph is made from is a Dask array."""
    for name in _SMALL:
        if isinstance(options.get(name), da.Array):
            raise TypeError(
                f"{name} must be a number or a NumPy array, got a Dask array: the graph is made "
                f"from it; pass {name}.compute()"
            )


class Places:
    """The options of a call whose arguments have been checked.

    Parameters
    ----------
    options : mapping
        Those of the call on whole arrays.
    batch : tuple of int
        The shape of the batch.
    q_len, kv_len : int
        The lengths of the whole arrays.
    arithmetic : numpy.dtype
        In which the scores are computed.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        batch: tuple[int, ...],
        q_len: int,
        kv_len: int,
        arithmetic: np.dtype[Any],
    ) -> None:
        self._batch, self._kv_len = batch, kv_len
        self._same = {
            name: options[name]
            for name in ("is_causal", "scale", "softcap", "threads")
            if name in options
        }
        self._window = options.get("window")
        self._dropout = {}
        if options.get("dropout_p"):
            self._dropout = {name: options[name] for name in ("dropout_p", "dropout_seed")}
        self._origin = options.get("dropout_origin", (0, 0, 0))
        lengths, padding = options.get("key_lengths"), options.get("left_padding")
        offset = options.get("query_offset", 0)
        if isinstance(offset, str):
            offset = np.asarray(kv_len if lengths is None else lengths, np.int64) - q_len
        # A query that stands farther away than this sees what one at this distance sees.
        self._offset = np.clip(np.asarray(offset, np.int64), -_FAR, _FAR)
        self._lengths = None if lengths is None else np.asarray(lengths, np.int64)
        self._padding = None if padding is None else np.asarray(padding, np.int64)
        slopes, sinks = options.get("alibi_slopes"), options.get("sinks")
        # Of the arithmetic's precision, as in a single call; their gradients are summed in float64.
        self.slopes = None if slopes is None else np.asarray(slopes).astype(arithmetic)
        self.sinks = None if sinks is None else np.asarray(sinks).astype(arithmetic)

    @property
    def token(self) -> tuple[Any, ...]:
        """What names the tasks that depend on these options."""
        limits = self._window, self._offset, self._lengths, self._padding
        return self._same, *limits, self.slopes, self.sinks, self._dropout, self._origin

    def options_of(self, block: Block, keys: Span) -> dict[str, Any]:
        """Return the options of a call on a chunk of queries and one of keys.

        Sinks are not among them: they are not part of any keys.
        """
        start, stop = keys
        options = dict(self._same)
        offset = _cut(self._offset, block.batch) + (block.queries[0] - start)
        options["query_offset"] = _plain(offset)
        if self._window is not None:
            options["window"] = self._window
        for name, limit in (("key_lengths", self._lengths), ("left_padding", self._padding)):
            if limit is not None:
                own = np.clip(_cut(limit, block.batch) - start, 0, stop - start)
                options[name] = _plain(own)
        if self.slopes is not None:
            options["alibi_slopes"] = _cut(self.slopes, (*block.batch, block.heads))
        if self._dropout:
            entry = 0
            for (first, _), size in zip(block.batch, self._batch, strict=True):
                entry = entry * size + first
            part = entry, block.heads[0], start
            options |= self._dropout
            sums = map(operator.add, map(int, self._origin), part)
            options["dropout_origin"] = tuple(number % POSITION_PERIOD for number in sums)
        return options

    def sinks_of(self, block: Block) -> Array | None:
        """Return the sinks of a chunk of queries."""
        return None if self.sinks is None else _cut(self.sinks, (block.heads,))

    def is_visible(self, block: Block, keys: Span) -> bool:
        """Tell whether any query of a block may see any of some keys, as far as positions say."""
        if block.is_empty or keys[0] == keys[1]:
            return False
        offset = _cut(self._offset, block.batch)
        first, last = offset + block.queries[0], offset + block.queries[1] - 1
        left, right = self._window or (None, None)
        if self._same.get("is_causal"):
            right = 0 if right is None else min(right, 0)
        lowest: Any = keys[0]
        highest: Any = keys[1] - 1
        if left is not None:
            lowest = np.maximum(lowest, first - min(int(left), _FAR))
        if right is not None:
            highest = np.minimum(highest, last + min(int(right), _FAR))
        if self._padding is not None:
            lowest = np.maximum(lowest, _cut(self._padding, block.batch))
        if self._lengths is not None:
            highest = np.minimum(highest, _cut(self._lengths, block.batch) - 1)
        return bool(np.any(lowest <= highest))


def _cut(array: Array, where: tuple[Span, ...]) -> Array:
    """Return the part of an array at some places. It broadcasts to these axes."""
    own = where[len(where) - array.ndim :]
    return array[
        tuple(
            slice(None) if size == 1 else slice(*span)
            for span, size in zip(own, array.shape, strict=True)
        )
    ]


def _plain(numbers: Array) -> Any:
    """Return one number as an int, and an array as it is."""
    return int(numbers) if numbers.ndim == 0 else numbers
