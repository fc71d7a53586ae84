"""Attention rollout: the products of the weights of all layers, without storing any weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from regard._arguments.arrays import as_array, compute_type, is_floating, shown, stand_in
from regard._arguments.foreign import with_arrays
from regard._arguments.hints import warn_if_zero_one
from regard._arguments.keywords import check_options
from regard._arguments.numbers import integers, listed, real_number
from regard._arguments.options import WeightOptions, names_of, takes_options
from regard._attention.check import check_call
from regard._attention.dense import scaled_dot_product_attention
from regard._gradients.backward import scaled_dot_product_attention_backward
from regard._recording.given import (
    calls_of_layers,
    is_recorded,
    pairs_of_layers,
    recorded_layers,
)
from regard._runtime.public import public

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from regard._arguments.arrays import Array
    from regard._attention.check import CheckedCall


# The rows of the result that one backward call multiplies. With fewer rows, scores are computed
# more often; more rows need more memory.
_ROWS_AT_ONCE = 256


@public
@takes_options(WeightOptions)
def rollout(
    query: Any,
    key: Any = None,
    mask: ArrayLike | None = None,
    *,
    queries: int | Sequence[int] | slice | None = None,
    residual: float = 0.5,
    head_weights: ArrayLike | Sequence[ArrayLike] | None = None,
    **options: Unpack[WeightOptions],
) -> Array:
    r"""Compute attention rollout over the layers of a model, without storing any weights.

    Attention rollout [1]_ estimates how much a position of the last layer receives from each
    position of the input. With the weights :math:`W_{lh}` of head h in layer l, and c for
    `residual`,

    .. math:: A_l = c\, I + (1 - c)\, \mathrm{mean}_h W_{lh}, \qquad
              \mathrm{rollout} = A_L \cdots A_2\, A_1

    Parameters
    ----------
    query : array_like, shape (layers, ..., heads, n, head_dim), list of arrays, or Recording
        The queries of all layers, the first layer first. A list contains one array
        ``(..., heads, n, head_dim)`` per layer; layers may differ in heads and head_dim. Or
        a `Recording`, which has its own keys, masks and options.
    key : array_like, shape (layers, ..., kv_heads, n, head_dim), or list of arrays
        Likewise. A layer has as many keys as queries.
    mask : array_like of bool or float, SparseMask, or a pair (bool, float) of both, optional
        As for `scaled_dot_product_attention`, like all options that are not described here. Masks
        and options apply to every layer. With arrays, their batch axes are the axes before heads,
        layers included.
    queries : int, sequence of int or slice, optional
        The positions of the last layer to follow. Default: all.
    residual : float, default 0.5
        The share of a position that bypasses a layer through the residual connection, from 0 to 1.
    head_weights : array_like, shape (heads,) or (layers, heads), optional
        Nonnegative numbers for a weighted mean over heads; 0 leaves a head out. They are divided by
        their sum. If layers differ in heads, a list with one array per layer. Default: the mean.
    {options}

    Returns
    -------
    ndarray, shape (..., queries, n)
        A row for each position of `queries`, or (..., n) for an int. Each row sums to 1. Float64 if
        a query or a key is float64, else float32.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ValueError
        If shapes disagree, a layer has different numbers of queries and keys, or `query_offset`
        moves the queries to other positions than the keys; if a number is out of range.
    MemoryError
        If a result or the workspace cannot be allocated.

    See Also
    --------
    summarize_attention : statistics of each layer.

    Notes
    -----
    The weight that a query gives to no key stays at its position, as if the residual connection
    carried it. This is the weight of a sink, and all of the weight of a fully masked row. Dropout
    is not applied.

    A row x of the result goes through the layers from the last to the first. The sum over queries
    :math:`x W` is computed by `scaled_dot_product_attention_backward`, as the gradient of the
    values for x as the gradient of the output. It takes the time of the backward call without the
    gradients of query and key, for each layer and each 256 rows. The memory is 256 rows per key
    head and per thread, in addition to the result.

    A row that reaches a query whose weights are NaN is NaN. Other rows are not affected, so that
    padding may contain anything.

    References
    ----------
    .. [1] Abnar & Zuidema, "Quantifying Attention Flow in Transformers", 2020.
       https://arxiv.org/abs/2005.00928

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> rng = np.random.default_rng(0)
    >>> query, key = rng.standard_normal((2, 6, 4, 100, 16))  # six layers of four heads
    >>> row = regard.rollout(query, key, queries=99, is_causal=True)
    >>> row.shape, bool(np.isclose(row.sum(), 1))
    ((100,), True)

    The same without two heads of the first layer:

    >>> head_weights = np.ones((6, 4))
    >>> head_weights[0, :2] = 0
    >>> regard.rollout(query, key, queries=[98, 99], head_weights=head_weights).shape
    (2, 100)
    """
    check_options("rollout", options, names_of(WeightOptions))
    share = real_number("residual", residual)
    if not 0 <= share <= 1:
        raise ValueError(f"residual must be from 0 to 1, got {share}")
    if mask is not None:
        warn_if_zero_one(mask)
    layers = _layers(query, key, mask, with_arrays(options))
    batch, length = _common_sizes(layers)
    shares = _shares_of_heads(head_weights, [layer.sizes.heads for layer in layers])
    positions = _positions(queries, length)
    dtype = compute_type(*(layer.arithmetic for layer in layers))
    rows = np.zeros((*batch, positions.size, length), dtype)
    rows[..., np.arange(positions.size), positions.reshape(-1)] = 1
    if share < 1:
        for layer, of_heads in zip(reversed(layers), reversed(shares), strict=True):
            mean = _MeanWeights(layer, of_heads)
            becomes_nan = mean.reaches_nan(rows)
            for start in range(0, positions.size, _ROWS_AT_ONCE):
                some = rows[..., start : start + _ROWS_AT_ONCE, :]
                some[...] = share * some + (1 - share) * mean.times(some)
            rows[becomes_nan] = np.nan
    return rows.reshape(*batch, *positions.shape, length)


def _layers(
    query: Any, key: Any, mask: ArrayLike | None, options: Mapping[str, Any]
) -> list[CheckedCall]:
    """Return the checked call of each layer, with a heads axis."""
    if is_recorded(query):
        recorded = recorded_layers(query, options, key=key, mask=mask)
        return calls_of_layers(recorded, options, "lengths")
    if key is None:
        raise TypeError("key must be an array, or a list of the layers' arrays, got None")
    pairs = pairs_of_layers(query, key)
    if pairs is not None:
        return [check_call(*pair, None, mask, options).with_heads() for pair in pairs]
    queries = as_array("query", query)
    if queries.ndim < 4:
        advice = "; pass query[:, None] for layers of one head" if queries.ndim == 3 else ""
        raise ValueError(
            "query must have at least 4 dimensions, (layers, ..., heads, n, head_dim), got shape "
            f"{queries.shape}{advice}"
        )
    call = check_call(queries, key, None, mask, options)
    batch = (slice(None),) * (len(call.sizes.batch) - 1)
    return [call.part(entries=(layer, *batch)) for layer in range(call.sizes.batch[0])]


def _common_sizes(layers: Sequence[CheckedCall]) -> tuple[tuple[int, ...], int]:
    """Return the batch axes and the length of all layers, or raise ValueError."""
    if not layers:
        raise ValueError("query must have at least one layer, got none")
    common = layers[0].sizes.batch, layers[0].sizes.q_len
    for number, layer in enumerate(layers):
        batch, heads, _, q_len, kv_len = layer.sizes[:5]
        if not heads:
            raise ValueError(f"query must have at least one head, got none in layer {number}")
        if q_len != kv_len:
            raise ValueError(
                "query and key must have the same length, since rollout follows the positions of "
                f"one text, got {q_len} and {kv_len} in layer {number}"
            )
        if (batch, q_len) != common:
            raise ValueError(
                "query must have the same batch axes and length in all layers, got "
                f"{(*common[0], common[1])} in layer 0 and {(*batch, q_len)} in layer {number}"
            )
        if np.any(layer.positions.query_offset != 0):
            raise ValueError(
                "query_offset must be 0, since rollout adds the residual connection of each "
                f"query at the key of the same number, got {shown(layer.positions.query_offset)}"
            )
    return common


def _shares_of_heads(head_weights: Any, heads: list[int]) -> list[Array]:
    """Return the share of each head in the mean of its layer, or raise TypeError or ValueError."""
    if head_weights is None:
        return [np.full(count, 1 / count) for count in heads]
    is_list = isinstance(head_weights, list | tuple) and any(map(np.ndim, head_weights))
    is_of_layers = is_list or np.ndim(head_weights) == 2
    given = list(head_weights) if is_of_layers else [head_weights] * len(heads)
    arrays = [as_array("head_weights", each) for each in given]
    if [array.shape for array in arrays] != [(count,) for count in heads]:
        wanted = f"({len(heads)}, {heads[0]})" if len(set(heads)) == 1 else f"{heads}"
        raise ValueError(
            f"head_weights must have a number for each head, or for each head of each layer, "
            f"{wanted}, got shapes {listed(str(array.shape) for array in arrays)}"
        )
    shares = []
    for number, array in enumerate(arrays):
        if array.dtype.kind not in "iub" and not is_floating(array.dtype):
            raise TypeError(f"head_weights must be real numbers, got {array.dtype}")
        wide = array.astype(np.float64)
        if not (np.isfinite(wide).all() and (wide >= 0).all() and wide.any()):
            raise ValueError(
                "head_weights must be finite, not negative, and not 0 for all heads of a layer, "
                f"got {array.tolist()} in layer {number}"
            )
        shares.append(wide / wide.sum())
    return shares


def _positions(queries: Any, length: int) -> NDArray[np.int64]:
    """Return the positions of the chosen queries, without axes for an int."""
    every = np.arange(length)
    if queries is None:
        return every
    if isinstance(queries, slice):
        try:
            return every[queries]
        except TypeError:
            raise TypeError(f"queries must be a slice of ints, got {queries}") from None
    numbers = integers("queries", queries, "an int, a sequence of int or a slice")
    if numbers.ndim > 1:
        raise ValueError(f"queries must have at most one axis, got shape {numbers.shape}")
    for number in numbers.flat:
        if not -length <= number < length:
            raise ValueError(f"queries must be from {-length} to {length - 1}, got {number}")
    return np.asarray(every[numbers])


class _MeanWeights:
    """The mean W of the weights of a layer's heads, each of which has a share in it.

    The weight that a query gives to no key is added to its diagonal. Rows of NaN count as 0.
    """

    def __init__(self, layer: CheckedCall, shares: Array) -> None:
        self._layer, self._shares = layer, shares
        dtype = layer.arithmetic
        ones = np.broadcast_to(dtype.type(1), (*layer.value.shape[:-1], 1))
        words = {**layer.options, "return_lse": True}
        query, key, _, mask = layer.arguments()
        sums, lse = scaled_dot_product_attention(query, key, ones, mask, **words)
        self._is_nan = np.isnan(sums[..., 0])
        if self._is_nan.any():
            # Weights of 0 in place of NaN, which would turn rows that do not reach them into NaN as
            # 0 times NaN. No other query sees a key of NaN, and infinite keys that it sees have
            # weight 0.
            query = np.where(self._is_nan[..., None], 0, query.astype(dtype, copy=False))
            key = np.nan_to_num(key.astype(dtype, copy=False))
            lse = np.where(self._is_nan, dtype.type(np.inf), lse)
        self._arrays = query, key, lse, mask
        rest = np.where(self._is_nan, 0, np.maximum(1 - sums[..., 0], 0))
        self._of_no_key = np.einsum("h,...hi->...i", shares, rest)[..., None, :]

    def reaches_nan(self, rows: Array) -> Array:
        """Return which of some rows reach a query whose weights are NaN."""
        of_heads = np.any(self._is_nan, axis=-2, where=self._shares[:, None] > 0, keepdims=True)
        return np.asarray(np.any((rows != 0) & of_heads, axis=-1))

    def times(self, rows: Array) -> Array:
        """Return x W for some rows x.

        With x as the gradient of the output, the gradient of the values is the sum over queries of
        x W.
        """
        query, key, lse, mask = self._arrays
        dtype, (batch, heads, kv_heads, *_) = lse.dtype, self._layer.sizes
        columns, factor = rows.swapaxes(-1, -2)[..., None, :, :], self._shares[0]
        if np.all(self._shares == factor):
            # One array for all heads, without memory for each.
            of_heads = np.broadcast_to(columns, (*batch, heads, *columns.shape[-2:]))
        else:
            of_heads, factor = columns * self._shares[:, None, None], 1.0
        gradient = scaled_dot_product_attention_backward(
            of_heads.astype(dtype, copy=False),
            query,
            key,
            stand_in((*batch, kv_heads, *columns.shape[-2:]), dtype),
            stand_in(of_heads.shape, dtype),
            lse,
            mask,
            with_respect_to=("value",),
            **self._layer.options,
        ).value
        assert gradient is not None
        attended = gradient.sum(axis=-3).swapaxes(-1, -2) * factor
        return np.asarray(attended + rows * self._of_no_key)
