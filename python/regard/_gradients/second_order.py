"""The gradients of gradients, for the queries of one block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard._attention.stages import matmul
from regard._gradients.blocks import column_of
from regard._random.philox import Dropout, dropout_factors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard._arguments.masks import Masks
    from regard._arguments.positions import Positions
    from regard._gradients.blocks import ScoreBlock

    Array = NDArray[Any]


class Factor(NamedTuple):
    """Rows of numbers that are summed with weights."""

    rows: Array
    loose: NDArray[np.bool_] | None
    """Which rows contain NaN or infinity, which only affect rows that see them; None if none do."""

    @classmethod
    def of(cls, rows: Array) -> Factor:
        """Find the rows that contain NaN or infinity."""
        loose = np.asarray(~np.isfinite(rows).all(axis=-1))
        return cls(rows, loose if loose.any() else None)

    def part(self, within: slice) -> Factor:
        """Return some of the rows."""
        return Factor(self.rows[within], None if self.loose is None else self.loose[within])

    def clean(self) -> Array:
        """Return the rows, with zeros in place of rows that contain NaN or infinity."""
        return self.rows if self.loose is None else np.where(self.loose[:, None], 0, self.rows)


class KeyRows(NamedTuple):
    """The arrays of one key head, with a row for each key."""

    key: Factor
    value: Factor
    tangent_key: Factor
    """The cotangent of the gradient of the keys."""
    tangent_value: Factor

    def part(self, within: slice) -> KeyRows:
        """Return the rows of some keys."""
        return KeyRows(*(factor.part(within) for factor in self))


class QueryRows(NamedTuple):
    """The arrays of one head, with a row for each query. Numbers are columns."""

    query: Array
    """The queries, times the scale."""
    tangent: Array
    """The cotangent of the gradient of the queries, times the scale."""
    grad_output: Array
    delta: Array
    """The sum of grad_output times output, less the gradient of lse."""
    lse: Array
    sink_weight: Array
    """The share of a sink in the sum of weights, which is 1."""

    def part(self, within: slice) -> QueryRows:
        """Return the rows of some queries."""
        return QueryRows(*(rows[within] for rows in self))


class Scoring(NamedTuple):
    """The options from which the scores and the weights of one head are computed."""

    positions: Positions
    masks: Masks
    softcap: float
    """Infinity for none."""
    slope: float
    """The slope of ALiBi; 0 for none."""
    distances: Array | None
    """A bias for each distance; None for none."""
    dropout: Dropout | None
    """The options of dropout, with the origin of this head."""

    def alibi(self, block: ScoreBlock, dtype: np.dtype[Any]) -> Array:
        """Return the ALiBi penalties of a block's scores, as a view of a small array."""
        penalties = self.slope * np.abs(block.behind(self.positions))
        return block.by_distance(penalties.astype(dtype))

    def distance_bias(self, table: Array, block: ScoreBlock, dtype: np.dtype[Any]) -> Array:
        """Return the biases of a table of distances, likewise."""
        column = column_of(block.behind(self.positions), len(table))
        return block.by_distance(table[column].astype(dtype))

    def factors(self, block: ScoreBlock, dtype: np.dtype[Any]) -> Array | None:
        """Return the factors by which dropout multiplies the weights of a block."""
        if self.dropout is None:
            return None
        start = int(self.positions.query_offset) + block.rows.start
        positions = range(start, start + block.shape[0])
        return dropout_factors(self.dropout, positions=positions, keys=block.keys, dtype=dtype)


class BlockGradients(NamedTuple):
    """The gradients of the queries of a block, and its contributions to the gradients of the keys.

    The contributions are transposed, (dim, keys), as are the products that form them.
    """

    grad_output: Array
    query: Array
    key: Array
    value: Array


class Workspace:
    """Memory for arrays of scores, reused by one block after another."""

    _ARRAYS = 5

    def __init__(self, most_scores: int, dtype: np.dtype[Any], threads: int | None) -> None:
        self._memory = np.empty((self._ARRAYS, most_scores), dtype)
        self.threads = threads

    def arrays(self, block: ScoreBlock) -> list[Array]:
        """Return five uninitialized arrays for the scores of a block."""
        rows, keys = block.shape
        return [part[: rows * keys].reshape(rows, keys) for part in self._memory]

    def product(self, a: Array, b: Array, out: Array | None = None) -> Array:
        """Multiply matrices, with the threads of the call."""
        return matmul(a, b, out=out, threads=self.threads)

    def over_keys(self, weights: Array, keys: Factor, seen: Array | None) -> Array:
        """Sum weights[i, j] keys[j] over the j that i sees: (rows, dim)."""
        total = self.product(weights, keys.rows if seen is None else keys.clean())
        _add_loose(total, weights, keys, seen)
        return total

    def over_queries(self, weights: Array, queries: Factor, seen: Array | None) -> Array:
        """Sum weights[i, j] queries[i] over the i that see j: (dim, keys)."""
        rows = queries.rows if seen is None else queries.clean()
        total = self.product(np.ascontiguousarray(rows.T), weights)
        _add_loose(total.T, weights.T, queries, None if seen is None else seen.T)
        return total


def _add_loose(total: Array, weights: Array, factor: Factor, seen: Array | None) -> None:
    """Add the rows that contain NaN or infinity only to the sums that see them."""
    if seen is None or factor.loose is None:
        return
    for i in np.flatnonzero(factor.loose & seen.any(axis=0)):
        sees = seen[:, i]
        total[sees] += weights[sees, i, None] * factor.rows[i]


def _kept(seen: Array | None, dtype: np.dtype[Any]) -> Array | None:
    """Return integers with all bits set where a key is seen, and 0 elsewhere, for fast hiding."""
    return None if seen is None else -seen.astype(f"i{dtype.itemsize}")


def _hide(array: Array, kept: Array | None) -> None:
    """Replace hidden elements, which may be NaN, by 0."""
    if kept is not None:
        bits = array.view(kept.dtype)
        np.bitwise_and(bits, kept, out=bits)


def _row_sums(array: Array) -> Array:
    sums: Array = np.sum(array, axis=-1, keepdims=True)
    return sums


def gradients_of_block(
    rows: QueryRows, keys: KeyRows, block: ScoreBlock, scoring: Scoring, memory: Workspace
) -> BlockGradients:
    r"""Compute the gradients of one block and its contributions.

    T is the tangent of the scores along the cotangents of the gradients of query and key, and w is
    the cotangent of the gradient of value. With r = rowsum(P T),

    .. math:: W = P \circ (T - r), \qquad Y = dS \circ (T - r) + P \circ Z \circ (G w^T), \qquad
              X = Y - P\, \mathrm{rowsum}(Y), \\
              \mathrm{gradient\;of\;} G = (W \circ Z)\, V + (P \circ Z)\, w

    This X is P (X0 - rowsum(P X0)) for X0 = (dP - D) T - r dP + Z (G w^T): the two differ by D r,
    which the row sum removes. In this form, the row sums of W and X are 0 up to the rounding of
    their own terms, which are small, so the common component of all values or all keys cancels.

    A sink is an additional key with a weight, a constant score and a value of 0. It contributes to
    the row sums, with W = -P r and Y = P D r.
    """
    seen = block.seen
    weights, tangents, centered, of_weights, of_scores = memory.arrays(block)
    dtype = weights.dtype
    kept = _kept(seen, dtype)
    grad_output = Factor.of(rows.grad_output)
    factors = scoring.factors(block, dtype)

    # The scores and their tangents, before and after the cap.
    memory.product(rows.query, keys.key.rows.T, out=weights)
    memory.product(rows.tangent, keys.key.rows.T, out=tangents)
    tangents += memory.product(rows.query, keys.tangent_key.rows.T, out=centered)
    slope = bend = None
    if np.isfinite(scoring.softcap):
        slope, bend = _cap(weights, tangents, scoring.softcap)

    # The weights; T - r; and W in `centered`.
    if scoring.slope:
        weights -= scoring.alibi(block, dtype)
    if scoring.distances is not None:
        weights += scoring.distance_bias(scoring.distances, block, dtype)
    bias = scoring.masks.at((block.rows, block.keys)).bias
    if bias is not None:
        np.add(weights, bias, out=weights, casting="same_kind")
    weights -= rows.lse
    np.minimum(weights, 0, out=weights)  # no weight is above 1, however lse is rounded
    np.exp(weights, out=weights)
    _hide(weights, kept)
    np.multiply(weights, tangents, out=centered)
    _hide(centered, kept)
    mean = _row_sums(centered)
    tangents -= mean
    np.multiply(weights, tangents, out=centered)
    _hide(centered, kept)
    # The rounding residual, which would be multiplied by the common component of the values.
    rest = _row_sums(centered) - rows.sink_weight * mean
    mean += rest
    tangents -= rest
    np.multiply(weights, tangents, out=centered)
    _hide(centered, kept)

    # The products with the values. `of_scores` is dS, and `of_weights` is Z (G w^T).
    memory.product(rows.grad_output, keys.value.rows.T, out=of_scores)
    memory.product(rows.grad_output, keys.tangent_value.rows.T, out=of_weights)
    shown = weights
    if factors is not None:
        of_scores *= factors
        of_weights *= factors
        centered *= factors
        shown = factors
        shown *= weights
    along = memory.over_keys(centered, keys.value, seen)
    along += memory.over_keys(shown, keys.tangent_value, seen)
    grad_value = memory.over_queries(centered, grad_output, seen)
    of_scores -= rows.delta
    of_scores *= weights

    # Y, and then X, in place of `of_weights`.
    of_weights *= weights
    tangents *= of_scores
    of_weights += tangents
    _hide(of_weights, kept)
    inner = _row_sums(of_weights) + rows.sink_weight * rows.delta * mean
    of_weights -= np.multiply(weights, inner, out=tangents)
    if slope is not None:
        of_weights *= slope
        bend *= of_scores
        of_weights += bend
        of_scores *= slope
    _hide(of_weights, kept)
    _hide(of_scores, kept)
    grad_query = memory.over_keys(of_weights, keys.key, seen)
    grad_query += memory.over_keys(of_scores, keys.tangent_key, seen)
    grad_key = memory.over_queries(of_weights, Factor.of(rows.query), seen)
    grad_key += memory.over_queries(of_scores, Factor.of(rows.tangent), seen)
    return BlockGradients(along, grad_query, grad_key, grad_value)


def _cap(scores: Array, tangents: Array, softcap: float) -> tuple[Array, Array]:
    """Cap scores and their tangents in place.

    Returns the first derivative of the cap, and the second derivative times the tangents before the
    cap.
    """
    scores /= softcap
    np.tanh(scores, out=scores)
    slope = (1 - scores) * (1 + scores)
    tangents *= slope
    bend = tangents * scores
    bend *= -2 / softcap
    scores *= softcap
    return slope, bend
