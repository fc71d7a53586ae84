"""Combine sparse masks with each other and with dense masks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import shown
from regard._arguments.keywords import refuses_unknown
from regard._arguments.numbers import iterated
from regard.masks import _cells, _grid
from regard.masks._blocks import DEFAULT_BLOCK, Blocks
from regard.masks._ranges import Ranges
from regard.masks._rows import Layout, check_axes
from regard.masks._sparse import SparseMask

if TYPE_CHECKING:
    from collections.abc import Sequence

_PAIR = "pass a pair (sparse mask, float mask) as mask= to combine it with a float mask"


def combined(sign: str, left: Any, right: Any) -> Any:
    """Return ``left & right``, ``left | right`` or ``left ^ right``.

    At least one of the two is a sparse mask. NotImplemented is returned for other classes.
    """
    sparse = left if isinstance(left, SparseMask) else right
    a, b = _as_sparse(left, sparse), _as_sparse(right, sparse)
    if a is None or b is None:
        return NotImplemented
    for mask in (a, b):
        check_axes("a sparse mask that is combined", mask.shape)
    try:
        planes = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        (q_len,) = np.broadcast_shapes(a.shape[-2:-1], b.shape[-2:-1])
    except ValueError:
        raise ValueError(
            "the batch, heads and query axes of two masks must broadcast, got shapes "
            f"{a.shape} and {b.shape}"
        ) from None
    once = [mask._rows.distinct() for mask in (a, b)]
    distinct = np.broadcast_shapes(*(rows.planes for rows in once))
    layout = Layout(distinct, q_len, max(a.shape[-1], b.shape[-1]), common_block([a, b]))
    first = _grid.cells_on(once[0], a._block, layout)
    second = _grid.cells_on(once[1], b._block, layout)
    if sign == "&":
        cells = _cells.intersection(first, second)
    elif sign == "|":
        cells = _cells.union(first, second, layout)
    else:
        cells = _cells.difference(first, second, layout)
    return wrapped(cells, layout, planes)


def inverted(mask: SparseMask) -> SparseMask:
    """Return ``~mask``."""
    cells, layout = mask._cells()
    return wrapped(_cells.complement(cells, layout), layout, mask.shape[:-2])


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
    shape = given[0].shape
    layout = Layout.of(shape, common_block(given))
    parts = [
        _cells.rows_of(_grid.cells_on(each._rows, each._block, layout), layout) for each in given
    ]
    spans = np.concatenate([part.spans for part in parts])
    span_count = bit_count = 0
    starts = []
    for part in parts:
        starts.append(part.starts + span_count)
        own = spans[span_count : span_count + len(part.spans), 2]
        own[own >= 0] += bit_count
        span_count, bit_count = span_count + len(part.spans), bit_count + len(part.bits)
    rows = parts[0]._replace(
        starts=np.stack(starts),
        spans=spans,
        bits=np.concatenate([part.bits for part in parts]),
        shape=(len(parts), *shape),
    )
    return of_rows(rows, layout.block)


def common_block(masks: Sequence[SparseMask]) -> tuple[int, int] | None:
    """Return the largest of the blocks, or the first of several equally large blocks."""
    blocks = [mask._block for mask in masks if mask._block]
    return max(blocks, key=lambda block: block[0] * block[1], default=None)


def as_blocks(mask: SparseMask, block: tuple[int, int]) -> SparseMask:
    """Return a mask with blocks of the given size."""
    once = mask._rows.distinct()
    layout = Layout.of(once.shape, block)
    return wrapped(_grid.cells_on(once, mask._block, layout), layout, mask.shape[:-2])


def wrapped(
    cells: _cells.Cells, layout: Layout, planes: tuple[int, ...] | None = None
) -> SparseMask:
    """Return a mask of the layout's kind, broadcast to `planes` if they are given."""
    rows = _cells.rows_of(cells, layout)
    return of_rows(rows if planes is None else rows.spread(planes), layout.block)


def of_rows(rows: Any, block: tuple[int, int] | None) -> SparseMask:
    """Return `Blocks` with blocks of the given size, or `Ranges` for None."""
    mask: SparseMask = object.__new__(Ranges if block is None else Blocks)
    mask._set(rows, block)
    return mask


def _as_sparse(value: Any, other: SparseMask) -> SparseMask | None:
    """Return an operand as a sparse mask, or None for a class that is not a mask.

    The keys of a dense mask broadcast to the keys of `other`.
    """
    if isinstance(value, SparseMask):
        return value
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
        return Ranges(0, np.where(dense[..., 0], kv_len, 0), kv_len=kv_len)
    return Blocks.from_dense(dense, block=other._block or DEFAULT_BLOCK)
