"""ONNX's operators `Attention` (opsets 23 to 25) and `RotaryEmbedding` (23) as calls of regard.

Inputs are in ONNX's order, and attributes have ONNX's names.
https://onnx.ai/onnx/operators/onnx__Attention.html
https://onnx.ai/onnx/operators/onnx__RotaryEmbedding.html
"""

import numpy as np
import onnx

import regard

RAW_SCORES, CAPPED_SCORES, MASKED_SCORES, WEIGHTS = range(4)


def attention(
    attend,
    query,
    key,
    value,
    mask=None,
    past_key=None,
    past_value=None,
    key_lengths=None,
    *,
    is_causal=0,
    kv_num_heads=None,
    left_window_size=-1,
    q_num_heads=None,
    qk_matmul_output_mode=RAW_SCORES,
    right_window_size=-1,
    scale=None,
    softcap=0.0,
    softmax_precision=None,
):
    """Return Y, present_key, present_value and qk_matmul_output, computed by `attend`, which is
    called like `regard.scaled_dot_product_attention`."""
    flat = query.ndim == 3
    if flat:
        query = _heads_apart(query, q_num_heads)
        key, value = (_heads_apart(x, kv_num_heads) for x in (key, value))
    q_len, past = query.shape[2], 0
    if past_key is not None:
        past = past_key.shape[2]
        key = np.concatenate((past_key, key), axis=2)
        value = np.concatenate((past_value, value), axis=2)
    options = {
        "mask": _full_length(mask, key.shape[2]),
        "is_causal": bool(is_causal),
        "query_offset": past if key_lengths is None else key_lengths - q_len,
        "window": _window(left_window_size, right_window_size),
        "key_lengths": key_lengths,
        "scale": scale,
        "softcap": softcap or None,
    }
    # regard's softmax has the precision of the scores: float32, or float64 if any input has it.
    wide = softmax_precision == onnx.TensorProto.DOUBLE
    asked = query.astype(np.float64) if wide else query
    if qk_matmul_output_mode == WEIGHTS:
        output, scores = attend(asked, key, value, **options, return_weights=True)
    else:
        output = attend(asked, key, value, **options)
        scores = _scores(asked, key, qk_matmul_output_mode, **options)
    output, scores = (x.astype(query.dtype, copy=False) for x in (output, scores))
    return _heads_together(output) if flat else output, key, value, scores


def rotary_embedding(
    array,
    cos,
    sin,
    positions=None,
    *,
    interleaved=0,
    num_heads=None,
    rotary_embedding_dim=0,
):
    """Return Y. With positions, the caches are tables that the positions index; without positions,
    they hold one row per token."""
    flat = array.ndim == 3
    if flat:
        array = _heads_apart(array, num_heads)
    turned = regard.positional.rotary(
        array,
        positions,
        rotary_dim=rotary_embedding_dim or None,
        interleaved=bool(interleaved),
        cache=(cos, sin),
    )
    return (_heads_together(turned) if flat else turned,)


def _heads_apart(array, heads):
    """View (batch, length, heads * dim) as (batch, heads, length, dim)."""
    batch, length, width = array.shape
    return array.reshape(batch, length, heads, width // heads).swapaxes(1, 2)


def _heads_together(array):
    batch, heads, length, dim = array.shape
    return array.swapaxes(1, 2).reshape(batch, length, heads * dim)


def _full_length(mask, kv_len):
    """Extend a mask to hide the keys beyond its end; a last axis of 1 is an end, not a
    broadcast."""
    if mask is None or mask.shape[-1] == kv_len:
        return mask
    missing = [(0, 0)] * (mask.ndim - 1) + [(0, kv_len - mask.shape[-1])]
    return np.pad(mask, missing, constant_values=False if mask.dtype == bool else -np.inf)


def _window(*sizes):
    left, right = (None if size == -1 else size for size in sizes)
    return None if left is None and right is None else (left, right)


def _scores(
    query, key, mode, *, mask, is_causal, query_offset, window, key_lengths, scale, softcap
):
    """Return the scores, which the fused call never stores, stage by stage: raw, capped, or capped
    and masked."""
    query, key = (x.astype(np.result_type(x, np.float32), copy=False) for x in (query, key))
    (batch, heads, q_len, head_dim), (_, kv_heads, kv_len, _) = query.shape, key.shape
    grouped = query.reshape(batch, kv_heads, heads // kv_heads, q_len, head_dim)
    products = regard.matmul(grouped, key[:, :, None].swapaxes(-1, -2))
    factor = 1 / np.sqrt(head_dim) if scale is None else scale
    scores = regard.scale(products.reshape(batch, heads, q_len, kv_len), factor)
    if mode != RAW_SCORES and softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    if mode != MASKED_SCORES:
        return scores
    seen = _seen(query_offset, q_len, kv_len, is_causal, window or (None, None), key_lengths)
    for hidden in (mask, seen):
        if hidden is not None:
            float_mask = hidden.dtype != bool
            scores = regard.apply_mask(
                scores, hidden.astype(scores.dtype) if float_mask else hidden
            )
    return scores


def _seen(query_offset, q_len, kv_len, is_causal, window, key_lengths):
    """Return what causality, window and lengths leave visible, (batch or 1, 1, q_len, kv_len)."""
    first = np.reshape(query_offset, (-1, 1, 1, 1))
    position, key = first + np.arange(q_len)[:, None], np.arange(kv_len)
    seen = np.ones((1, 1, q_len, kv_len), bool)
    left, right = window
    if is_causal:
        seen = seen & (key <= position)
    if right is not None:
        seen = seen & (key <= position + right)
    if left is not None:
        seen = seen & (key >= position - left)
    if key_lengths is not None:
        seen = seen & (key < key_lengths[:, None, None, None])
    return seen
