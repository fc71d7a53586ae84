"""Combine sets of integers that are stored as sorted and disjoint intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Bools = NDArray[np.bool_]


class Intervals(NamedTuple):
    """A set of integers as half-open intervals.

    Attributes
    ----------
    first, last : numpy.ndarray of int64
        The first integer of each interval, and the end after its last integer. The intervals are
        sorted and not empty, and neighboring intervals do not touch.
    """

    first: Integers
    last: Integers


def depths(
    first: Integers, last: Integers, weight: Integers | None = None
) -> tuple[Integers, Integers]:
    """Return where the number of covering intervals changes, and the numbers from there on.

    The intervals are in any order and may overlap. The last number is 0. With `weight`, every
    interval counts that often.
    """
    if weight is None:
        weight = np.ones(len(first), np.int64)
    points = np.concatenate([first, last])
    order = np.argsort(points, kind="stable")
    points = points[order]
    depth = np.cumsum(np.concatenate([weight, -weight])[order])
    is_last = np.ones(len(points), bool)
    np.not_equal(points[1:], points[:-1], out=is_last[:-1])
    return points[is_last], depth[is_last]


def chosen(points: Integers, is_chosen: Bools) -> Intervals:
    """Return the intervals between some of the points, which begin where `is_chosen` is True.

    The last point begins no interval.
    """
    before = np.zeros_like(is_chosen)
    before[1:] = is_chosen[:-1]
    return Intervals(points[is_chosen & ~before], points[before & ~is_chosen])


def union(first: Integers, last: Integers) -> Intervals:
    """Return the union of intervals in any order, which may overlap but are not empty."""
    points, depth = depths(first, last)
    return chosen(points, depth > 0)


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """Return the integers that are in both sets."""
    points, depth = depths(np.concatenate([a.first, b.first]), np.concatenate([a.last, b.last]))
    return chosen(points, depth == 2)


def complement(a: Intervals, whole: Intervals) -> Intervals:
    """Return the integers of `whole` that are not in `a`, which is a subset."""
    # Each gap begins at the begin of a whole interval or at the end of one of a, and ends likewise.
    first = np.sort(np.concatenate([whole.first, a.last]), kind="stable")
    last = np.sort(np.concatenate([a.first, whole.last]), kind="stable")
    is_gap = first < last
    return Intervals(first[is_gap], last[is_gap])


def contains(a: Intervals, points: Integers) -> Bools:
    """Return which points are in a set."""
    if not len(a.first):
        return np.zeros(points.shape, bool)
    at = np.searchsorted(a.first, points, "right") - 1
    return np.asarray((at >= 0) & (points < a.last[at]))


def counted(begin: Integers, count: Integers) -> Integers:
    """Return ``begin[i], begin[i] + 1, ...``, which are ``count[i]`` integers, for every ``i``."""
    ends = np.cumsum(count)
    total = int(ends[-1]) if len(ends) else 0
    numbers = np.arange(total)
    numbers += np.repeat(begin - (ends - count), count)
    return numbers


def runs(is_set: Bools) -> tuple[Integers, Integers, Integers]:
    """Return the runs of True in the rows of a matrix: row, first column, and end column."""
    edges = np.zeros((len(is_set), is_set.shape[1] + 2), np.int8)
    edges[:, 1:-1] = is_set
    change = np.diff(edges, axis=1)
    row, first = np.nonzero(change == 1)
    return row, first, np.nonzero(change == -1)[1]


def joined(first: Integers, last: Integers) -> Intervals:
    """Return sorted and disjoint intervals, which may touch or be empty, as intervals."""
    keep = first < last
    first, last = first[keep], last[keep]
    apart = np.ones(len(first) + 1, bool)
    np.not_equal(first[1:], last[:-1], out=apart[1:-1])
    return Intervals(first[apart[:-1]], last[apart[1:]])
