"""Attention over the stretches that a window's ring consists of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard import masks
from regard._arguments import flag, integers
from regard._arrays import as_mask, compute_type, result_type, stored
from regard._cache import call
from regard._cache.stretches import Entry, stretches
from regard._merge import merge_attention_states

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from regard._cache.content import Content
    from regard._cache.stretches import Sides, Stretch

    Array = NDArray[Any]


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
    """Attend to the parts of the ring, and join what comes of it."""
    if flag("return_weights", return_weights):
        raise ValueError("return_weights must be False for a cache with a window")
    query = stored("query", query)
    wants_lse = flag("return_lse", return_lse)
    found = parts(content, query, mask, query_offset, window, is_causal=is_causal)

    def one(number: int, query: Array, **more: Any) -> Any:
        logits = sinks if number == 0 else None
        return call.attention(
            query, found[number], options | more | {"is_causal": is_causal, "sinks": logits}
        )

    if len(found) == 1:
        return one(0, query, return_lse=return_lse, out=out)
    dtypes = [query.dtype] + ([] if content.geometry.is_quantised else [content.geometry.dtype])
    wanted, inner = result_type(dtypes), compute_type(*dtypes)
    _check_out(out, (*query.shape[:-1], content.geometry.value_dim), wanted)
    # 16 bits are rounded to once, behind the join.
    wide = query.astype(inner) if inner.itemsize > wanted.itemsize else query
    states = [one(number, wide, return_lse=True) for number in range(len(found))]
    output, lse = merge_attention_states(*zip(*states, strict=True))
    output = output.astype(wanted, copy=False)
    if out is not None:
        out[...] = output
        output = out
    return (output, lse) if wants_lse else output


def parts(
    content: Content,
    query: Array,
    mask: ArrayLike | None,
    query_offset: ArrayLike | None,
    window: Sides | None,
    *,
    is_causal: bool,
) -> list[call.Part]:
    """Return the sink tokens, the older and the newer part of the ring, those that there are.

    A sink, which is a logit, counts in the first alone.
    """
    causal = flag("is_causal", is_causal)
    entries = _entries(content, query_offset, query.shape[-2])
    found = stretches(
        content.geometry, content.room, entries, query.shape[-2], _sides(window), causal=causal
    )
    seen = _check_mask(mask, content.longest)
    return [
        call.Part(
            content.slots.rows.part(np.s_[:, :, stretch.slots]),
            stretch.slots.stop - stretch.slots.start,
            _columns(seen, stretch),
            _one_or_each(stretch.offsets),
            stretch.window,
            _one_or_each(stretch.filled),
        )
        for stretch in found
    ]


def _entries(content: Content, query_offset: ArrayLike | None, q_len: int) -> list[Entry]:
    """Return every batch entry, or one where all are alike."""
    lengths = content.lengths.tolist()
    if query_offset is None:
        offsets = [length - q_len for length in lengths]
    else:
        numbers = integers("query_offset", query_offset, "an int or an array of int")
        try:
            offsets = np.broadcast_to(numbers, content.lengths.shape).tolist()
        except ValueError:
            raise ValueError(
                "query_offset must be an int or broadcast to the batch axes "
                f"{content.lengths.shape}, got shape {numbers.shape}"
            ) from None
    entries = [Entry(*each) for each in zip(lengths, content.first.tolist(), offsets, strict=True)]
    return entries[:1] if all(entry == entries[0] for entry in entries) else entries


def _sides(window: Sides | None) -> Sides:
    if window is None:
        return None, None
    masks.window(0, window=window)  # raises what is to be said of a wrong one
    left, right = (None if side is None else int(side) for side in window)
    return left, right


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
    start = stretch.starts[0]
    if all(each == start for each in stretch.starts):
        return mask[..., start : start + count]
    if mask.ndim > 4:
        return mask[..., :count]  # the call says what is wrong with it
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    columns = np.array(stretch.starts)[:, None, None, None] + np.arange(count)
    # Beyond the end are slots that do not count.
    return np.take_along_axis(mask, np.minimum(columns, mask.shape[-1] - 1), axis=-1)


def _one_or_each(numbers: list[int]) -> int | list[int]:
    return numbers[0] if len(numbers) == 1 else numbers


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
