"""What the forward and the backward call share: their arguments, checked, and cut into chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import dask.array as da
import numpy as np
from dask.base import tokenize

import regard
from regard._arguments.arrays import as_array, as_mask, compute_type, stored
from regard._arguments.hints import layout_hint
from regard._arguments.keywords import check_options
from regard._arguments.options import BackwardOptions
from regard.dask._chunks import Grid, check_chunks, check_dask_array, chunk_index, grid_of, spans
from regard.dask._graph import refer
from regard.dask._places import Places, check_small_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from regard.dask._chunks import Block, Chunks, Index, Span


class Call(NamedTuple):
    """A call whose arguments agree."""

    query: Any
    key: Any
    value: Any
    shown: Any
    """The bool mask, or None."""
    bias: Any
    """The float mask, or None."""
    grid: Grid
    places: Places
    dtype: np.dtype[Any]
    """Of the output."""
    arithmetic: np.dtype[Any]
    """Of the arithmetic, of partial results and of lse."""
    output_chunks: tuple[Chunks, ...]

    @property
    def inputs(self) -> list[Any]:
        """The Dask arrays of the call."""
        arrays = (self.query, self.key, self.value, self.shown, self.bias)
        return [array for array in arrays if array is not None]

    @property
    def mask_chunks(self) -> tuple[Chunks, ...]:
        """The chunks of a mask of full shape."""
        return (*self.output_chunks[:-1], self.grid.keys)

    def output_index(self, block: Block) -> Index:
        """Return the index of a block's chunk of the output."""
        return (*block.place[len(block.place) + 1 - len(self.output_chunks) :], 0)

    def output_shape(self, block: Block) -> tuple[int, ...]:
        """Return the shape of a block's chunk of the output."""
        own = zip(self.output_chunks, self.output_index(block), strict=True)
        return tuple(axis[number] for axis, number in own)

    def key_chunks(self, block: Block) -> Iterator[tuple[int, Span]]:
        """Go through the chunks of keys that a block may see, with their numbers."""
        for number, keys in enumerate(spans(self.grid.keys)):
            if self.places.is_visible(block, keys):
                yield number, keys

    def chunk_of(self, name: str, block: Block, number: int) -> Index:
        """Return the index of a block's chunk of query, key, value, shown or bias.

        `number` is that of a chunk of keys.
        """
        if name == "query":
            place = self.grid.of_query(block)
        elif name in ("key", "value"):
            place = self.grid.of_key(block, number)
        else:
            place = self.grid.of_mask(block, number)
        return chunk_index(getattr(self, name).numblocks, place)

    def refer(self, name: str, block: Block, number: int) -> Any:
        """Return what stands for that chunk in the arguments of a task; None without a mask."""
        array = getattr(self, name)
        if array is None:
            return None
        return refer((array.name, *self.chunk_of(name, block, number)))


def check_split_every(split_every: int) -> None:
    """Raise TypeError or ValueError unless merges may take this many partial results."""
    if not isinstance(split_every, int | np.integer):
        raise TypeError(f"split_every must be an integer, got {type(split_every).__name__}")
    if split_every < 2:
        raise ValueError(f"split_every must be at least 2, got {split_every}")


def call_of(
    name: str,
    arrays: tuple[Any, Any, Any],
    mask: Any,
    options: Mapping[str, Any],
    others: tuple[str, ...],
) -> Call:
    """Check the arguments that both calls have, and cut them into chunks.

    `others` are the keywords of the call that are not among `options`.
    """
    for argument, array in zip(("query", "key", "value"), arrays, strict=True):
        check_dask_array(argument, array)
    query, key, value = arrays
    check_small_options(options)
    check_options(name, options, (*others, *BackwardOptions.__annotations__))
    probe = _probe(query, key, value, options)
    batch = probe.shape[:-3]
    dtype, arithmetic = probe.dtype, compute_type(probe.dtype)
    grid = grid_of(query, key, value, len(batch))
    if options.get("dropout_p"):
        _check_entries(grid.batch)
    heads = (grid.heads,) if probe.ndim > 2 else ()
    output_chunks = (*grid.batch, *heads, grid.queries, (value.shape[-1],))
    shown, bias = _masks(mask, (*output_chunks[:-1], grid.keys))
    places = Places(options, batch, query.shape[-2], key.shape[-2], arithmetic)
    return Call(query, key, value, shown, bias, grid, places, dtype, arithmetic, output_chunks)


def token_of(call: Call, *more: Any) -> str:
    """Return what names the tasks of a call: equal for equal calls."""
    token: str = tokenize(*call.inputs, call.places.token, *more)
    return token


def _probe(query: Any, key: Any, value: Any, options: Mapping[str, Any]) -> Any:
    """Return the output for no queries.

    So the shapes, the types and the options of a call are checked by the function that will compute
    its parts, whatever their size: the keys here take no memory.
    """
    q_shape = (*query.shape[:-2], *(0 for _ in query.shape[-2:-1]), *query.shape[-1:])
    stand_ins = []
    for name, array in (("query", query), ("key", key), ("value", value)):
        one = stored(name, np.zeros(1, array.dtype))
        stand_ins.append(np.broadcast_to(one, q_shape if name == "query" else array.shape))
    try:
        return regard.scaled_dot_product_attention(*stand_ins, **options)
    except ValueError as error:
        message = str(error).replace(str(q_shape), str(query.shape))
        hint = layout_hint(query.shape, key.shape) if "heads" in message else ""
        raise ValueError(f"{message}{hint}") from None


def _check_entries(batch: tuple[Chunks, ...]) -> None:
    """Raise ValueError unless the entries of every chunk have consecutive numbers."""
    for axis, chunks in enumerate(batch[1:], 1):
        if len(chunks) > 1 and any(size > 1 for outer in batch[:axis] for size in outer):
            raise ValueError(
                "query, key and value must be cut along their first batch axes for dropout, which "
                f"counts the entries of the batch in order, got chunks {batch}: pass chunks of 1 "
                f"along the axes before, or one chunk along batch axis {axis}"
            )


def _masks(mask: Any, wanted: tuple[Chunks, ...]) -> tuple[Any, Any]:
    """Return the bool mask and the float mask of a call, as Dask arrays or None."""
    if mask is None:
        return None, None
    parts = mask if isinstance(mask, tuple) and len(mask) == 2 else (mask,)
    arrays = [_as_dask_mask(part, wanted) for part in parts]
    is_bool = [array.dtype.kind == "b" for array in arrays]
    if len(arrays) == 1:
        return (arrays[0], None) if is_bool[0] else (None, arrays[0])
    if is_bool != [True, False]:
        raise TypeError(
            "mask must be a bool array, a float array or a pair (bool, float) of both, got a pair "
            f"({arrays[0].dtype}, {arrays[1].dtype})"
        )
    return arrays[0], arrays[1]


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
