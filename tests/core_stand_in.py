"""Until the kernels read pages and 8 bits: the same by gathering and dequantising."""

import numpy as np

from regard import _core

plain = _core.attention


def dequantised(stored, scales, centers, inner):
    wide = np.longdouble if inner == np.float64 else np.float64
    rows = stored.astype(wide) * scales[..., None].astype(wide)
    if centers is not None:
        rows = rows + centers[..., None, :].astype(wide)
    return rows.astype(inner)


def attention(
    query, key, value, *rest, pages=None, key_scales=None, key_centers=None, value_scales=None
):
    if pages is None and key_scales is None:
        return plain(query, key, value, *rest)
    if pages is not None:

        def gather(a):
            if a is None:
                return None
            g = np.moveaxis(a[pages], 2, 1)
            return g.reshape(*g.shape[:2], -1, *g.shape[4:])

        key, value, key_scales, value_scales = map(gather, (key, value, key_scales, value_scales))
    if key_scales is not None:
        inner = np.dtype(np.float64 if query.dtype == np.float64 else np.float32)
        key = dequantised(key, key_scales, key_centers, inner)
        value = dequantised(value, value_scales, None, inner)
        if query.dtype.itemsize < 4:
            rest = list(rest)
            q, t = query, query.dtype
            out = rest[11]
            rest[11] = None
            result = plain(q.astype(np.float32), key, value, *rest)
            parts = list(result) if isinstance(result, tuple) else [result]
            weights = rest[9]
            parts[0] = parts[0].astype(t)
            if weights:
                parts[1] = parts[1].astype(t)
            if out is not None:
                out[...] = parts[0]
                parts[0] = out
            return tuple(parts) if len(parts) > 1 else parts[0]
    return plain(query, key, value, *rest)


if "key_scales" not in (plain.__doc__ or ""):
    _core.attention = attention
