"""Build sparse masks of trees of tokens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np

from regard._arguments.keywords import refuses_unknown
from regard._arguments.numbers import count, integers
from regard.masks import _cells, _intervals
from regard.masks._combine import wrapped
from regard.masks._ranges import Ranges
from regard.masks._rows import Layout

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


@refuses_unknown
def tree(parents: ArrayLike, *, past: SupportsIndex = 0) -> Ranges:
    """Let each node of a tree attend to itself and its ancestors, as in speculative decoding.

    Parameters
    ----------
    parents : array_like of int, shape (n,) or (*batch, n)
        The parent of each node, which precedes it: ``parents[i] < i``, or -1 for a root. A tree may
        have several roots.
    past : int, default 0
        Number of keys before the tree, which all nodes see.

    Returns
    -------
    Ranges
        The shape is ``(n, past + n)``, or ``(*batch, 1, n, past + n)`` with batch axes.

    Raises
    ------
    TypeError
        If `parents` or `past` are not integers.
    ValueError
        If `parents` has no axis, a parent does not precede its node, or `past` is negative.

    Examples
    --------
    Two drafts of two tokens each, after one token that both continue:

    >>> import regard
    >>> regard.masks.tree([-1, 0, 1, 0, 3]).to_dense().astype(int)
    array([[1, 0, 0, 0, 0],
           [1, 1, 0, 0, 0],
           [1, 1, 1, 0, 0],
           [1, 0, 0, 1, 0],
           [1, 0, 0, 1, 1]])
    """
    before = count("past", past)
    given = integers("parents", parents, "an integer array")
    if given.ndim == 0:
        raise ValueError("parents must have one number for each node, got a single number")
    nodes = given.shape[-1]
    wrong = (given < -1) | (given >= np.arange(nodes))
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise ValueError(
            f"parents must precede their nodes, or be -1, got {given[at]} for node {at[-1]}"
        )
    batch = given.shape[:-1]
    layout = Layout((*batch, 1) if batch else (), nodes, before + nodes, None)
    layout.check()
    plane = np.repeat(np.arange(math.prod(batch)), nodes) * nodes
    parent = np.where(given.ravel() < 0, -1, plane + given.ravel().astype(np.int64))
    row, first, last = _lineages(parent, layout)
    key = before + first % max(nodes, 1)
    own = np.arange(parent.size)  # the keys before the tree
    start = np.concatenate([row, own]) * layout.step
    begin = start + np.concatenate([key, np.zeros_like(own)])
    end = start + np.concatenate([key + last - first, np.full_like(own, before)])
    order = np.argsort(begin, kind="stable")
    whole = _intervals.joined(begin[order], end[order])
    mask = wrapped(_cells.only_whole(whole, layout), layout)
    assert isinstance(mask, Ranges)
    return mask


def _lineages(
    parent: NDArray[np.int64], layout: Layout
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the ancestors of each node, and the node itself, as intervals: node, first, end."""
    nodes = np.arange(len(parent))
    # If every node follows its parent, the ancestors are neighbors.
    chain = np.maximum.accumulate(np.where(parent == nodes - 1, 0, nodes))
    rows, firsts, lasts = [], [], []
    row, at = nodes, nodes
    count = 0
    while len(row):
        count += len(row)
        layout.check(count)
        rows.append(row)
        firsts.append(chain[at])
        lasts.append(at + 1)
        above = parent[chain[at]]
        row, at = row[above >= 0], above[above >= 0]
    if not rows:
        return nodes, nodes, nodes
    return np.concatenate(rows), np.concatenate(firsts), np.concatenate(lasts)
