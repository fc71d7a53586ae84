"""Build sparse masks from lists of blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from regard.masks import _grid
from regard.masks._blocks import Blocks
from regard.masks._combine import wrapped
from regard.masks._rows import Layout

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Bools = NDArray[np.bool_]
    Listed = tuple[Integers, Integers, Integers]


def from_lists(
    shape: tuple[int, ...],
    block: tuple[int, int],
    whole: Listed,
    partial: Listed,
    visible_at: Callable[[Integers, Integers, Integers], Bools],
) -> Blocks:
    """Return a mask of whole blocks, and of blocks whose visible pairs a function determines.

    Parameters
    ----------
    shape : tuple of int
        The shape of the mask.
    block : tuple of two int
        The queries and keys of a block.
    whole, partial : tuple of three arrays of int64
        The plane, the block row and the block column of each block, in any order. Blocks outside
        the mask are left out. A block in both lists is whole.
    visible_at : callable
        Called with the planes, the first queries and the first keys of n blocks. Returns which
        keys the queries see, shape ``(n, *block)``. Elements outside the mask are not used.
    """
    layout = Layout.of(shape, block)
    layout.check()
    q_len, kv_len = layout.q_len, layout.kv_len

    def inside(plane: Integers, query: Integers, key: Integers) -> Bools:
        rows = query[:, None] + np.arange(block[0]) < q_len
        keys = key[:, None] + np.arange(block[1]) < kv_len
        visible: Bools = visible_at(plane, query, key) & rows[:, :, None] & keys[:, None, :]
        return visible

    full = _places(whole, layout)
    cells = _grid.classified(np.setdiff1d(_places(partial, layout), full), layout, inside)
    seen = _grid.joined(_grid.blocks_at(full, layout), cells.whole)
    mask = wrapped(cells._replace(whole=seen), layout)
    assert isinstance(mask, Blocks)
    return mask


def _places(listed: Listed, layout: Layout) -> Integers:
    """Return the first keys of the blocks on the line of the layout, sorted and distinct."""
    assert layout.block is not None
    plane, row, column = listed
    key = column * layout.block[1]
    keep = (row < layout.rows) & (key < layout.kv_len)
    return np.unique(((plane * layout.rows + row) * layout.step + key)[keep])
