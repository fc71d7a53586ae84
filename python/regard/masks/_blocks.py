"""Masks of blocks of queries and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from regard._arguments.arrays import as_array, shown
from regard._arguments.keywords import refuses_unknown
from regard._arguments.numbers import count
from regard.masks import _cells, _grid
from regard.masks._blocks_input import cells_of_blocks, shape_of
from regard.masks._rows import Layout, SparseRows
from regard.masks._sparse import SparseMask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

DEFAULT_BLOCK = (128, 128)


class Blocks(SparseMask):
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
        its last two. A ``bsr_array`` or ``csr_array`` is also accepted here, as in `from_scipy`;
        the arguments `indices`, `shape` and `bits` are then left out.
    indices : integer array, shape (number of blocks,)
        The block column of each block. The columns increase within a block row.
    shape : tuple of int
        The shape of the mask, ``(q_len, kv_len)`` or ``(..., heads, q_len, kv_len)``. Blocks at its
        end may reach beyond it.
    block : pair of int, default (128, 128)
        The queries and keys of a block, at most 2**24 pairs.
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
        block row or exceed the block columns, or if shapes do not agree.

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
        self._set(cells_of_blocks(indptr, indices, shape_of(shape), size, bits), size)

    @property
    def block(self) -> tuple[int, int]:
        """The queries and keys of a block."""
        assert self._block is not None
        return self._block

    @classmethod
    @refuses_unknown
    def from_scipy(cls, matrix: Any, *, block: Sequence[SupportsIndex] | None = None) -> Blocks:
        """Convert a SciPy sparse array. An element that is not 0 is visible.

        Parameters
        ----------
        matrix : scipy.sparse.bsr_array or csr_array
            The mask, of shape ``(q_len, kv_len)``.
        block : pair of int, optional
            The queries and keys of a block. By default, the blocks of a ``bsr_array``, and
            (128, 128) for a ``csr_array``.

        Returns
        -------
        Blocks

        Raises
        ------
        TypeError
            If `matrix` is neither a ``bsr_array`` nor a ``csr_array``.
        ValueError
            If `matrix` contains an element or a block twice, or `block` is not a pair of positive
            integers.

        Examples
        --------
        ::

            matrix = scipy.sparse.random_array((1000, 1000), density=0.01, format="csr")
            mask = regard.masks.Blocks.from_scipy(matrix, block=(64, 64))
        """
        mask: Blocks = object.__new__(cls)
        mask._set(*_scipy_rows(matrix, block))
        return mask

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
    is_sequence = hasattr(block, "__getitem__") and not isinstance(block, str | bytes | dict)
    if not is_sequence or not hasattr(block, "__len__"):
        raise TypeError(f"block must be a pair (queries, keys), got {type(block).__name__}")
    if len(block) != 2:
        raise ValueError(f"block must be a pair (queries, keys), got {len(block)} numbers")
    queries, keys = (count(f"block[{i}]", size, 1, 2**20) for i, size in enumerate(block))
    return queries, keys


def _scipy_rows(matrix: Any, block: Any) -> tuple[SparseRows, tuple[int, int]]:
    """Return the arrays and the blocks of a SciPy sparse array."""
    kind = getattr(matrix, "format", None)
    if kind not in ("bsr", "csr"):
        raise TypeError(
            "a SciPy sparse array must be a bsr_array or a csr_array, got "
            f"{shown(matrix) if kind is None else kind}: convert it with tobsr() or tocsr()"
        )
    size = None if block is None else block_of(block)
    own = tuple(int(n) for n in matrix.blocksize) if kind == "bsr" else (1, 1)
    visible = np.asarray(matrix.data) != 0
    if kind == "csr":
        visible = visible[:, None, None]
    indptr, indices, visible = _ordered(matrix, visible)
    rows = cells_of_blocks(indptr, indices, shape_of(matrix.shape), (own[0], own[1]), visible)
    size = size or (DEFAULT_BLOCK if kind == "csr" else (own[0], own[1]))
    if size == own:
        return rows, size
    layout = Layout.of(rows.shape, size)
    return _cells.rows_of(_grid.cells_on(rows, (own[0], own[1]), layout), layout), size


def _ordered(matrix: Any, visible: Any) -> tuple[Any, Any, Any]:
    """Return the arrays of a SciPy array with sorted columns, or raise ValueError."""
    indptr, indices = np.asarray(matrix.indptr), np.asarray(matrix.indices)
    row = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    indices, visible = indices[: len(row)], visible[: len(row)]
    order = np.lexsort((indices, row))
    indices, visible = indices[order], visible[order]
    if ((indices[1:] == indices[:-1]) & (row[1:] == row[:-1])).any():
        raise ValueError("matrix contains an element or a block twice: call sum_duplicates() first")
    return indptr, indices, visible
