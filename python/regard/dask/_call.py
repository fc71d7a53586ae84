"""Arguments of the forward and backward calls, checked and split into chunks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import dask.array as da
import numpy as np
from dask.base import tokenize

from regard._arguments.arrays import as_array, part_at, result_type, stored
from regard._arguments.keywords import check_options
from regard._arguments.masks import Masks, as_mask, is_sparse, parts_of
from regard._arguments.option_table import OPTIONS
from regard._arguments.options import DaskOptions, names_of
from regard._arguments.seen_keys import SeenKeys
from regard._attention.check import check_call
from regard.dask._chunks import Grid, check_chunks, check_dask_array, chunk_index, grid_of, spans
from regard.dask._graph import refer
from regard.dask._tasks import OPERANDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from regard._attention.check import CheckedCall
    from regard.dask._chunks import Chunks, Index, OutputChunk, Span


class DaskCall(NamedTuple):
    """A call whose arguments are consistent."""

    query: Any
    key: Any
    value: Any
    shown: Any
    """The bool mask as an array, or None. A sparse mask is a mask of `whole`."""
    bias: Any
    """The float mask, or None."""
    grid: Grid
    whole: CheckedCall
    """The call on whole arrays, with stand-ins that use no memory."""
    dtype: np.dtype[Any]
    """The dtype of the output."""
    output_chunks: tuple[Chunks, ...]

    @property
    def arithmetic(self) -> np.dtype[Any]:
        """The dtype of partial results and of lse."""
        return self.whole.arithmetic

    @property
    def inputs(self) -> list[Any]:
        """The Dask arrays of the call."""
        arrays = (self.query, self.key, self.value, self.shown, self.bias)
        return [array for array in arrays if array is not None]

    def output_index(self, block: OutputChunk) -> Index:
        """Return the index of a block's output chunk."""
        return (*block.place[len(block.place) + 1 - len(self.output_chunks) :], 0)

    def output_shape(self, block: OutputChunk) -> tuple[int, ...]:
        """Return the shape of a block's output chunk."""
        own = zip(self.output_chunks, self.output_index(block), strict=True)
        return tuple(axis[number] for axis, number in own)

    def key_chunks(self, block: OutputChunk) -> Iterator[tuple[int, Span]]:
        """Iterate over the key chunks that a block may see, with their numbers."""
        if block.is_empty:
            return
        batch, heads, queries = _slices(block.batch), slice(*block.heads), slice(*block.queries)
        positions = self.whole.positions.entry(batch)
        seen = SeenKeys.of(self.whole.masks.at((*batch, heads, queries, slice(None))))
        for number, keys in enumerate(spans(self.grid.keys)):
            is_shown = seen is None or seen.any(*keys)
            if is_shown and positions.chunk(block.queries, keys).visible()[1]:
                yield number, keys

    def arguments_of(
        self, block: OutputChunk, number: int, keys: Span
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the operands and the options of a call on a query chunk and a numbered key chunk.

        Sinks are excluded, since they do not belong to any key chunk.
        """
        heads, queries = slice(*block.heads), slice(*block.queries)
        part = self.whole.part(_slices(block.batch), heads, queries, slice(*keys))
        operands = {name: self.refer(name, block, number) for name in OPERANDS}
        if self.shown is None:
            operands["shown"] = part.masks.shown
        options = {name: each for name, each in part.options.items() if name != "sinks"}
        return list(operands.values()), options

    def sinks_of(self, block: OutputChunk) -> Any:
        """Return the sinks of a query chunk, or None."""
        sinks = self.whole.options.get("sinks")
        return None if sinks is None else part_at(sinks, (slice(*block.heads),))

    def chunk_of(self, name: str, block: OutputChunk, number: int) -> Index:
        """Return the index of a block's chunk of query, key, value, shown or bias.

        `number` is the number of a key chunk.
        """
        if name == "query":
            place = self.grid.of_query(block)
        elif name in ("key", "value"):
            place = self.grid.of_key(block, number)
        else:
            place = self.grid.of_mask(block, number)
        return chunk_index(getattr(self, name).numblocks, place)

    def refer(self, name: str, block: OutputChunk, number: int) -> Any:
        """Return a reference to that chunk for a task's arguments, or None for a missing mask."""
        array = getattr(self, name)
        if array is None:
            return None
        return refer((array.name, *self.chunk_of(name, block, number)))


def call_of(
    name: str,
    arrays: tuple[Any, Any, Any],
    mask: Any,
    options: Mapping[str, Any],
) -> DaskCall:
    """Check the arguments common to both calls, and split them into chunks."""
    for argument, array in zip(("query", "key", "value"), arrays, strict=True):
        check_dask_array(argument, array)
    query, key, value = arrays
    _check_small_options(options)
    check_options(name, options, names_of(DaskOptions), kind="dask")
    sparse = next(filter(is_sparse, parts_of(mask)), None)
    whole = _whole(query, key, value, sparse, options)
    grid = grid_of(query, key, value, len(whole.sizes.batch))
    if options.get("dropout_p"):
        _check_entries(grid.batch)
    heads = (grid.heads,) if whole.has_heads else ()
    output_chunks = (*grid.batch, *heads, grid.queries, (value.shape[-1],))
    masks = _masks(mask, (*output_chunks[:-1], grid.keys))
    shown = None if is_sparse(masks.shown) else masks.shown
    dtype = result_type(array.dtype for array in (whole.query, whole.key, whole.value))
    return DaskCall(query, key, value, shown, masks.bias, grid, whole, dtype, output_chunks)


def token_of(call: DaskCall, *more: Any) -> str:
    """Return a token for the names of a call's tasks, equal for equal calls."""
    token: str = tokenize(*call.inputs, call.whole.masks.shown, call.whole.options, *more)
    return token


def _check_small_options(options: Mapping[str, Any]) -> None:
    """Raise TypeError if an option is a Dask array, since the graph depends on its values."""
    for name, value in options.items():
        if isinstance(value, da.Array):
            raise TypeError(
                f"{name} must be a number or a NumPy array, got a Dask array: the graph is made "
                f"from it; pass {name}.compute()"
            )


def _whole(
    query: Any, key: Any, value: Any, sparse: Any, options: Mapping[str, Any]
) -> CheckedCall:
    """Check the call on whole arrays, represented by zeros that use no memory.

    Of masks, only a sparse mask is part of the call.
    """
    zeros = {
        name: np.broadcast_to(stored(name, np.zeros(1, array.dtype)), array.shape)
        for name, array in (("query", query), ("key", key), ("value", value))
    }
    call = check_call(**zeros, mask=sparse, options=options)
    # Differentiable options are rounded to the precision of a single call.
    narrow = {
        name: np.asarray(value).astype(call.arithmetic)
        for name, value in call.options.items()
        if OPTIONS[name].is_differentiable and value is not None
    }
    return replace(call, options=call.options | narrow)


def _slices(spans: tuple[Span, ...]) -> tuple[slice, ...]:
    return tuple(slice(*span) for span in spans)


def _check_entries(batch: tuple[Chunks, ...]) -> None:
    """Raise ValueError unless the entries of every chunk have consecutive numbers."""
    for axis, chunks in enumerate(batch[1:], 1):
        if len(chunks) > 1 and any(size > 1 for outer in batch[:axis] for size in outer):
            raise ValueError(
                "query, key and value must be cut along their first batch axes for dropout, which "
                f"counts the entries of the batch in order, got chunks {batch}: pass chunks of 1 "
                f"along the axes before, or one chunk along batch axis {axis}"
            )


def _masks(mask: Any, wanted: tuple[Chunks, ...]) -> Masks:
    """Return the masks of a call as Dask arrays, except sparse masks, which remain as they are."""
    return Masks.of_parts(
        [part if is_sparse(part) else _as_dask_mask(part, wanted) for part in parts_of(mask)]
    )


def _as_dask_mask(mask: Any, wanted: tuple[Chunks, ...]) -> Any:
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
