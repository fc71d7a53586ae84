"""The arguments of the forward and backward calls, checked and split into chunks."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import dask.array as da
import numpy as np
from dask.base import tokenize

from regard._arguments.arrays import as_array, part_at, result_type, stored
from regard._arguments.keywords import check_options
from regard._arguments.masks import Masks, SeenKeys, as_mask, is_sparse, parts_of
from regard._arguments.option_table import OPTIONS
from regard._arguments.options import DaskOptions, names_of
from regard._attention.check import check_call
from regard.dask._graph import refer_all

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from regard._attention.check import CheckedCall

    Chunks = tuple[int, ...]
    Index = tuple[int, ...]
    Span = tuple[int, int]


class Block(NamedTuple):
    """An output chunk: its number along each axis, and its part of the whole arrays."""

    place: Index
    """The chunk number along each batch axis, heads and queries."""
    batch: tuple[Span, ...]
    heads: Span
    queries: Span

    @property
    def is_empty(self) -> bool:
        """Whether the block has no elements, regardless of value_dim."""
        return any(start == stop for start, stop in (*self.batch, self.heads, self.queries))


class DaskCall(NamedTuple):
    """A call whose arguments are consistent."""

    arrays: dict[str, Any]
    """query, key, value, the bool mask (shown) and the float mask (bias): Dask arrays or None.
    A sparse mask is a mask of `whole`."""
    whole: CheckedCall
    """The call on whole arrays, with stand-ins that use no memory."""
    batch: tuple[Chunks, ...]
    """The chunks along each batch axis, which broadcast."""
    heads: Chunks
    key_heads: Index
    """For each chunk of query heads, the number of the chunk of key heads that it reads."""
    queries: Chunks
    keys: Chunks

    @property
    def arithmetic(self) -> np.dtype[Any]:
        """The dtype of partial results and of lse."""
        return self.whole.arithmetic

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the output."""
        whole = self.whole
        return result_type(array.dtype for array in (whole.query, whole.key, whole.value))

    @property
    def inputs(self) -> list[Any]:
        """The Dask arrays of the call."""
        return [array for array in self.arrays.values() if array is not None]

    @property
    def output_chunks(self) -> tuple[Chunks, ...]:
        """The chunks of the output."""
        heads = (self.heads,) if self.whole.has_heads else ()
        return (*self.batch, *heads, self.queries, (self.whole.sizes.value_dim,))

    def token(self, *more: Any) -> str:
        """Return a token for the names of the call's tasks, equal for equal calls."""
        token: str = tokenize(*self.inputs, self.whole.masks.shown, self.whole.options, *more)
        return token

    def blocks(self) -> Iterator[Block]:
        """Iterate over the output chunks in the order of their places."""
        axes = [list(enumerate(spans(axis))) for axis in (*self.batch, self.heads, self.queries)]
        for places in itertools.product(*axes):
            place, (*batch, heads, queries) = zip(*places, strict=True)
            yield Block(place, tuple(batch), heads, queries)

    def output_index(self, block: Block) -> Index:
        """Return the index of a block's output chunk."""
        return (*block.place[len(block.place) + 1 - len(self.output_chunks) :], 0)

    def key_chunks(self, block: Block) -> Iterator[tuple[int, Span]]:
        """Iterate over the key chunks that a block may see, with their numbers."""
        if block.is_empty:
            return
        batch = tuple(slice(*span) for span in block.batch)
        positions = self.whole.positions.entry(batch)
        rows = (*batch, slice(*block.heads), slice(*block.queries), slice(None))
        seen = SeenKeys.of(self.whole.masks.at(rows))
        for number, keys in enumerate(spans(self.keys)):
            is_shown = seen is None or seen.any(*keys)
            if is_shown and positions.chunk(block.queries, keys).visible()[1]:
                yield number, keys

    def arguments_of(self, block: Block, number: int, keys: Span) -> tuple[Any, dict[str, Any]]:
        """Return the arrays and the options of a call on a query chunk and a numbered key chunk.

        Sinks are excluded, since they do not belong to any key chunk.
        """
        batch = tuple(slice(*span) for span in block.batch)
        part = self.whole.part(batch, slice(*block.heads), slice(*block.queries), slice(*keys))
        arrays = {
            name: None if array is None else (array.name, *self.chunk_of(name, block, number))
            for name, array in self.arrays.items()
        }
        if self.arrays["shown"] is None:
            arrays["shown"] = part.masks.shown
        options = {name: each for name, each in part.options.items() if name != "sinks"}
        return refer_all(list(arrays.values())), options

    def sinks_of(self, block: Block) -> Any:
        """Return the sinks of a query chunk, or None."""
        sinks = self.whole.options.get("sinks")
        return None if sinks is None else part_at(sinks, (slice(*block.heads),))

    def chunk_of(self, name: str, block: Block, number: int) -> Index:
        """Return the index of the chunk of an array that belongs to a block and a key chunk."""
        *batch, heads, _ = block.place
        place = (*block.place, number)
        if name == "query":
            place = (*block.place, 0)
        elif name in ("key", "value"):
            place = (*batch, self.key_heads[heads], number, 0)
        return chunk_index(self.arrays[name].chunks, place)


def call_of(name: str, arrays: tuple[Any, ...], mask: Any, options: Mapping[str, Any]) -> DaskCall:
    """Check the arguments common to both calls, and split them into chunks."""
    named = dict(zip(("query", "key", "value"), arrays, strict=True))
    for argument, array in named.items():
        check_dask_array(argument, array)
    for argument, value in options.items():
        if isinstance(value, da.Array):
            raise TypeError(
                f"{argument} must be a number or a NumPy array, got a Dask array: the graph is "
                f"made from it; pass {argument}.compute()"
            )
    check_options(name, options, names_of(DaskOptions))
    zeros = {
        argument: np.broadcast_to(stored(argument, np.zeros(1, array.dtype)), array.shape)
        for argument, array in named.items()
    }
    sparse = next(filter(is_sparse, parts_of(mask)), None)
    whole = check_call(**zeros, mask=sparse, options=options)
    # Differentiable options are rounded to the precision of a single call.
    narrow = {
        option: np.asarray(value).astype(whole.arithmetic)
        for option, value in whole.options.items()
        if OPTIONS[option].is_differentiable and value is not None
    }
    whole = replace(whole, options=whole.options | narrow)
    batch = _batch_chunks(named, len(whole.sizes.batch))
    if options.get("dropout_p"):
        _check_entries(batch)
    heads, key_heads = _heads(named)
    call = DaskCall(
        named, whole, batch, heads, key_heads, named["query"].chunks[-2], named["key"].chunks[-2]
    )
    wanted = (*call.output_chunks[:-1], call.keys)
    masks = Masks.of_parts(
        [part if is_sparse(part) else _dask_mask(part, wanted) for part in parts_of(mask)]
    )
    shown = None if is_sparse(masks.shown) else masks.shown
    return call._replace(arrays={**named, "shown": shown, "bias": masks.bias})


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


def check_chunks(
    name: str, array: Any, wanted: tuple[Chunks, ...], *, may_broadcast: bool = False
) -> None:
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


def spans(chunks: Chunks) -> list[Span]:
    """Return the start and stop of each chunk."""
    return list(itertools.pairwise(itertools.accumulate(chunks, initial=0)))


def chunk_index(chunks: tuple[Chunks, ...], place: Index) -> Index:
    """Return the index of the chunk of an array that belongs to a place.

    Axes are aligned at the end. Along a broadcast or missing axis, one chunk covers all places.
    """
    own = zip(place[len(place) - len(chunks) :], chunks, strict=True)
    return tuple(0 if len(axis) == 1 else number for number, axis in own)


def _along(array: Any, axis: int) -> Chunks:
    """Return the chunks along an axis, or (1,) if the array lacks it."""
    chunks: Chunks = array.chunks[axis] if array.ndim >= -axis else (1,)
    return chunks


def _batch_chunks(arrays: dict[str, Any], axes: int) -> tuple[Chunks, ...]:
    """Return the common chunks of the batch axes, which broadcast, or raise ValueError."""
    result = []
    for axis in range(-3 - axes, -3):
        first: str | None = None
        wanted: Chunks = (1,)
        for name, array in arrays.items():
            own = _along(array, axis)
            if own != (1,) and first is None:
                first, wanted = name, own
            elif own not in ((1,), wanted):
                raise ValueError(
                    f"{name} must have the chunks of {first} along axis {axis}, {wanted}, got "
                    f"{own}: pass {name}.rechunk({{{axis}: {wanted}}})"
                )
        result.append(wanted)
    return tuple(result)


def _check_entries(batch: tuple[Chunks, ...]) -> None:
    """Raise ValueError unless the entries of every chunk have consecutive numbers."""
    for axis, chunks in enumerate(batch[1:], 1):
        if len(chunks) > 1 and any(size > 1 for outer in batch[:axis] for size in outer):
            raise ValueError(
                "query, key and value must be cut along their first batch axes for dropout, which "
                f"counts the entries of the batch in order, got chunks {batch}: pass chunks of 1 "
                f"along the axes before, or one chunk along batch axis {axis}"
            )


def _heads(arrays: dict[str, Any]) -> tuple[Chunks, Index]:
    """Check the chunks along the other axes, and return the chunks of heads and the key heads.

    The key heads are, for each chunk of query heads, the number of the chunk that it reads in full.
    """
    for name, dim in (("query", "head_dim"), ("key", "head_dim"), ("value", "value_dim")):
        own = arrays[name].chunks[-1]
        if len(own) != 1:
            raise ValueError(
                f"{name} must have one chunk along {dim}, got chunks {own}: every score needs "
                f"whole rows; pass {name}.rechunk({{-1: -1}}), which moves all of it once"
            )
    for axis, dim in ((-2, "kv_len"), (-3, "kv_heads")):
        wanted, own = _along(arrays["key"], axis), _along(arrays["value"], axis)
        if own != wanted:
            raise ValueError(
                f"value must have the chunks of key along {dim}, {wanted}, got {own}: pass "
                f"value.rechunk({{{axis}: key.chunks[{axis}]}}), or the reverse"
            )
    heads, kv_heads = _along(arrays["query"], -3), _along(arrays["key"], -3)
    if not sum(heads):
        return heads, (0,) * len(heads)
    group = sum(heads) // sum(kv_heads)
    cuts = {0, sum(kv_heads)}
    for start, stop in spans(tuple(filter(None, heads))):
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
    own = (starts[start // group] if stop > start else 0 for start, stop in spans(heads))
    return heads, tuple(own)


def _dask_mask(mask: Any, wanted: tuple[Chunks, ...]) -> Any:
    """Return a mask as a Dask array with the chunks of the other arrays."""
    if isinstance(mask, da.Array):
        check_dask_array("mask", mask)
    else:
        array = as_array("mask", mask)
        sizes = zip(array.shape[::-1], wanted[::-1], strict=False)
        own = [full if size == sum(full) else size for size, full in sizes]
        rest = array.shape[: max(array.ndim - len(wanted), 0)]
        mask = da.from_array(array, chunks=(*rest, *own[::-1]))
    as_mask(np.empty(0, mask.dtype))
    check_chunks("mask", mask, wanted, may_broadcast=True)
    return mask
