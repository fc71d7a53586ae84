"""The class of sparse masks: properties, views and operators, and `stack`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, SupportsIndex

import numpy as np

from regard._arguments.arrays import bytes_of, shown
from regard._arguments.keywords import refuses_unknown
from regard._arguments.numbers import count, iterated
from regard.masks import _cells, _grid
from regard.masks._cells import Cells
from regard.masks._intervals import Intervals
from regard.masks._rows import ALL_QUERIES, MOST_PAIRS, Layout, Reader, SparseRows, check_axes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import EllipsisType

    from regard._arguments.arrays import Bools, Place

    Block = tuple[int, int]
    Index = SupportsIndex | slice | EllipsisType | None

DEFAULT_BLOCK = (128, 128)

# Dense arrays above this size are refused unless `max_bytes` permits them.
_MOST_BYTES = 2**31
_PAIR = "pass a pair (sparse mask, float mask) as mask= to combine it with a float mask"


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

    _block: Block | None
    _rows: SparseRows
    _kinds: ClassVar[dict[bool, type[SparseMask]]] = {}

    def __init_subclass__(cls, *, has_blocks: bool | None = None) -> None:
        if has_blocks is not None:
            SparseMask._kinds[has_blocks] = cls

    def __init__(self) -> None:
        raise TypeError(
            "SparseMask has no constructor: build a mask with masks.Ranges or masks.Blocks"
        )

    def _set(self, rows: SparseRows, block: Block | None) -> None:
        for array in (rows.starts, rows.spans, rows.bits):
            array.flags.writeable = False
        self._rows, self._block = rows, block

    def _sparse_rows(self) -> SparseRows:
        """Return the arrays that the kernels read.

        A single query is a row that broadcasts, even if it is a view of one query of several.
        """
        if self.shape[-2] != 1 or self._rows.row_queries == ALL_QUERIES:
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
        return sum(array.nbytes for array in self._rows[:3])

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
            index = np.arange(math.prod(once.shape[:-2])).reshape(once.shape[:-2])
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
        view._rows, view._block = self._rows.part(index), self._block
        return view

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if self.ndim == 2:
            raise TypeError("a sparse mask with two axes has no parts to iterate over: use slices")
        return (self[i] for i in range(len(self)))

    def __and__(self, other: Any) -> Any:
        return self._combined(np.bitwise_and, other)

    def __or__(self, other: Any) -> Any:
        return self._combined(np.bitwise_or, other)

    def __xor__(self, other: Any) -> Any:
        return self._combined(np.bitwise_xor, other)

    __rand__, __ror__, __rxor__, __ne__ = __and__, __or__, __xor__, __xor__

    def __eq__(self, other: object) -> Any:
        different = self._combined(np.bitwise_xor, other)
        return different if different is NotImplemented else ~different

    def __invert__(self) -> Any:
        cells, layout = self._cells()
        inverse = _cells.combined(np.bitwise_xor, cells, _cells.everything(layout), layout)
        return wrapped(inverse, layout, self.shape[:-2])

    def _combined(self, rule: np.ufunc, other: object) -> Any:
        """Combine this mask with another, or return NotImplemented for other classes."""
        operand = _arrays_of(other, self)
        if operand is None:
            return NotImplemented
        pair = (self._rows, self._block), operand
        shapes = [rows.shape for rows, _ in pair]
        for shape in shapes:
            check_axes("a sparse mask that is combined", shape)
        try:
            planes = np.broadcast_shapes(*(shape[:-2] for shape in shapes))
            (q_len,) = np.broadcast_shapes(*(shape[-2:-1] for shape in shapes))
        except ValueError:
            raise ValueError(
                "the batch, heads and query axes of two masks must broadcast, got shapes "
                f"{shapes[0]} and {shapes[1]}"
            ) from None
        once = [rows.distinct() for rows, _ in pair]
        layout = Layout(
            np.broadcast_shapes(*(rows.shape[:-2] for rows in once)),
            q_len,
            max(shape[-1] for shape in shapes),
            _common_block(block for _, block in pair),
        )
        a, b = (
            _grid.cells_on(rows, block, layout) for rows, (_, block) in zip(once, pair, strict=True)
        )
        return wrapped(_cells.combined(rule, a, b, layout), layout, planes)

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


@refuses_unknown
def stack(masks: Sequence[SparseMask]) -> SparseMask:
    """Stack sparse masks along a new first axis, for example the masks of the heads.

    Parameters
    ----------
    masks : sequence of SparseMask
        One or more masks with the same shape.

    Returns
    -------
    Ranges or Blocks
        The shape is ``(len(masks), *shape)``. The result is `Ranges` if all masks are `Ranges`;
        otherwise it has the largest of the blocks.

    Raises
    ------
    TypeError
        If an element of `masks` is not a sparse mask.
    ValueError
        If `masks` is empty, or the shapes differ.

    Examples
    --------
    A causal window of one, two and three keys for the three heads:

    >>> import regard
    >>> heads = [regard.masks.sliding(6, window=(n, 0)) for n in range(3)]
    >>> regard.masks.stack(heads).shape
    (3, 6, 6)
    """
    given = iterated("masks", masks, "a sequence of sparse masks")
    if not given:
        raise ValueError("masks must contain at least one mask, got none")
    for i, mask in enumerate(given):
        if not isinstance(mask, SparseMask):
            raise TypeError(f"masks[{i}] must be a sparse mask, got {shown(mask)}")
        if mask.shape != given[0].shape:
            raise ValueError(
                f"masks must have one shape, got {given[0].shape} and masks[{i}] with {mask.shape}"
            )
    layout = Layout.of(given[0].shape, _common_block(mask._block for mask in given))
    stacked = layout._replace(planes=(len(given), *layout.planes))
    stacked.check()
    parts = [_grid.cells_on(mask._rows, mask._block, layout) for mask in given]
    moved, bits = [], 0
    for i, part in enumerate(parts):
        line = i * layout.line
        whole = part.whole.first + line, part.whole.last + line
        moved.append((*whole, part.place + line, part.number + bits))
        bits += len(part.bits)
    first, last, place, number = map(np.concatenate, zip(*moved, strict=True))
    cells = Cells(
        Intervals(first, last), place, number, np.concatenate([part.bits for part in parts])
    )
    return wrapped(cells, stacked)


def of_rows(rows: SparseRows, block: Block | None) -> SparseMask:
    """Return `Blocks` with blocks of the given size, or `Ranges` for None."""
    mask: SparseMask = object.__new__(SparseMask._kinds[block is not None])
    mask._set(rows, block)
    return mask


def wrapped(cells: Cells, layout: Layout, planes: tuple[int, ...] | None = None) -> SparseMask:
    """Return a mask of the layout's kind, broadcast to `planes` if they are given."""
    rows = _cells.rows_of(cells, layout)
    return of_rows(rows if planes is None else rows.spread(planes), layout.block)


def _common_block(blocks: Iterable[Block | None]) -> Block | None:
    """Return the largest of the blocks, or the first of several equally large blocks."""
    return max(filter(None, blocks), key=math.prod, default=None)


def _arrays_of(value: Any, other: SparseMask) -> tuple[SparseRows, Block | None] | None:
    """Return the arrays and the blocks of an operand, or None for a class that is not a mask.

    The keys of a dense mask broadcast to the keys of `other`.
    """
    if isinstance(value, SparseMask):
        return value._rows, value._block
    if not isinstance(value, np.ndarray | np.generic | bool):
        return None
    dense = np.asarray(value)
    if dense.dtype != np.bool_:
        advice = (
            "use mask.astype(bool) if 1 means may attend" if dense.dtype.kind in "iu" else _PAIR
        )
        raise TypeError(f"a sparse mask combines with bool masks, got {dense.dtype}: {advice}")
    check_axes("a mask", dense.shape)
    dense = np.atleast_2d(dense)
    if dense.shape[-1] == 1:
        kv_len = other.shape[-1]
        return _grid.rows_of_ranges(np.array(0), kv_len * dense[..., 0], kv_len), None
    block = other._block or DEFAULT_BLOCK
    return _grid.rows_of_dense(dense, block), block
