"""Build sparse masks of trees of tokens, and of neighborhoods in grids of tokens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from regard._arguments.keywords import refuses_unknown
from regard._arguments.numbers import count, flag, integers
from regard.masks import _cells, _intervals
from regard.masks._ranges import Ranges
from regard.masks._rows import Layout
from regard.masks._sparse import wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from regard._arguments.arrays import Integers


@refuses_unknown
def neighborhood(
    shape: SupportsIndex | Sequence[SupportsIndex],
    window: SupportsIndex | Sequence[SupportsIndex],
    *,
    dilation: SupportsIndex | Sequence[SupportsIndex] = 1,
    is_causal: bool | Sequence[bool] = False,
) -> Ranges:
    """Let each token of a grid attend to its neighborhood, as in NATTEN.

    A token sees `window` tokens on each axis: ``window // 2`` before it, itself, and the others
    after it. At the edges of the grid, the window is moved inside, so that every token sees the
    same number of tokens. With `dilation`, the neighbors on an axis are `dilation` apart.

    Parameters
    ----------
    shape : int or sequence of one to three int
        The size of the grid, for example ``(height, width)`` for an image. The tokens are the
        elements of the grid in row-major order.
    window : int or sequence of int
        The number of neighbors on each axis, including the token itself. One int applies to all
        axes.
    dilation : int or sequence of int, default 1
        The distance of neighbors on each axis.
    is_causal : bool or sequence of bool, default False
        The axes on which a token sees the last `window` tokens up to itself. At the beginning of
        such an axis, it sees fewer.

    Returns
    -------
    Ranges
        The shape is ``(n, n)`` for ``n = math.prod(shape)`` tokens.

    Raises
    ------
    TypeError
        If `shape`, `window` or `dilation` are not integers, or `is_causal` is not bool.
    ValueError
        If the numbers of axes differ, a number is less than 1, or ``window * dilation`` exceeds the
        size of an axis.

    Examples
    --------
    >>> import regard
    >>> regard.masks.neighborhood(5, 3).to_dense().astype(int)
    array([[1, 1, 1, 0, 0],
           [1, 1, 1, 0, 0],
           [0, 1, 1, 1, 0],
           [0, 0, 1, 1, 1],
           [0, 0, 1, 1, 1]])
    >>> image = regard.masks.neighborhood((64, 64), 7)
    >>> image.shape, image.nnz == 64 * 64 * 7 * 7
    ((4096, 4096), True)
    """
    sizes = _by_axis("shape", shape, None, int)
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"shape must have one to three axes, got {len(sizes)}")
    windows, steps = (
        _by_axis(name, value, len(sizes), int)
        for name, value in (("window", window), ("dilation", dilation))
    )
    causal = _by_axis("is_causal", is_causal, len(sizes), bool)
    for axis, (size, wide, step) in enumerate(zip(sizes, windows, steps, strict=True)):
        if wide * step > size:
            raise ValueError(
                f"window * dilation must be at most the size of the grid, got {wide} * {step} for "
                f"{size} tokens on axis {axis}"
            )
    tokens = math.prod(sizes)
    layout = Layout((), tokens, tokens, None)
    layout.check(tokens * math.prod(windows[:-1]) * (windows[-1] if steps[-1] > 1 else 1))
    axes = [_neighbors(*each) for each in zip(sizes, windows, steps, causal, strict=True)]
    begin, end, key = axes[-1]
    first, length = (key, key < end) if steps[-1] > 1 else (begin, end - begin)
    for _, end, key in axes[-2::-1]:
        # Dimensions: token on this axis, token within, neighbor on this axis, neighbors within.
        shape = (len(key) * len(first), -1)
        of_axis = key[:, None, :, None] * len(first)
        length = ((key < end)[:, None, :, None] * length[:, None, :]).reshape(shape)
        first = (of_axis + first[:, None, :]).reshape(shape)
    start = np.arange(tokens)[:, None] * layout.step + first
    whole = _intervals.union(start.ravel(), (start + length).ravel())
    return wrapped(_cells.only_whole(whole, layout), layout)  # type: ignore[return-value]


def _neighbors(
    size: int, window: int, dilation: int, is_causal: bool
) -> tuple[Integers, Integers, Integers]:
    """Return the neighbors of each token of an axis: their begin and end, and one by one.

    The shapes are ``(size, 1)``, ``(size, 1)`` and ``(size, window)``. Neighbors from the end on do
    not exist.
    """
    token = np.arange(size)[:, None]
    # Tokens with the same remainder form a separate axis.
    at, remainder = token // dilation, token % dilation
    if is_causal:
        begin, end = np.maximum(at - window + 1, 0), at + 1
    else:
        own_size = (size - remainder + dilation - 1) // dilation
        left = window // 2
        begin = np.clip(at, left, own_size - window + left) - left
        end = begin + window
    key = (begin + np.arange(window)) * dilation + remainder
    return begin, end * dilation, key


def _by_axis(name: str, value: Any, axes: int | None, kind: type) -> tuple[Any, ...]:
    """Return the positive int or the bool of each axis, or raise TypeError or ValueError."""

    def checked(own: str, each: Any) -> int | bool:
        return flag(own, each) if kind is bool else count(own, each, 1)

    if not hasattr(value, "__len__"):
        return (checked(name, value),) * (axes or 1)
    if isinstance(value, str | bytes | dict):
        of = kind.__name__
        raise TypeError(
            f"{name} must be one {of} or a sequence of {of}, got {type(value).__name__}"
        )
    if axes is not None and len(value) != axes:
        raise ValueError(f"{name} must have one element for each of {axes} axes, got {len(value)}")
    return tuple(checked(f"{name}[{i}]", each) for i, each in enumerate(value))


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
    whole = _intervals.union(begin, end)
    return wrapped(_cells.only_whole(whole, layout), layout)  # type: ignore[return-value]


def _lineages(parent: Integers, layout: Layout) -> tuple[Integers, Integers, Integers]:
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
