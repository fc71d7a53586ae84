"""Checked calls and their parts: batch entries, heads, chunks of queries and keys."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard import _core
from regard._arguments.arrays import as_stored_arrays, part_at
from regard._arguments.foreign import readable
from regard._arguments.hints import raise_with_hint
from regard._arguments.masks import Masks
from regard._arguments.option_table import OPTIONS, Subject
from regard._arguments.positions import Positions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import ArrayLike

    from regard._arguments.arrays import Array, Place

    Entry = tuple[int, ...]
    Span = tuple[int, int]


_WHOLE = slice(None)
# Words of dropout depend on positions modulo 2**32 and on positions // 4 modulo 2**32.
_POSITION_PERIOD = 2**34
_POSITIONS = frozenset(
    option.name for option in OPTIONS.values() if option.subject is Subject.VISIBILITY
)


class Sizes(NamedTuple):
    """The sizes of a call."""

    batch: tuple[int, ...]
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    value_dim: int

    @property
    def group(self) -> int:
        """The number of query heads per key head; 1 if there are no heads."""
        return max(self.heads // max(self.kv_heads, 1), 1)


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """The checked arguments of an attention call.

    Parts of a call are calls whose arrays are views. They produce the same bits as the whole call,
    except for sinks if the keys are divided.
    """

    query: Array
    key: Array
    value: Array
    masks: Masks
    options: dict[str, Any]
    sizes: Sizes
    has_heads: bool
    """Whether results have a heads axis."""
    result_type: str
    """The name of the output's dtype."""

    @property
    def arithmetic(self) -> np.dtype[Any]:
        """The dtype of the scores' arithmetic and of lse."""
        return np.dtype(np.float64 if self.result_type == "float64" else np.float32)

    @property
    def rows(self) -> tuple[int, ...]:
        """The shape of lse."""
        heads = (self.sizes.heads,) if self.has_heads else ()
        return (*self.sizes.batch, *heads, self.sizes.q_len)

    @property
    def positions(self) -> Positions:
        """The positions that the options define."""
        return Positions.of(self.options, self.sizes.q_len, self.sizes.kv_len)

    def entries(self) -> Iterator[tuple[Entry, CheckedCall]]:
        """Iterate over the entries of the batch."""
        for place in np.ndindex(self.sizes.batch):
            yield place, self.entry(place)

    def entry(self, place: Entry) -> CheckedCall:
        """Return the call of one batch entry, which has no batch axes."""
        return self.part(entries=place)

    def head(self, number: int) -> CheckedCall:
        """Return the call of one query head, which has no heads axis."""
        return self.part(heads=number)

    def chunk(self, queries: slice, keys: slice) -> CheckedCall:
        """Return the call of some consecutive queries and keys."""
        return self.part(queries=queries, keys=keys)

    def part(
        self,
        entries: Place | None = None,
        heads: int | slice = _WHOLE,
        queries: slice = _WHOLE,
        keys: slice = _WHOLE,
    ) -> CheckedCall:
        """Return the call of a part: an index or a slice for each batch axis and for heads.

        Axes with an index are removed; heads have an index only if all batch axes do. Slices of
        heads contain whole groups, or are part of one group. With dropout, selected entries are
        consecutive.
        """
        sizes = self.sizes
        places: Place = (_WHOLE,) * len(sizes.batch) if entries is None else entries
        batch, entry = _batch_at(places, sizes.batch)
        assert isinstance(heads, slice) or not batch, "an array without heads has no batch axes"
        head, head_end = _bounds(heads, sizes.heads)
        first, end = head // sizes.group, -(-head_end // sizes.group)
        of_keys = slice(first, end) if isinstance(heads, slice) else first
        rows, columns = _bounds(queries, sizes.q_len), _bounds(keys, sizes.kv_len)
        options = self._options_at(places, slice(head, head_end))
        if options.get("dropout_p") or options.get("score_function"):
            origin = options.get("dropout_origin", (0, 0, 0))
            options["dropout_origin"] = moved_origin(origin, (entry, head, columns[0]))
        q_len, kv_len = rows[1] - rows[0], columns[1] - columns[0]
        if (q_len, kv_len) != (sizes.q_len, sizes.kv_len):
            positions = Positions.of(options, sizes.q_len, sizes.kv_len).chunk(rows, columns)
            others = {name: each for name, each in options.items() if name not in _POSITIONS}
            options = others | positions.options()
        return CheckedCall(
            query=part_at(self.query[..., queries, :], (*places, heads, _WHOLE, _WHOLE)),
            key=part_at(self.key[..., keys, :], (*places, of_keys, _WHOLE, _WHOLE)),
            value=part_at(self.value[..., keys, :], (*places, of_keys, _WHOLE, _WHOLE)),
            masks=self.masks.at((*places, heads, queries, keys)),
            options=options,
            sizes=Sizes(batch, head_end - head, end - first, q_len, kv_len, *sizes[5:]),
            has_heads=self.has_heads and isinstance(heads, slice),
            result_type=self.result_type,
        )

    def _options_at(self, entries: Place, heads: slice) -> dict[str, Any]:
        """Return the options of some batch entries and heads."""
        own = dict(self.options)
        for name, value in self.options.items():
            axes = OPTIONS[name].axes
            if not axes or value is None or isinstance(value, str):
                continue
            places = {"batch": entries, "heads": (heads,), "columns": (_WHOLE,)}
            place = tuple(at for axis in axes for at in places[axis])
            own[name] = np.asarray(part_at(np.asarray(value), place))
        return own

    def with_heads(self) -> CheckedCall:
        """Return the call with a heads axis, added if it has none."""
        if self.has_heads:
            return self
        query, key, value = self.query[None], self.key[None], self.value[None]
        return replace(self, query=query, key=key, value=value, has_heads=True)

    def arguments(self) -> tuple[Array, Array, Array, Any]:
        """Return query, key, value and mask for the attention calls."""
        return self.query, self.key, self.value, self.masks.argument


def check_call(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike | None,
    mask: Any,
    options: Mapping[str, Any],
) -> CheckedCall:
    """Check the arguments of an attention call, or raise the same exception as the call.

    `value` is None for a call that needs no values, which gets values without columns. Options are
    NumPy arrays or numbers.
    """
    query, key = as_stored_arrays(query=query, key=key)
    (value,) = (_without_columns(key),) if value is None else as_stored_arrays(value=value)
    masks, options = Masks.of(mask), dict(options)
    try:
        found = _core.check_attention(query, key, value, masks.argument, options)
    except ValueError as error:
        raise_with_hint(error, query, key)
    sizes, (result_type, has_heads) = Sizes(*found[:7]), found[7:]
    return CheckedCall(query, key, value, masks, options, sizes, has_heads, result_type)


def check_ragged_call(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike | None,
    query_starts: ArrayLike,
    key_starts: ArrayLike,
    mask: Any,
    options: Mapping[str, Any],
) -> Sizes:
    """Check the arguments of a ragged call, or raise the same exception as the call.

    Returns the sizes: sequences count as the batch, and lengths are the largest of any sequence.
    """
    query, key = as_stored_arrays(query=query, key=key)
    (value,) = (_without_columns(key),) if value is None else as_stored_arrays(value=value)
    starts = readable("query_starts", query_starts), readable("key_starts", key_starts)
    mask = Masks.of(mask).argument
    try:
        found = _core.check_attention_ragged(query, key, value, *starts, mask, dict(options))
    except ValueError as error:
        raise_with_hint(error, query, key)
    return Sizes(*found[:7])


def _without_columns(key: Array) -> Array:
    """Return values for a call that needs none; a key without axes will be refused."""
    return key[..., :0] if key.ndim else key


def _batch_at(places: Place, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Return the sizes of the axes with slices, and the number of the first entry."""
    batch, entry = [], 0
    for at, size in zip(places, sizes, strict=True):
        first, end = _bounds(at, size)
        entry = entry * size + first
        if isinstance(at, slice):
            batch.append(end - first)
    return tuple(batch), entry


def _bounds(at: int | slice, size: int) -> Span:
    """Return the begin and the end of an index or a slice."""
    if not isinstance(at, slice):
        return at, at + 1
    first, end, _ = at.indices(size)
    return first, max(first, end)


def moved_origin(origin: tuple[int, int, int], part: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return `dropout_origin` for a part of a call that begins at an entry, a head and a key."""
    entry, head, position = (
        (int(number) + step) % _POSITION_PERIOD for number, step in zip(origin, part, strict=True)
    )
    return entry, head, position
