"""Attention over the stretches that a window's ring consists of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard import masks
from regard._attention import scaled_dot_product_attention
from regard._inputs import as_mask, flag, integers
from regard._merge import merge_attention_states
from regard._storage import compute_type, result_type, stored

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from regard.cache._content import Content
    from regard.cache._geometry import Geometry

    Array = NDArray[Any]
    Sides = tuple[int | None, int | None]


class Stretch(NamedTuple):
    """Slots of consecutive positions."""

    slots: slice
    start: Array  # (batch,) the position in the first slot
    filled: Array  # (batch,) how many of the slots count, from the first
    window: Sides


def attend(
    content: Content,
    query: Array,
    mask: ArrayLike | None,
    *,
    is_causal: bool,
    query_offset: ArrayLike | None,
    window: Sides | None,
    sinks: ArrayLike | None,
    return_weights: bool,
    return_lse: bool,
    out: Array | None,
    **options: Any,
) -> Any:
    """Attend to the sink tokens, the older and the newer part of the ring, and join them."""
    if flag("return_weights", return_weights):
        raise ValueError("return_weights must be False for a cache with a window")
    query = stored("query", query)
    slots, lengths = content.slots, content.lengths
    wants_lse = flag("return_lse", return_lse)
    offsets = _offsets(query_offset, lengths - query.shape[-2])
    queries = _Queries(offsets, query.shape[-2], flag("is_causal", is_causal))
    sides = _sides(window)
    stretches = _stretches(content, queries, sides)
    seen = _check_mask(mask, int(lengths.max()))
    inputs = query, slots.key, slots.value

    def one(stretch: Stretch, number: int, query: Array, **more: Any) -> Any:
        key, value = (array[:, :, stretch.slots] for array in inputs[1:])
        if query.ndim == 3:
            key, value = key[0], value[0]
        return scaled_dot_product_attention(
            query,
            key,
            value,
            _columns(seen, stretch),
            is_causal=is_causal,
            query_offset=_one_or_each(offsets - stretch.start),
            window=stretch.window,
            key_lengths=_one_or_each(stretch.filled),
            sinks=sinks if number == 0 else None,  # a logit counts once
            **options | more,
        )

    if len(stretches) == 1:
        return one(stretches[0], 0, query, return_lse=return_lse, out=out)
    dtypes = [array.dtype for array in inputs]
    wanted, inner = result_type(dtypes), compute_type(*dtypes)
    _check_out(out, (*query.shape[:-1], content.geometry.value_dim), wanted)
    # 16 bits are rounded to once, behind the join.
    wide = query.astype(inner) if inner.itemsize > wanted.itemsize else query
    parts = [one(stretch, i, wide, return_lse=True) for i, stretch in enumerate(stretches)]
    output, lse = merge_attention_states(*zip(*parts, strict=True))
    output = output.astype(wanted, copy=False)
    if out is not None:
        out[...] = output
        output = out
    return (output, lse) if wants_lse else output


class _Queries(NamedTuple):
    offsets: Array
    q_len: int
    is_causal: bool


def _offsets(query_offset: ArrayLike | None, default: Array) -> Array:
    if query_offset is None:
        return default
    numbers = integers("query_offset", query_offset, "an int or an array of int")
    try:
        return np.broadcast_to(numbers, default.shape).astype(np.int64)
    except ValueError:
        raise ValueError(
            f"query_offset must be an int or broadcast to the batch axes {default.shape}, got "
            f"shape {numbers.shape}"
        ) from None


def _sides(window: Sides | None) -> Sides:
    if window is None:
        return None, None
    masks.window(0, window=window)  # raises what is to be said of a wrong one
    left, right = (None if side is None else int(side) for side in window)
    return left, right


def _stretches(content: Content, queries: _Queries, sides: Sides) -> list[Stretch]:
    """Return what the queries may see, one stretch or more."""
    geometry, lengths = content.geometry, content.lengths
    assert geometry.window is not None
    sink_tokens, ring = geometry.sink_tokens, geometry.ring(content.room)
    reach = geometry.window - 1
    left, right = sides
    left = reach if left is None else min(left, reach)
    _check_kept(geometry, content.first, queries, left)

    # The newer part begins at the ring's first slot and is not empty; the older one is what the
    # turn before has left behind it.
    behind = np.maximum(lengths - sink_tokens, 0)
    turn = np.where(behind > 0, (behind - 1) % ring + 1, 0)
    start = sink_tokens + behind - turn
    last = queries.offsets + queries.q_len - 1
    if (start == sink_tokens).all() and (last - reach <= sink_tokens).all():
        # Nothing is hidden by the cache's window: all lies as in a cache without one.
        zero = np.zeros_like(lengths)
        return [Stretch(slice(0, int(lengths.max())), zero, lengths, sides)]
    newer = slice(sink_tokens, sink_tokens + int(turn.max()))
    stretches = [Stretch(newer, start, turn, (left, right))]
    has_older = (start > sink_tokens) & (turn < ring) & (queries.offsets - left < start)
    if has_older.any():
        # Slots that the newer part has taken would stand before all that the queries may see.
        older = np.where(has_older, start - ring, sink_tokens)
        whole = slice(sink_tokens, sink_tokens + ring)
        filled = np.where(has_older, ring, 0)
        stretches.insert(0, Stretch(whole, older, filled, (left, right)))
    if sink_tokens:
        zero, filled = np.zeros_like(lengths), np.minimum(lengths, sink_tokens)
        stretches.insert(0, Stretch(slice(0, sink_tokens), zero, filled, sides))
    return stretches


def _check_kept(geometry: Geometry, first: Array, queries: _Queries, left: int) -> None:
    """Refuse queries that should see what has been evicted."""
    sink_tokens, offsets = geometry.sink_tokens, queries.offsets
    lowest = np.maximum(offsets, sink_tokens) if queries.is_causal else offsets
    exist = lowest < offsets + queries.q_len
    lost = exist & (np.maximum(lowest - left, sink_tokens) < first)
    if lost.any():
        entry = int(np.argmax(lost))
        raise ValueError(
            f"query at position {lowest[entry]} of batch entry {entry} sees keys from position "
            f"{max(int(lowest[entry]) - left, sink_tokens)} on, and those before {first[entry]} "
            "are evicted: attend before more is appended"
        )


def _check_mask(mask: ArrayLike | None, length: int) -> Array | None:
    array = as_mask(mask)
    if array is not None and array.ndim and array.shape[-1] not in (1, length):
        raise ValueError(
            f"mask must have a column for each of the {length} positions, those that are evicted "
            f"among them, got shape {array.shape}"
        )
    return array


def _columns(mask: Array | None, stretch: Stretch) -> Array | None:
    """Return the part of a mask that speaks of a stretch."""
    if mask is None or mask.ndim == 0 or mask.shape[-1] == 1:
        return mask
    count = stretch.slots.stop - stretch.slots.start
    start = int(stretch.start[0])
    if (stretch.start == start).all():
        return mask[..., start : start + count]
    if mask.ndim > 4:
        return mask[..., :count]  # the call says what is wrong with it
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    columns = stretch.start[:, None, None, None] + np.arange(count)
    # Beyond the end are slots that do not count.
    return np.take_along_axis(mask, np.minimum(columns, mask.shape[-1] - 1), axis=-1)


def _one_or_each(numbers: Array) -> int | Array:
    one = int(numbers[0])
    return one if (numbers == one).all() else numbers


def _check_out(out: Array | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if out is None:
        return
    if not isinstance(out, np.ndarray) or out.dtype != dtype:
        got = out.dtype if isinstance(out, np.ndarray) else type(out).__name__
        raise TypeError(f"out must be an array of {dtype}, got {got}")
    if out.shape != shape:
        raise ValueError(f"out must have shape {shape}, got {out.shape}")
    if not out.flags.writeable:
        raise ValueError("out must be writeable, got a read-only array")
