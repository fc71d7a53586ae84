"""The gradients of gradients, summed over blocks, heads and batch entries."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard._arguments.arrays import part_at
from regard._gradients.blocks import Visibility, most_scores
from regard._gradients.second_order import (
    Factor,
    KeyRows,
    QueryRows,
    Scoring,
    Workspace,
    gradients_of_block,
)
from regard._random.philox import dropout_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard._attention.check import CheckedCall

    Array = NDArray[Any]
    Entry = tuple[int, ...]


class Inputs(NamedTuple):
    """Checked arrays with axes (batch..., heads, length, dim), some of which may be missing.

    Arrays with one number per query have no last axis.
    """

    grad_output: Array
    query: Array
    key: Array
    value: Array
    tangent_query: Array
    tangent_key: Array
    tangent_value: Array
    output: Array
    lse: Array
    grad_lse: Array | None


def second_order_sums(call: CheckedCall, inputs: Inputs) -> tuple[Array, ...]:
    """Return the gradients with respect to grad_output, query, key and value.

    They are computed in the arithmetic of the call and have the types of these inputs.
    """
    differentiated = inputs[:4]
    totals = [np.zeros(array.shape, call.arithmetic) for array in differentiated]
    sums = _Sums(call, inputs, totals)
    with np.errstate(all="ignore"):
        for place, entry in call.entries():
            for kv_head in range(call.sizes.kv_heads):
                sums.add_group(place, entry, kv_head)
    return tuple(
        total.astype(array.dtype, copy=False)
        for total, array in zip(totals, differentiated, strict=True)
    )


class _Sums:
    """The sums of a call, to which the query heads of one key head at a time are added."""

    def __init__(self, call: CheckedCall, inputs: Inputs, totals: list[Array]) -> None:
        self.inputs, self.sizes, self.totals = inputs, call.sizes, totals
        self.dtype = call.arithmetic
        self.default_scale = 1 / math.sqrt(self.sizes.head_dim)
        self.threads = call.options.get("threads")
        self.memory: Workspace | None = None

    def add_group(self, place: Entry, entry: CheckedCall, kv_head: int) -> None:
        """Add the gradients of the query heads of a key head."""
        sizes, inputs, positions = self.sizes, self.inputs, entry.positions
        arrays = inputs.key, inputs.value, inputs.tangent_key, inputs.tangent_value
        keys = KeyRows(*(Factor.of(self._read(array, place, kv_head)) for array in arrays))
        # Transposed, because sums over queries are then fast products of few rows with long
        # columns.
        of_key = np.zeros((sizes.head_dim, sizes.kv_len), self.dtype)
        of_value = np.zeros((sizes.value_dim, sizes.kv_len), self.dtype)
        if self.memory is None:
            self.memory = Workspace(most_scores(positions), self.dtype, self.threads)
        last = min((kv_head + 1) * sizes.group, sizes.heads)
        for number in range(kv_head * sizes.group, last):
            head = entry.head(number)
            scale = _number(head, "scale", self.default_scale)
            rows = self._query_rows(place, number, scale, _number(head, "sinks", -np.inf))
            scoring = Scoring(
                positions,
                head.masks,
                _number(head, "softcap", np.inf),
                _number(head, "alibi_slopes", 0.0),
                _distances(head),
                dropout_of(head.options),
            )
            of_grad_output, of_query = (_rows(total, place, number) for total in self.totals[:2])
            for block in Visibility(positions, head.masks, scoring.distances).blocks():
                given = gradients_of_block(
                    rows.part(block.rows), keys.part(block.keys), block, scoring, self.memory
                )
                of_grad_output[block.rows] += given.grad_output
                of_query[block.rows] += scale * given.query
                of_key[:, block.keys] += given.key
                of_value[:, block.keys] += given.value
        for total, part in zip(self.totals[2:], (of_key, of_value), strict=True):
            whole = _rows(total, place, kv_head)
            whole += part.T

    def _query_rows(self, place: Entry, head: int, scale: float, sink: float) -> QueryRows:
        inputs = self.inputs
        grad_output, output = (
            self._read(array, place, head) for array in (inputs.grad_output, inputs.output)
        )
        delta = np.sum(grad_output * output, axis=-1, keepdims=True)
        if inputs.grad_lse is not None:
            delta -= self._read(inputs.grad_lse[..., None], place, head)
        lse = self._read(inputs.lse[..., None], place, head)
        sink_weight = np.exp(np.float64(sink) - lse) if sink > -np.inf else np.zeros_like(lse)
        return QueryRows(
            scale * self._read(inputs.query, place, head),
            scale * self._read(inputs.tangent_query, place, head),
            grad_output,
            delta,
            lse,
            sink_weight.astype(self.dtype, copy=False),
        )

    def _read(self, array: Array, place: Entry, head: int) -> Array:
        return np.ascontiguousarray(_rows(array, place, head), self.dtype)


def _rows(array: Array, place: Entry, head: int) -> Array:
    """Return a view of the rows of a head, from an array whose batch axes broadcast."""
    rows: Array = part_at(array, (*place, head, slice(None), slice(None)))
    return rows


def _distances(head: CheckedCall) -> Array | None:
    """Return a head's row of `distance_bias`."""
    given = head.options.get("distance_bias")
    return None if given is None else np.asarray(given, np.float64).reshape(-1)


def _number(head: CheckedCall, name: str, default: float) -> float:
    """Return an option that is one number for each head."""
    given = head.options.get(name)
    return default if given is None else float(np.asarray(given, np.float64).reshape(()))
