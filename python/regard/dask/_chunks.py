"""The chunks of a call's arrays, and how they correspond."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import dask.array as da
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    Chunks = tuple[int, ...]
    Index = tuple[int, ...]
    Span = tuple[int, int]


def check_dask_array(name: str, array: Any) -> None:
    """Raise TypeError or ValueError unless `array` is a Dask array whose chunks can be planned."""
    if not isinstance(array, da.Array):
        raise TypeError(
            f"{name} must be a Dask array, got {type(array).__name__}: pass "
            f"dask.array.from_array({name}, chunks=...), or call the function of the same name in "
            "regard if all arrays fit in memory"
        )
    if isinstance(array._meta, np.ma.MaskedArray) or not isinstance(array._meta, np.ndarray):
        raise TypeError(
            f"{name} must have chunks that are plain NumPy arrays, got chunks of "
            f"{type(array._meta).__name__}"
        )
    if any(math.isnan(size) for axis in array.chunks for size in axis):
        raise ValueError(
            f"{name} must have known chunk sizes, got chunks {array.chunks}: call "
            f"{name}.compute_chunk_sizes() first"
        )


class OutputChunk(NamedTuple):
    """One output chunk, with its position in the grid and in the whole arrays."""

    place: Index
    """The chunk number along each batch axis, heads and queries."""
    batch: tuple[Span, ...]
    heads: Span
    queries: Span

    @property
    def is_empty(self) -> bool:
        """Whether the block has no elements, regardless of value_dim."""
        return any(start == stop for start, stop in (*self.batch, self.heads, self.queries))


class Grid(NamedTuple):
    """The chunks of a call along each of its axes, with broadcast batch axes."""

    batch: tuple[Chunks, ...]
    heads: Chunks
    key_heads: tuple[int, ...]
    """For each query head chunk, the number of the key head chunk that it reads."""
    queries: Chunks
    keys: Chunks

    def blocks(self) -> Iterator[OutputChunk]:
        """Iterate over the output chunks in grid order."""
        axes = [list(enumerate(spans(axis))) for axis in (*self.batch, self.heads, self.queries)]
        for places in itertools.product(*axes):
            index, (*batch, heads, queries) = zip(*places, strict=True)
            yield OutputChunk(index, tuple(batch), heads, queries)

    def of_query(self, block: OutputChunk) -> Index:
        """Return the grid place of a block's queries, for `chunk_index`."""
        return (*block.place, 0)

    def of_key(self, block: OutputChunk, number: int) -> Index:
        """Return the grid place of a numbered key chunk for a block, for `chunk_index`."""
        *batch, heads, _ = block.place
        return (*batch, self.key_heads[heads], number, 0)

    def of_mask(self, block: OutputChunk, number: int) -> Index:
        """Return the grid place of a block's mask for a key chunk, for `chunk_index`."""
        return (*block.place, number)


def spans(chunks: Chunks) -> list[Span]:
    """Return the start and stop of each chunk."""
    return list(itertools.pairwise(itertools.accumulate(chunks, initial=0)))


def chunk_index(numblocks: Index, place: Index) -> Index:
    """Return the index of the chunk of an array that belongs to a place in the grid.

    Axes are aligned at the end. Along a broadcast or missing axis, one chunk covers all places.
    """
    own = place[len(place) - len(numblocks) :]
    return tuple(0 if count == 1 else number for number, count in zip(own, numblocks, strict=True))


def grid_of(query: Any, key: Any, value: Any, batch_axes: int) -> Grid:
    """Return the grid of a call whose shapes agree, or raise ValueError if its chunks do not."""
    for name, array, dim in (
        ("query", query, "head_dim"),
        ("key", key, "head_dim"),
        ("value", value, "value_dim"),
    ):
        _check_single(name, array, dim)
    if key.chunks[-2] != value.chunks[-2]:
        raise ValueError(
            f"value must have the chunks of key along kv_len, {key.chunks[-2]}, got "
            f"{value.chunks[-2]}: pass value.rechunk({{-2: key.chunks[-2]}}), or the reverse"
        )
    named = {"query": query, "key": key, "value": value}
    batch = tuple(_batch_chunks(named, axis) for axis in range(-3 - batch_axes, -3))
    heads, kv_heads, value_heads = (_along(x, -3) for x in named.values())
    if kv_heads != value_heads:
        raise ValueError(
            f"value must have the chunks of key along kv_heads, {kv_heads}, got {value_heads}: "
            "pass value.rechunk({-3: key.chunks[-3]}), or the reverse"
        )
    return Grid(batch, heads, _key_heads(heads, kv_heads), query.chunks[-2], key.chunks[-2])


def check_chunks(name: str, array: Any, wanted: tuple[Chunks, ...], may_broadcast: bool) -> None:
    """Raise ValueError unless an array has the chunks `wanted`, with axes aligned at the end."""
    shape = tuple(map(sum, wanted))
    fits = array.ndim <= len(shape) if may_broadcast else array.ndim == len(shape)
    own_axes = zip(array.shape[::-1], shape[::-1], strict=False)
    if not fits or any(own != full and not (may_broadcast and own == 1) for own, full in own_axes):
        verb = "broadcast to" if may_broadcast else "have"
        raise ValueError(f"{name} must {verb} shape {shape}, got shape {array.shape}")
    for axis in range(-array.ndim, 0):
        own, full = array.chunks[axis], wanted[axis]
        if own != full and not (may_broadcast and own == (1,)):
            raise ValueError(
                f"{name} must have the chunks {full} of the other arrays along axis {axis}, got "
                f"{own}: pass {name}.rechunk({{{axis}: {full}}})"
            )


def _length(span: Span) -> int:
    return span[1] - span[0]


def _along(array: Any, axis: int) -> Chunks:
    """Return the chunks along an axis, or (1,) if the array lacks it."""
    chunks: Chunks = array.chunks[axis] if array.ndim >= -axis else (1,)
    return chunks


def _check_single(name: str, array: Any, dim: str) -> None:
    if array.numblocks[-1] != 1:
        raise ValueError(
            f"{name} must have one chunk along {dim}, got chunks {array.chunks[-1]}: every score "
            f"needs whole rows; pass {name}.rechunk({{-1: -1}}), which moves all of it once"
        )


def _batch_chunks(arrays: dict[str, Any], axis: int) -> Chunks:
    chunks = {name: _along(array, axis) for name, array in arrays.items()}
    cut = {name: own for name, own in chunks.items() if own != (1,)}
    if len(set(cut.values())) > 1:
        (first, wanted), *others = cut.items()
        name, own = next((name, own) for name, own in others if own != wanted)
        raise ValueError(
            f"{name} must have the chunks of {first} along axis {axis}, {wanted}, got {own}: pass "
            f"{name}.rechunk({{{axis}: {wanted}}})"
        )
    return next(iter(cut.values()), (1,))


def _key_heads(heads: Chunks, kv_heads: Chunks) -> tuple[int, ...]:
    """Return the number of the key head chunk that each query head chunk reads in full."""
    if not sum(heads):
        return (0,) * len(heads)
    group = sum(heads) // sum(kv_heads)
    cuts = {0, sum(kv_heads)}
    for start, stop in filter(_length, spans(heads)):
        is_whole = start % group == stop % group == 0
        if not is_whole and start // group != (stop - 1) // group:
            raise ValueError(
                f"query must have chunks along heads that contain whole groups of {group} heads, "
                f"which share a key head, or are within one group, got chunks {heads}"
            )
        cuts |= {start // group, -(-stop // group)}
    wanted = tuple(stop - start for start, stop in itertools.pairwise(sorted(cuts)))
    if tuple(filter(None, kv_heads)) != wanted:
        raise ValueError(
            f"key must have chunks {wanted} along kv_heads, since query has chunks {heads} along "
            f"heads, got {kv_heads}: pass key.rechunk({{-3: {wanted}}}), and value likewise"
        )
    starts = {start: number for number, (start, stop) in enumerate(spans(kv_heads)) if stop > start}
    return tuple(starts[start // group] if stop > start else 0 for start, stop in spans(heads))
