"""The gradients of gradients, added up over blocks, heads and batch entries."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard._gradients.blocks import Mask, mask_of, positions_of_entries
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
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from regard._gradients.blocks import Positions

    Array = NDArray[Any]
    Entry = tuple[int, ...]


class Inputs(NamedTuple):
    """Checked arrays, whose axes are (batch..., heads, length, dim), some of which may be missing.

    Those of a number for each query have no last axis.
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


class Sizes(NamedTuple):
    """The sizes of a call."""

    batch: tuple[int, ...]
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    value_dim: int

    @property
    def group(self) -> int:
        """How many query heads read a key head."""
        return self.heads // max(self.kv_heads, 1)


def second_order_sums(
    inputs: Inputs,
    masks: Any,
    sizes: Sizes,
    dtype: np.dtype[Any],
    options: Mapping[str, Any],
) -> tuple[Array, ...]:
    """Return the gradients with respect to grad_output, query, key and value.

    They are computed in `dtype` and have the types of these.
    """
    differentiated = inputs[:4]
    totals = [np.zeros(array.shape, dtype) for array in differentiated]
    sums = _Sums(inputs, mask_of(masks), sizes, dtype, options, totals)
    entries = positions_of_entries(options, sizes.batch, sizes.q_len, sizes.kv_len)
    with np.errstate(all="ignore"):
        for number, (entry, positions) in enumerate(entries):
            for kv_head in range(sizes.kv_heads):
                sums.add_group(number, entry, positions, kv_head)
    return tuple(
        total.astype(array.dtype, copy=False)
        for total, array in zip(totals, differentiated, strict=True)
    )


class _Sums:
    """The sums of a call, to which the query heads of one key head are added at a time."""

    def __init__(
        self,
        inputs: Inputs,
        mask: Mask,
        sizes: Sizes,
        dtype: np.dtype[Any],
        options: Mapping[str, Any],
        totals: list[Array],
    ) -> None:
        self.inputs, self.sizes, self.dtype, self.totals = inputs, sizes, dtype, totals
        batch, heads = sizes.batch, sizes.heads
        rows = inputs.grad_output.shape[:-1]
        weights = (*rows, sizes.kv_len)
        self.mask = Mask(
            *(part if part is None else np.broadcast_to(part, weights) for part in mask)
        )
        scale, softcap = options.get("scale"), options.get("softcap")
        self.scale = 1 / math.sqrt(sizes.head_dim) if scale is None else float(scale)
        self.softcap = None if softcap is None else float(softcap)
        slopes = options.get("alibi_slopes")
        slopes = np.asarray(0 if slopes is None else slopes, np.float64)
        self.slopes = np.broadcast_to(slopes, (*batch, heads))
        sinks = options.get("sinks")
        sinks = np.asarray(-np.inf if sinks is None else sinks, np.float64)
        self.sinks = np.broadcast_to(sinks, (heads,))
        self.dropout = dropout_of(options)
        self.threads = options.get("threads")
        self.memory: Workspace | None = None

    def add_group(self, number: int, entry: Entry, positions: Positions, kv_head: int) -> None:
        """Add what the query heads of a key head give."""
        sizes, inputs = self.sizes, self.inputs
        arrays = inputs.key, inputs.value, inputs.tangent_key, inputs.tangent_value
        keys = KeyRows(*(Factor.of(self._read(array, entry, kv_head)) for array in arrays))
        # Transposed: sums over queries are products of few rows with long columns, which are fast.
        of_key = np.zeros((sizes.head_dim, sizes.kv_len), self.dtype)
        of_value = np.zeros((sizes.value_dim, sizes.kv_len), self.dtype)
        if self.memory is None:
            self.memory = Workspace(positions.most_scores(), self.dtype, self.threads)
        for head in range(kv_head * sizes.group, (kv_head + 1) * sizes.group):
            rows = self._query_rows(entry, head)
            mask = Mask(*(p if p is None else _at(p, entry, head) for p in self.mask))
            slope = float(self.slopes[(*entry, head)])
            scoring = Scoring(positions, mask, self.softcap, slope, self.dropout, number, head)
            of_grad_output, of_query = (_at(total, entry, head) for total in self.totals[:2])
            for block in positions.blocks(mask):
                given = gradients_of_block(
                    rows.part(block.rows), keys.part(block.keys), block, scoring, self.memory
                )
                of_grad_output[block.rows] += given.grad_output
                of_query[block.rows] += self.scale * given.query
                of_key[:, block.keys] += given.key
                of_value[:, block.keys] += given.value
        for total, part in zip(self.totals[2:], (of_key, of_value), strict=True):
            whole = _at(total, entry, kv_head)
            whole += part.T

    def _query_rows(self, entry: Entry, head: int) -> QueryRows:
        inputs = self.inputs
        grad_output, output = (
            self._read(array, entry, head) for array in (inputs.grad_output, inputs.output)
        )
        delta = np.sum(grad_output * output, axis=-1, keepdims=True)
        if inputs.grad_lse is not None:
            delta -= self._read(inputs.grad_lse[..., None], entry, head)
        lse, sink = self._read(inputs.lse[..., None], entry, head), self.sinks[head]
        sink_weight = np.exp(sink - lse) if sink > -np.inf else np.zeros_like(lse)
        return QueryRows(
            self.scale * self._read(inputs.query, entry, head),
            self.scale * self._read(inputs.tangent_query, entry, head),
            grad_output,
            delta,
            lse,
            sink_weight.astype(self.dtype, copy=False),
        )

    def _read(self, array: Array, entry: Entry, head: int) -> Array:
        return np.ascontiguousarray(_at(array, entry, head), self.dtype)


def _at(array: Array, entry: Entry, head: int) -> Array:
    """Return the rows of a head, as a view, of an array whose batch axes broadcast."""
    if array.ndim == 2:
        return array
    batch = array.shape[:-3]
    own = entry[len(entry) - len(batch) :]
    index = (0 if size == 1 else i for size, i in zip(batch, own, strict=True))
    part: Array = array[(*index, head)]
    return part
