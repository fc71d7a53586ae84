"""Combine sets of integers that are stored as sorted and disjoint intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from regard._arguments.numbers import repeat

if TYPE_CHECKING:
    from collections.abc import Callable

    from regard._arguments.arrays import Bools, Integers


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


NOTHING = Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64))


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
    """Return the union of intervals in any order, which may overlap or be empty."""
    points, depth = depths(first, last)
    return chosen(points, depth > 0)


def combined(rule: Callable[[Bools, Bools], Bools], a: Intervals, b: Intervals) -> Intervals:
    """Return the integers for which `rule` is True of being in `a` and of being in `b`.

    The rule is False for integers that are in neither, as `numpy.logical_and` is.
    """
    points = np.sort(np.concatenate([*a, *b]), kind="stable")
    is_first = np.ones(len(points), bool)
    np.not_equal(points[1:], points[:-1], out=is_first[1:])
    points = points[is_first]
    return chosen(points, rule(contains(a, points), contains(b, points)))


def difference(a: Intervals, b: Intervals) -> Intervals:
    """Return the integers of `a` that are not in `b`."""
    return combined(np.greater, a, b)


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
    numbers = np.arange(total, dtype=np.int64)
    numbers += repeat(begin - (ends - count), count)
    return numbers


def runs(is_set: Bools) -> tuple[Integers, Integers, Integers]:
    """Return the runs of True in the rows of a matrix: row, first column, and end column."""
    edges = np.zeros((len(is_set), is_set.shape[1] + 2), np.int8)
    edges[:, 1:-1] = is_set
    change = np.diff(edges, axis=1)
    row, first = np.nonzero(change == 1)
    return row, first, np.nonzero(change == -1)[1]
