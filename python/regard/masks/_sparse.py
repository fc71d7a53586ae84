"""The class of sparse masks: properties, views, and operators."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex

import numpy as np

from regard._arguments.arrays import bytes_of
from regard._arguments.keywords import refuses_unknown
from regard._arguments.numbers import count
from regard.masks import _cells, _grid
from regard.masks._cells import Cells
from regard.masks._rows import ALL_QUERIES, MOST_PAIRS, Layout, Reader, SparseRows
from regard.masks._views import view_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import EllipsisType

    from numpy.typing import NDArray

    from regard._arguments.arrays import Place

    Bools = NDArray[np.bool_]
    Index = SupportsIndex | slice | EllipsisType | None

# Dense arrays above this size are refused unless `max_bytes` permits them.
_MOST_BYTES = 2**31


class SparseMask:
    """A bool mask that is stored as the keys that each query sees.

    Masks of this class are built by `Ranges`, `Blocks`, and the functions of `regard.masks`. They
    are immutable, and behave like bool arrays of the same shape:

    - ``a & b``, ``a | b``, ``a ^ b`` and ``~a`` are exact, and take time and memory in proportion
      to the stored ranges and blocks. ``a == b`` is elementwise, like ``~(a ^ b)``. `Ranges` with
      `Ranges` give `Ranges`; other combinations give `Blocks`. The batch and heads axes broadcast,
      and so does a single query. If one mask has fewer keys, its missing keys are hidden. A dense
      bool array is converted first: to `Ranges` if it has a single key, which broadcasts, and
      otherwise by `Blocks.from_dense`.
    - ``~a`` inverts only the keys that `a` has: pass ``kv_len=`` to `Ranges` before inverting it.
    - ``mask[...]`` with integers, slices without steps, `None` and an ellipsis gives a view in
      constant time. The last two axes accept only slices.
    - A mask with one query shows the same keys to all queries of a call.
    - A mask that does not fit in memory is refused with a MemoryError before it is built.

    See Also
    --------
    regard.masks.Ranges, regard.masks.Blocks : The two kinds.

    Examples
    --------
    >>> import regard
    >>> mask = regard.masks.Ranges([0, 0, 1], [1, 2, 3])
    >>> isinstance(mask, regard.masks.SparseMask)
    True
    >>> mask.shape, mask.nnz, mask.density
    ((3, 3), 5, 0.5555555555555556)
    """

    __slots__ = ("__weakref__", "_block", "_rows")
    # NumPy's arrays leave operators to this class.
    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    _block: tuple[int, int] | None
    _rows: SparseRows

    def __init__(self) -> None:
        raise TypeError(
            "SparseMask has no constructor: build a mask with masks.Ranges or masks.Blocks"
        )

    def _set(self, rows: SparseRows, block: tuple[int, int] | None) -> None:
        for array in (rows.starts, rows.spans, rows.bits):
            array.flags.writeable = False
        self._rows, self._block = rows, block

    @property
    def _starts(self) -> NDArray[np.int64]:
        return self._rows.starts

    @property
    def _spans(self) -> NDArray[np.int64]:
        return self._rows.spans

    @property
    def _bits(self) -> NDArray[np.uint8]:
        return self._rows.bits

    @property
    def _row_queries(self) -> int:
        return self._rows.row_queries

    @property
    def _first_query(self) -> int:
        return self._rows.first_query

    @property
    def _first_key(self) -> int:
        return self._rows.first_key

    def _sparse_rows(self) -> SparseRows:
        """Return the arrays that the kernels read.

        A single query is a row that broadcasts, even if it is a view of one query of several.
        """
        if self.shape[-2] != 1 or self._row_queries == ALL_QUERIES:
            return self._rows
        return _cells.rows_of(*self._cells()).spread(self.shape[:-2])

    def _cells(self) -> tuple[Cells, Layout]:
        """Return the distinct planes, with rows and blocks aligned to the first query and key."""
        once = self._rows.distinct()
        layout = Layout.of(once.shape, self._block)
        return _grid.cells_on(once, self._block, layout), layout

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape ``(..., q_len, kv_len)``."""
        return self._rows.shape

    @property
    def ndim(self) -> int:
        """The number of axes, at least 2."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[np.bool_]:
        """The type of the elements, bool."""
        return np.dtype(np.bool_)

    @property
    def size(self) -> int:
        """The number of elements of the dense mask."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The memory of the stored arrays, in bytes, which views share."""
        return self._starts.nbytes + self._spans.nbytes + self._bits.nbytes

    @property
    def nnz(self) -> int:
        """The number of visible pairs of a query and a key: the number of True in the dense mask.

        It is counted on each access, in time proportional to the stored ranges and blocks.
        """
        cells, layout = self._cells()
        planes = math.prod(layout.planes)
        copies = math.prod(self.shape[:-2]) // planes if planes else 0
        return _cells.count(cells, layout) * copies

    @property
    def density(self) -> float:
        """The share of visible pairs, from 0 to 1; 0 for a mask without pairs."""
        return self.nnz / self.size if self.size else 0.0

    @refuses_unknown
    def to_dense(self, *, max_bytes: SupportsIndex = _MOST_BYTES) -> Bools:
        """Return the mask as a bool array.

        Parameters
        ----------
        max_bytes : int, default 2**31
            The largest permitted size of the array, in bytes.

        Returns
        -------
        numpy.ndarray of bool
            Has the shape of the mask.

        Raises
        ------
        TypeError
            If `max_bytes` is not an integer.
        ValueError
            If the array is larger than `max_bytes`.

        Examples
        --------
        >>> import regard
        >>> regard.masks.Ranges([0, 0, 1], [1, 2, 3]).to_dense().astype(int)
        array([[1, 0, 0],
               [1, 1, 0],
               [0, 1, 1]])
        """
        most = count("max_bytes", max_bytes)
        if self.size > most:
            raise ValueError(
                f"a dense mask of shape {self.shape} needs {self.size:,} bytes, but max_bytes is "
                f"{most:,}: pass a slice of the mask, or a larger max_bytes="
            )
        *planes, q_len, kv_len = self.shape
        dense = np.empty((math.prod(planes), q_len, kv_len), bool)
        if dense.size:
            once = self._rows.distinct()
            index = np.arange(math.prod(once.planes)).reshape(once.planes)
            index = np.broadcast_to(index, planes).ravel()
            reader = Reader(once)
            step = max(MOST_PAIRS // kv_len, 1)
            for plane, own in enumerate(index):
                for begin in range(0, q_len, step):
                    rows = min(step, q_len - begin)
                    at = np.array([own]), np.array([begin]), np.array([0])
                    dense[plane, begin : begin + rows] = reader.read(*at, (rows, kv_len))[0]
        return dense.reshape(self.shape)

    def __getitem__(self, index: Index | Place | tuple[Index, ...]) -> Any:
        view: SparseMask = object.__new__(type(self))
        view._rows, view._block = view_of(self._rows, index), self._block
        return view

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if self.ndim == 2:
            raise TypeError("a sparse mask with two axes has no parts to iterate over: use slices")
        return (self[i] for i in range(len(self)))

    def __and__(self, other: Any) -> Any:
        return self._combined("&", other)

    def __or__(self, other: Any) -> Any:
        return self._combined("|", other)

    def __xor__(self, other: Any) -> Any:
        return self._combined("^", other)

    def __rand__(self, other: Any) -> Any:
        return self._combined("&", other, is_right=True)

    def __ror__(self, other: Any) -> Any:
        return self._combined("|", other, is_right=True)

    def __rxor__(self, other: Any) -> Any:
        return self._combined("^", other, is_right=True)

    def __eq__(self, other: object) -> Any:
        different = self._combined("^", other)
        return different if different is NotImplemented else ~different

    def __ne__(self, other: object) -> Any:
        return self._combined("^", other)

    def __invert__(self) -> Any:
        from regard.masks._combine import inverted

        return inverted(self)

    def _combined(self, sign: str, other: object, *, is_right: bool = False) -> Any:
        from regard.masks._combine import combined  # it knows the two kinds

        return combined(sign, other, self) if is_right else combined(sign, self, other)

    def __bool__(self) -> NoReturn:
        raise ValueError(
            "the truth value of a sparse mask is ambiguous: compare its nnz, or write & for and, "
            "| for or, ~ for not"
        )

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("a sparse mask becomes a dense array only on request: call to_dense()")

    def __getstate__(self) -> tuple[Any, ...]:
        rows = self._rows.distinct()
        begin, end = rows.row_range()
        used = rows.starts[..., begin : end + 1]
        is_part = used.max(initial=0) - used.min(initial=0) < len(rows.spans)
        if is_part or rows.first_key or (rows.spans[:, 1] > self.shape[-1]).any():
            rows = _cells.rows_of(*self._cells())  # without arrays that only other views need
        return tuple(rows), self.shape[:-2], self._block

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        rows, planes, block = state
        rows = SparseRows(*rows)
        rows.check()
        self._set(rows.spread(planes), block)

    def __copy__(self) -> SparseMask:
        return self

    def __deepcopy__(self, _: Any) -> SparseMask:
        return self

    def __repr__(self) -> str:
        density = f"{self.density:.3%}" if self.size else "0%"
        return (
            f"{type(self).__name__}(shape={self.shape}, {density} visible, {self._stored()}, "
            f"{bytes_of(self.nbytes)})"
        )

    def _stored(self) -> str:
        """Describe the stored ranges or blocks."""
        raise NotImplementedError
