"""Masks of blocks of queries and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from regard._arguments.arrays import as_array, broadcasts_to, shown
from regard._arguments.keywords import refuses_unknown
from regard._arguments.numbers import count, integers, repeat
from regard.masks import _cells, _grid
from regard.masks._cells import Cells
from regard.masks._intervals import NOTHING, counted
from regard.masks._rows import Layout, SparseRows, check_axes
from regard.masks._sparse import DEFAULT_BLOCK, SparseMask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from regard._arguments.arrays import Integers

    Block = tuple[int, int]


class Blocks(SparseMask, has_blocks=True):
    """A sparse mask in which each block of queries sees some blocks of keys.

    The mask is divided into blocks, by default of 128 queries and 128 keys. A block that is not
    stored is hidden. A stored block is whole, so that all its queries see all its keys, or partial:
    it then has a bit for each query and key. See `SparseMask` for the operators, views and
    properties.

    Parameters
    ----------
    indptr : integer array, shape (block rows + 1,) or (..., heads, block rows + 1)
        The blocks of block row ``r`` are ``indices[indptr[r] : indptr[r + 1]]``, as in
        `scipy.sparse.bsr_array`. The axes before the last broadcast to the axes of `shape` before
        its last two. A SciPy ``bsr_array`` or ``csr_array`` is also accepted here, whose
        elements other than 0 are visible; `indices`, `shape` and `bits` are then left out.
    indices : integer array, shape (number of blocks,)
        The block column of each block. The columns increase within a block row.
    shape : tuple of int
        The shape of the mask, ``(q_len, kv_len)`` or ``(..., heads, q_len, kv_len)``. Blocks at its
        end may reach beyond it.
    block : pair of int, default (128, 128)
        The queries and keys of a block, at most 2**24 pairs. The default for a ``bsr_array`` is its
        own blocks.
    bits : array of uint8 or bool, optional
        The visible pairs of each block: a bool array of shape ``(number of blocks, *block)``, or
        its bits as uint8, ``np.packbits(visible, axis=-1, bitorder="little")``. By default, all
        blocks are whole.

    Attributes
    ----------
    block : tuple of two int
        The queries and keys of a block. Blocks of a view may begin before its first query or key.

    Raises
    ------
    TypeError
        If an array has the wrong type.
    ValueError
        If `indptr` decreases or exceeds the number of blocks, if `indices` do not increase within a
        block row or exceed the block columns, if a SciPy array contains an element twice, or if
        shapes do not agree.

    See Also
    --------
    regard.masks.Ranges : Show a range of keys to each query.
    regard.masks.from_function : Build a mask from a function of positions.

    Examples
    --------
    Each block of two tokens sees itself and the first block:

    >>> import regard
    >>> mask = regard.masks.Blocks([0, 1, 3, 5], [0, 0, 1, 0, 2], shape=(6, 6), block=(2, 2))
    >>> mask.to_dense().astype(int)
    array([[1, 1, 0, 0, 0, 0],
           [1, 1, 0, 0, 0, 0],
           [1, 1, 1, 1, 0, 0],
           [1, 1, 1, 1, 0, 0],
           [1, 1, 0, 0, 1, 1],
           [1, 1, 0, 0, 1, 1]])

    The same, but causal:

    >>> mask & regard.masks.sliding(6, window=(None, 0))
    Blocks(shape=(6, 6), 47.222% visible, 2 whole and 3 partial blocks of 2 x 2, 154 bytes)
    """

    __slots__ = ()

    @refuses_unknown
    def __init__(
        self,
        indptr: ArrayLike | Any,
        indices: ArrayLike | None = None,
        *,
        shape: Sequence[SupportsIndex] | None = None,
        block: Sequence[SupportsIndex] | None = None,
        bits: ArrayLike | None = None,
    ) -> None:
        if hasattr(indptr, "indptr") or hasattr(indptr, "tocsr"):
            given = {"indices": indices, "shape": shape, "bits": bits}
            for name, value in given.items():
                if value is not None:
                    raise TypeError(
                        f"{name} must be left out if the first argument is a SciPy array"
                    )
            self._set(*_scipy_rows(indptr, block))
            return
        for name, value in {"indices": indices, "shape": shape}.items():
            if value is None:
                raise TypeError(f"Blocks() needs {name}")
        size = block_of(DEFAULT_BLOCK if block is None else block)
        self._set(_rows_of_blocks(indptr, indices, _shape_of(shape), size, bits), size)

    @property
    def block(self) -> tuple[int, int]:
        """The queries and keys of a block."""
        assert self._block is not None
        return self._block

    @classmethod
    @refuses_unknown
    def from_dense(
        cls, mask: ArrayLike, *, block: Sequence[SupportsIndex] = DEFAULT_BLOCK
    ) -> Blocks:
        """Convert a dense bool mask.

        Parameters
        ----------
        mask : array_like of bool, shape (..., q_len, kv_len)
            True where a query may attend.
        block : pair of int, default (128, 128)
            The queries and keys of a block.

        Returns
        -------
        Blocks

        Raises
        ------
        TypeError
            If `mask` is not bool.
        ValueError
            If `mask` has fewer than two axes, or `block` is not a pair of positive integers.

        Examples
        --------
        >>> import regard
        >>> regard.masks.Blocks.from_dense(regard.masks.causal(300))
        Blocks(shape=(300, 300), 50.167% visible, 3 whole and 3 partial blocks of 128 x 128, \
4.25 kB)
        """
        size = block_of(block)
        dense = as_array("mask", mask)
        if dense.dtype != np.bool_:
            raise TypeError(f"mask must be bool (True = may attend), got {dense.dtype}")
        if dense.ndim < 2:
            raise ValueError(f"mask must have at least two axes, got shape {dense.shape}")
        blocks: Blocks = object.__new__(cls)
        blocks._set(_grid.rows_of_dense(dense, size), size)
        return blocks

    def _stored(self) -> str:
        cells = self._cells()[0]
        width = self.block[1]
        whole = int((-(-(cells.whole.last - cells.whole.first) // width)).sum())
        partial = len(cells.place)
        word = "block" if whole + partial == 1 else "blocks"
        size = f"{self.block[0]} x {self.block[1]}"
        return f"{whole} whole and {partial} partial {word} of {size}"


def block_of(block: Any) -> tuple[int, int]:
    """Return the size of a block, or raise TypeError or ValueError."""
    if _length("block", block, "a pair (queries, keys)") != 2:
        raise ValueError(f"block must be a pair (queries, keys), got {len(block)} numbers")
    queries, keys = (count(f"block[{i}]", size, 1, 2**20) for i, size in enumerate(block))
    return queries, keys


def _shape_of(shape: Any) -> tuple[int, ...]:
    """Return the shape of a mask, or raise TypeError or ValueError."""
    if _length("shape", shape, "(..., q_len, kv_len)") < 2:
        raise ValueError(f"shape must be (..., q_len, kv_len), got {tuple(shape)}")
    check_axes("shape", shape)
    return tuple(count(f"shape[{i}]", size) for i, size in enumerate(shape))


def _length(name: str, value: Any, wanted: str) -> int:
    is_sequence = hasattr(value, "__getitem__") and not isinstance(value, str | bytes | dict)
    if not is_sequence or not hasattr(value, "__len__"):
        raise TypeError(f"{name} must be {wanted}, got {type(value).__name__}")
    return len(value)


def _scipy_rows(matrix: Any, block: Any) -> tuple[SparseRows, Block]:
    """Return the arrays and blocks of a SciPy sparse array, or raise TypeError or ValueError."""
    kind = getattr(matrix, "format", None)
    if kind not in ("bsr", "csr"):
        raise TypeError(
            "a SciPy sparse array must be a bsr_array or a csr_array, got "
            f"{shown(matrix) if kind is None else kind}: convert it with tobsr() or tocsr()"
        )
    height, width = matrix.blocksize if kind == "bsr" else (1, 1)
    own = int(height), int(width)
    size = block_of(block) if block is not None else own if kind == "bsr" else DEFAULT_BLOCK
    matrix = matrix.sorted_indices()
    if not matrix.has_canonical_format:
        raise ValueError("matrix contains an element or a block twice: call sum_duplicates() first")
    stored = matrix.indptr[-1]
    visible = (matrix.data[:stored] != 0).reshape(-1, *own)
    shape = _shape_of(matrix.shape)
    rows = _rows_of_blocks(matrix.indptr, matrix.indices[:stored], shape, own, visible)
    if size == own:
        return rows, size
    layout = Layout.of(rows.shape, size)
    return _cells.rows_of(_grid.cells_on(rows, own, layout), layout), size


def _rows_of_blocks(
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
    outside = columns[(columns < 0) | (columns >= full.columns)]
    if outside.size:
        raise ValueError(
            f"indices must be block columns in 0 .. {full.columns - 1}, got {outside[0]}"
        )
    packed = _packed(bits, len(columns), block)
    cells = _cells_at(starts.astype(np.int64), columns.astype(np.int64), packed, layout)
    return _cells.rows_of(cells, layout).spread(full.planes)


def _cells_at(starts: Integers, columns: Integers, bits: Any, layout: Layout) -> Cells:
    """Return the cells of blocks, or raise ValueError if columns do not increase in a row."""
    assert layout.block is not None
    counts = np.diff(starts, axis=-1).ravel()
    which = counted(starts[..., :-1].ravel(), counts)
    row = repeat(np.arange(len(counts)), counts)
    place = row * layout.step + columns[which] * layout.block[1]
    falls = np.flatnonzero(place[1:] <= place[:-1])
    if len(falls):
        first, second = columns[which[falls[0] : falls[0] + 2]]
        raise ValueError(
            f"indices must increase within a block row, got {second} after {first} in block row "
            f"{row[falls[0]] % layout.rows}"
        )
    if bits is None:
        return _cells.only_whole(_cells.blocks_at(place, layout), layout)
    return _cells.trimmed(Cells(NOTHING, place, which, bits), layout)


def _check_starts(starts: Integers, blocks: int) -> None:
    outside = starts[(starts < 0) | (starts > blocks)]
    if outside.size:
        raise ValueError(
            f"indptr must be in 0 .. {blocks}, the number of indices, got {outside[0]}"
        )
    falls = np.argwhere(starts[..., 1:] < starts[..., :-1])
    if len(falls):
        at = tuple(falls[0])
        after = (*at[:-1], at[-1] + 1)
        raise ValueError(
            f"indptr must not decrease, got {starts[after]} after {starts[at]} at index {after[-1]}"
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
