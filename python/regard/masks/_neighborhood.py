"""Build sparse masks of neighborhoods in grids of one to three axes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex

import numpy as np

from regard._arguments.keywords import refuses_unknown
from regard._arguments.numbers import count, flag
from regard.masks import _cells, _intervals
from regard.masks._combine import wrapped
from regard.masks._ranges import Ranges
from regard.masks._rows import Layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


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
    sizes = _numbers("shape", shape, None)
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"shape must have one to three axes, got {len(sizes)}")
    windows, steps = (
        _numbers(name, value, len(sizes))
        for name, value in (("window", window), ("dilation", dilation))
    )
    causal = _flags(is_causal, len(sizes))
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
    mask = wrapped(_cells.only_whole(_product(sizes, axes, layout), layout), layout)
    assert isinstance(mask, Ranges)
    return mask


class _Neighbors(NamedTuple):
    """The neighbors of the tokens of an axis.

    Attributes
    ----------
    first, last : numpy.ndarray of int64, shape (size, n)
        The neighbors of each token as intervals, in order. Some may be empty.
    """

    first: Integers
    last: Integers


def _neighbors(size: int, window: int, dilation: int, is_causal: bool) -> _Neighbors:
    token = np.arange(size)
    # Tokens with the same remainder form a separate axis.
    at, remainder = token // dilation, token % dilation
    if is_causal:
        begin = np.maximum(at - window + 1, 0)
        end = at + 1
    else:
        own_size = (size - remainder + dilation - 1) // dilation
        left = window // 2
        begin = np.clip(at, left, own_size - window + left) - left
        end = begin + window
    if dilation == 1:
        return _Neighbors(begin[:, None], end[:, None])
    neighbor = begin[:, None] + np.arange(window)
    first = neighbor * dilation + remainder[:, None]
    return _Neighbors(first, first + (neighbor < end[:, None]))


def _product(sizes: Sequence[int], axes: Sequence[_Neighbors], layout: Layout) -> Any:
    """Return the neighborhoods in the grid as intervals on the line of the layout."""
    first, last = axes[-1]
    for i in reversed(range(len(sizes) - 1)):
        row, key = _each(axes[i])
        inner = math.prod(sizes[i + 1 :])
        # Dimensions: token on this axis, token within, neighbor on this axis, neighbors within.
        start = key[:, None, :, None] * inner
        exists = row[:, None, :, None]
        shape = (sizes[i] * inner, -1)
        first, last = (
            (start + first[None, :, None, :]).reshape(shape),
            np.where(exists, start + last[None, :, None, :], 0).reshape(shape),
        )
    line = np.arange(layout.q_len)[:, None] * layout.step
    exists = first < last
    return _intervals.joined((line + first)[exists], (line + last)[exists])


def _each(axis: _Neighbors) -> tuple[NDArray[np.bool_], Integers]:
    """Return the neighbors of each token one by one: whether they exist, and which they are."""
    if axis.first.shape[1] > 1:
        return axis.first < axis.last, axis.first
    most = int((axis.last - axis.first).max())
    key = axis.first + np.arange(most)
    return key < axis.last, key


def _numbers(name: str, value: Any, axes: int | None) -> tuple[int, ...]:
    if not hasattr(value, "__len__"):
        return (count(name, value, 1),) * (axes or 1)
    if isinstance(value, str | bytes | dict):
        raise TypeError(f"{name} must be an int or a sequence of int, got {type(value).__name__}")
    if axes is not None and len(value) != axes:
        raise ValueError(f"{name} must have one number for each of {axes} axes, got {len(value)}")
    return tuple(count(f"{name}[{i}]", each, 1) for i, each in enumerate(value))


def _flags(value: Any, axes: int) -> tuple[bool, ...]:
    if not hasattr(value, "__len__"):
        return (flag("is_causal", value),) * axes
    if len(value) != axes:
        raise ValueError(f"is_causal must have one bool for each of {axes} axes, got {len(value)}")
    return tuple(flag(f"is_causal[{i}]", each) for i, each in enumerate(value))
