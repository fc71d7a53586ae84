"""The formula of attention as whole matrices, for libraries that differentiate it themselves.

`regard.torch` and `regard.jax` compute the derivatives that are not fused from this formula. It
needs memory for all scores, but has derivatives of any order with respect to every input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_SPARSE = ("mask", "mask_starts", "mask_spans", "mask_bits", "mask_numbers")
_DROPOUT = ("dropout_p", "dropout_seed", "dropout_origin", "query_offset", "key_lengths")


def attention_formula(
    xp: Any,
    query: Any,
    key: Any,
    value: Any,
    options: Mapping[str, Any],
    is_weighted: Callable[[tuple[str, ...]], Any],
) -> tuple[Any, Any]:
    """Compute attention by the functions of another library.

    Hidden scores are finite numbers that are replaced afterward, because the product of a zero
    gradient and an infinity is NaN.

    Parameters
    ----------
    xp : module
        `torch` or `jax.numpy`.
    query, key, value : array
        As in `regard.scaled_dot_product_attention`, all of one type.
    options : mapping
        Options of that call that determine the weights, as numbers or as arrays of the same
        library. Masks have the names ``bool_mask`` and ``float_mask``, or those of a sparse mask.
    is_weighted : callable
        Returns which weights are not 0 if scores are equal, with only the named options of the
        call, shape (..., heads, q_len, kv_len).

    Returns
    -------
    output : array, shape (..., heads, q_len, value_dim)
    lse : array, shape (..., heads, q_len)
        The most negative finite number, not -inf, for fully masked rows.
    """
    lowest = xp.finfo(query.dtype).min
    is_flat = query.ndim == key.ndim == value.ndim == 2
    query, key, value = (x if x.ndim > 2 else x[None] for x in (query, key, value))
    heads, q_len, head_dim = query.shape[-3:]
    kv_heads, kv_len = key.shape[-3:-1]
    groups = kv_heads, heads // max(kv_heads, 1)

    shown, distance = _visible(xp, q_len, kv_len, options, is_weighted)
    # A key or value that no query sees may be NaN, which no factor removes.
    seen = xp.any(shown, axis=-2) if shown.ndim > 1 else shown
    seen = xp.any(seen, axis=-2, keepdims=True) if seen.ndim > 1 else seen
    key, value = (xp.where(seen[..., None], x, 0) for x in (key, value))
    products = query.reshape(*query.shape[:-3], *groups, q_len, head_dim) @ key[..., None, :, :].mT
    scores = products.reshape(*products.shape[:-4], heads, q_len, kv_len)
    scale = options.get("scale")
    scores = scores * (head_dim**-0.5 if scale is None else _of_heads(scale))
    if options.get("softcap") is not None:
        cap = _of_heads(options["softcap"]) * xp.ones_like(scores[..., :1])
        is_finite = xp.abs(cap) <= xp.finfo(query.dtype).max
        finite = xp.where(is_finite, cap, 1)
        scores = xp.where(is_finite, finite * xp.tanh(scores / finite), scores)
    if options.get("alibi_slopes") is not None:
        scores = scores - options["alibi_slopes"][..., None, None] * xp.abs(distance)
    biases = [options["float_mask"]] if options.get("float_mask") is not None else []
    if options.get("distance_bias") is not None:
        biases.append(_of_distances(xp, options["distance_bias"], distance))
    for bias in biases:
        shown = shown & (bias != -xp.inf)
        scores = scores + xp.where(bias == -xp.inf, 0, bias)
    sinks = options.get("sinks")
    if sinks is not None:
        shown = xp.concatenate(
            (
                xp.broadcast_to(shown, scores.shape),
                xp.broadcast_to((sinks != -xp.inf)[..., None, None], (*scores.shape[:-1], 1)),
            ),
            -1,
        )
        sinks = xp.broadcast_to(sinks[..., None, None], (*scores.shape[:-1], 1))
        scores = xp.concatenate((scores, sinks), -1)
    scores = xp.where(shown, scores, lowest)
    if scores.shape[-1]:
        top = xp.amax(scores, axis=-1, keepdims=True)
    else:
        top = xp.full((*scores.shape[:-1], 1), lowest, dtype=scores.dtype)
    weights = xp.where(shown, xp.exp(scores - top), 0)
    total = weights.sum(-1, keepdims=True)
    is_empty = total == 0
    total = xp.where(is_empty, 1, total)
    lse = xp.where(is_empty, lowest, xp.log(total) + top)[..., 0]
    weights = (weights / total)[..., :kv_len]
    if options.get("dropout_p"):
        weights = xp.where(is_weighted(_DROPOUT), weights / (1 - options["dropout_p"]), 0)
    weights = weights.reshape(*weights.shape[:-3], *groups, q_len, kv_len)
    output = weights @ value[..., None, :, :]
    output = output.reshape(*output.shape[:-4], heads, q_len, value.shape[-1])
    lse = xp.broadcast_to(lse, output.shape[:-1])
    return (output[0], lse[0]) if is_flat else (output, lse)


def _visible(
    xp: Any,
    q_len: int,
    kv_len: int,
    options: Mapping[str, Any],
    is_weighted: Callable[[tuple[str, ...]], Any],
) -> tuple[Any, Any]:
    """Return which keys queries see, and the distances of keys from queries."""
    keys = xp.arange(kv_len)
    lengths = _of_entries(options.get("key_lengths", kv_len))
    offset = options.get("query_offset", 0)
    offset = lengths - q_len if isinstance(offset, str) else _of_entries(offset)
    distance = keys - xp.arange(q_len)[:, None] - offset
    shown = [keys < lengths, keys >= _of_entries(options.get("left_padding", 0))]
    if options.get("is_causal"):
        shown.append(distance <= 0)
    left, right = options.get("window") or (None, None)
    if left is not None:
        shown.append(distance >= -left)
    if right is not None:
        shown.append(distance <= right)
    if options.get("bool_mask") is not None:
        shown.append(options["bool_mask"])
    if "mask" in options or "mask_numbers" in options:
        shown.append(is_weighted(_SPARSE))
    visible = shown[0]
    for each in shown[1:]:
        visible = visible & each
    return visible, distance


def _of_entries(numbers: Any) -> Any:
    """Return a number, or one for each batch entry as an array that broadcasts to the scores."""
    return numbers[..., None, None, None] if getattr(numbers, "ndim", 0) else numbers


def _of_heads(numbers: Any) -> Any:
    """Return a number, or one for each head as an array that broadcasts to the scores."""
    return numbers[..., None, None] if getattr(numbers, "ndim", 0) else numbers


def _of_distances(xp: Any, table: Any, distance: Any) -> Any:
    """Return the bias of each distance, shape (..., heads, q_len, kv_len)."""
    most = table.shape[-1] // 2
    columns = xp.clip(distance, -most, most) + most
    if columns.ndim == 2:
        return table[..., columns]
    take = getattr(xp, "take_along_axis", None) or xp.take_along_dim
    rows = table[..., None, :]
    axes = max(rows.ndim, columns.ndim)
    rows, columns = (x.reshape((1,) * (axes - x.ndim) + x.shape) for x in (rows, columns))
    return take(rows, columns, -1)
