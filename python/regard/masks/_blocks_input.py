"""Check the arrays that describe blocks, and convert them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import as_array, broadcasts_to
from regard._arguments.numbers import count, integers
from regard.masks import _cells
from regard.masks._cells import Cells
from regard.masks._intervals import counted, union
from regard.masks._rows import Layout, SparseRows, check_axes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


def shape_of(shape: Any) -> tuple[int, ...]:
    """Return the shape of a mask, or raise TypeError or ValueError."""
    is_sequence = hasattr(shape, "__getitem__") and not isinstance(shape, str | bytes | dict)
    if not is_sequence or not hasattr(shape, "__len__"):
        raise TypeError(f"shape must be (..., q_len, kv_len), got {type(shape).__name__}")
    if len(shape) < 2:
        raise ValueError(f"shape must be (..., q_len, kv_len), got {tuple(shape)}")
    check_axes("shape", shape)
    return tuple(count(f"shape[{i}]", size) for i, size in enumerate(shape))


def cells_of_blocks(
    indptr: Any, indices: Any, shape: tuple[int, ...], block: tuple[int, int], bits: Any
) -> SparseRows:
    """Return the arrays of a mask from the blocks of each block row.

    Raises TypeError or ValueError if the blocks are not valid.
    """
    starts, columns = integers("indptr", indptr), integers("indices", indices)
    check_axes("indptr", starts.shape)
    if columns.ndim != 1:
        raise ValueError(f"indices must have one axis, got shape {columns.shape}")
    full = Layout.of(shape, block)
    if starts.ndim == 0 or starts.shape[-1] != full.rows + 1:
        raise ValueError(
            f"indptr must have {full.rows} block rows + 1 = {full.rows + 1} numbers for "
            f"q_len {full.q_len} and blocks of {block[0]} queries, got shape {starts.shape}"
        )
    if not broadcasts_to(starts.shape[:-1], full.planes):
        raise ValueError(
            f"indptr must broadcast to the axes {full.planes} of shape before its last two, got "
            f"shape {starts.shape}"
        )
    layout = full._replace(planes=starts.shape[:-1])
    layout.check()
    _check_starts(starts, len(columns))
    column_count = -(-full.kv_len // block[1])
    outside = (columns < 0) | (columns >= column_count)
    if outside.any():
        raise ValueError(
            f"indices must be block columns in 0 .. {column_count - 1}, got {columns[outside][0]}"
        )
    starts, columns = starts.astype(np.int64), columns.astype(np.int64)
    _check_order(starts, columns)
    packed = _packed(bits, len(columns), block)
    rows = _cells.rows_of(_cells_at(starts, columns, packed, layout), layout)
    return rows.spread(full.planes)


def _cells_at(starts: Integers, columns: Integers, bits: Any, layout: Layout) -> Cells:
    assert layout.block is not None
    counts = np.diff(starts, axis=-1).ravel()
    which = counted(starts[..., :-1].ravel(), counts)
    start = np.repeat(np.arange(len(counts)), counts) * layout.step
    key = columns[which] * layout.block[1]
    if bits is None:
        end = np.minimum(key + layout.block[1], layout.kv_len)
        return _cells.only_whole(union(start + key, start + end), layout)
    none = np.zeros(0, np.int64)
    return _cells.trimmed(Cells(union(none, none), start + key, which, bits), layout, inner=True)


def _check_starts(starts: Integers, blocks: int) -> None:
    outside = (starts < 0) | (starts > blocks)
    if outside.any():
        raise ValueError(
            f"indptr must be in 0 .. {blocks}, the number of indices, got {starts[outside][0]}"
        )
    falls = np.argwhere(starts[..., 1:] < starts[..., :-1])
    if len(falls):
        at = tuple(falls[0])
        after = (*at[:-1], at[-1] + 1)
        raise ValueError(
            f"indptr must not decrease, got {starts[after]} after {starts[at]} at index {after[-1]}"
        )


def _check_order(starts: Integers, columns: Integers) -> None:
    """Raise ValueError unless the columns increase within every block row."""
    if not len(columns):
        return
    falls = np.zeros(len(columns) + 1, np.int64)
    falls[2:] = np.cumsum(columns[1:] <= columns[:-1])  # up to and including each column
    begin, end = starts[..., :-1], starts[..., 1:]
    within = np.where(begin < end, falls[end] - falls[np.minimum(begin + 1, len(columns))], 0)
    if within.any():
        row = tuple(np.argwhere(within)[0])
        part = columns[begin[row] : end[row]]
        at = int(np.nonzero(part[1:] <= part[:-1])[0][0])
        raise ValueError(
            f"indices must increase within a block row, got {part[at + 1]} after {part[at]} in "
            f"block row {row[-1]}"
        )


def _packed(bits: Any, blocks: int, block: tuple[int, int]) -> Any:
    """Return the bits of the blocks, or raise TypeError or ValueError."""
    if bits is None:
        return None
    array = as_array("bits", bits)
    wanted = {np.dtype(np.bool_): block, np.dtype(np.uint8): (block[0], -(-block[1] // 8))}
    if array.dtype not in wanted:
        raise TypeError(f"bits must be bool, or uint8 of packed bits, got {array.dtype}")
    shape = (blocks, *wanted[array.dtype])
    if array.shape != shape:
        raise ValueError(
            f"bits must have shape {shape} for {blocks} blocks of {block[0]} x {block[1]} in "
            f"{array.dtype}, got {array.shape}"
        )
    if array.dtype == np.bool_:
        return np.packbits(array, axis=-1, bitorder="little")
    return array.copy()
