"""The tasks that contribute to each gradient chunk, and the trees that sum them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import stored
from regard._arguments.option_table import OPTIONS
from regard.dask import _tasks
from regard.dask._chunks import chunk_index
from regard.dask._graph import refer, refer_all

if TYPE_CHECKING:
    from collections.abc import Mapping

    from regard.dask._call import DaskCall
    from regard.dask._chunks import Chunks, Index, OutputChunk
    from regard.dask._graph import Graph, Key

# The names of a task's inputs in a `DaskCall`.
_OPERANDS = {"query": "query", "key": "key", "value": "value", "mask": "bias"}


class GradientSum:
    """A gradient whose chunks are sums of task results."""

    def __init__(self, name: str, chunks: tuple[Chunks, ...], dtype: np.dtype[Any]) -> None:
        self.name, self._chunks = name, chunks
        self._dtype = stored(name, np.empty(0, dtype)).dtype
        counts = [range(len(axis)) for axis in chunks]
        self._parts: dict[Index, list[Key | None]] = {
            index: [] for index in itertools.product(*counts)
        }

    def add(self, index: Index, part: Key | None) -> None:
        """Add the result of a task to a chunk, or None for a pair that is not in the graph.

        The sum has the order of the calls.
        """
        self._parts[index].append(part)

    def index_of_option(self, block: OutputChunk) -> Index:
        """Return the index of the chunk of an option that belongs to a block."""
        columns = (0,) * OPTIONS[self.name].axes.count("columns")
        return chunk_index(tuple(map(len, self._chunks)), (*block.place[:-1], *columns))

    def finish(self, graph: Graph, split_every: int) -> Any:
        """Return the gradient as a Dask array."""
        kind, add_up = f"attention-gradient-of-{self.name}", _tasks.add_up
        blocks: dict[Index, tuple[Any, ...]] = {}
        for index, parts in self._parts.items():
            if any(parts):
                left = graph.add_tree(f"{kind}-sum", index, add_up, parts, split_every)
                blocks[index] = (_tasks.finish_sum, refer_all(left), self._dtype)
            else:
                shape = tuple(axis[i] for axis, i in zip(self._chunks, index, strict=True))
                blocks[index] = (_tasks.zeros, shape, self._dtype)
        return graph.array(kind, blocks, self._chunks, self._dtype)


def gradient_sums(call: DaskCall, wanted: tuple[str, ...], options: Mapping[str, Any]) -> Any:
    """Return the sums for the requested gradients by name."""
    sums = {}
    for name in wanted:
        if name in _OPERANDS:
            array = getattr(call, _OPERANDS[name])
            sums[name] = GradientSum(name, array.chunks, array.dtype)
        else:
            array = np.asarray(options[name])
            of_axis = {"batch": call.grid.batch, "heads": (call.grid.heads,), "columns": ((),)}
            axes = [full for axis in OPTIONS[name].axes for full in of_axis[axis]]
            sizes = zip(array.shape, axes[len(axes) - array.ndim :], strict=True)
            chunks = tuple(full if size == sum(full) else (size,) for size, full in sizes)
            sums[name] = GradientSum(name, chunks, array.dtype)
    return sums


def add_parts(
    call: DaskCall, graph: Graph, given: tuple[Any, ...], sums: Mapping[str, GradientSum]
) -> None:
    """Add a task for every visible pair of chunks, and add its results to the sums."""
    names = tuple(name for name in sums if name != "sinks")
    for block in call.grid.blocks():
        rows = [_rows_of(call, array, block) for array in given]
        if "sinks" in sums and not block.is_empty:
            sinks = call.sinks_of(block)
            of_sinks = graph.add(
                "attention-gradient-part-of-sinks",
                block.place,
                _tasks.gradient_of_sinks,
                refer_all(rows),
                sinks,
            )
            sums["sinks"].add(sums["sinks"].index_of_option(block), of_sinks)
        if not names or block.is_empty:
            continue
        visible = dict(call.key_chunks(block))
        for number in range(len(call.grid.keys)):
            parts: list[Key | None] = [None] * len(names)
            if number in visible:
                chunks, own = call.arguments_of(block, number, visible[number])
                place = (*block.place, number)
                pair = graph.add(
                    "attention-gradient-part",
                    place,
                    _tasks.gradients_of_part,
                    *chunks,
                    refer_all(rows),
                    names,
                    own,
                    call.arithmetic,
                )
                kinds = (f"attention-gradient-part-of-{name}" for name in names)
                parts = [
                    graph.add(kind, place, _tasks.part_of, refer(pair), position)
                    for position, kind in enumerate(kinds)
                ]
            for name, part in zip(names, parts, strict=True):
                if name in _OPERANDS:
                    index = call.chunk_of(_OPERANDS[name], block, number)
                else:
                    index = sums[name].index_of_option(block)
                sums[name].add(index, part)


def _rows_of(call: DaskCall, array: Any, block: OutputChunk) -> Key | None:
    """Return the key of a block's chunk of the output, lse or one of their gradients."""
    if array is None:
        return None
    return (array.name, *call.output_index(block)[: array.ndim])
