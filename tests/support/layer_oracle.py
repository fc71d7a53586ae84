"""Multi-head attention written out, and a cache of plain arrays for it."""

import numpy as np

import reference
import regard


def linear(x, state, name):
    product = x @ state[f"{name}.weight"].T
    return product + state[f"{name}.bias"] if f"{name}.bias" in state else product


def rms(x, weight, eps):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + x.dtype.type(eps)) * weight


def formula(
    state,
    query,
    key=None,
    value=None,
    *,
    heads,
    kv_heads=None,
    attend=reference.attention,
    precision=np.float64,
    rotary=None,
    eps=1e-6,
    norm_offset=0,
    **options,
):
    """Return output and weights of a layer whose state has regard's names, in one precision.

    `rotary` holds options of positional.rotary, which has separate tests.
    """
    state = {name: np.asarray(array).astype(precision) for name, array in state.items()}
    key = query if key is None else key
    value = key if value is None else value
    counts = (heads, kv_heads or heads, kv_heads or heads)
    projected = []
    for x, name, count in zip((query, key, value), ("query", "key", "value"), counts, strict=True):
        product = linear(np.asarray(x).astype(precision), state, f"W_{name}")
        split = product.reshape(*product.shape[:-1], count, -1)
        norm = state.get(f"{name[0]}_norm.weight")
        normed = split if norm is None else rms(split, norm + precision(norm_offset), eps)
        projected.append(normed.swapaxes(-2, -3))
    q, k, v = projected
    if rotary is not None:
        offset = np.asarray(options.get("query_offset", 0))
        q = regard.positional.rotary(q, offset[..., None] + np.arange(q.shape[-2]), **rotary)
        k = regard.positional.rotary(k, **rotary)
    if "distance_bias" in state:
        options = options | {"distance_bias": state["distance_bias"]}
    result = attend(q, k, v, precision=precision, **options)
    joined = result.output.swapaxes(-2, -3).reshape(*result.output.shape[:-3], q.shape[-2], -1)
    return linear(joined, state, "out_proj"), result.weights


def assert_is_formula(actual, dtype, state, *inputs, **options):
    """Allow twice the error of the same formula in NumPy, and a few roundings if that is exact by
    luck."""
    exact = formula(state, *inputs, **options)
    plain = formula(state, *inputs, **options, attend=reference.naive, precision=dtype.type)
    for part, wanted, near in zip(actual, exact, plain, strict=True):
        assert part.dtype == dtype
        assert part.shape == wanted.shape
        floor = 16 * np.finfo(dtype).eps * max(1.0, reference.largest(wanted))
        assert reference.error(part, wanted) <= 2 * reference.error(near, wanted) + floor


class ArrayCache:
    """A cache with the methods of KVCache that layers use, made of plain arrays."""

    def __init__(self, batch, kv_heads, head_dim, dtype=np.float32):
        self.lengths = np.zeros(batch, np.int64)
        self.key = np.zeros((batch, kv_heads, 0, head_dim), dtype)
        self.value = self.key.copy()

    def __len__(self):
        return int(self.lengths.max())

    def append(self, key, value, lengths=None):
        key, value = (x if x.ndim == 4 else x[None] for x in (key, value))
        new = np.full(len(self.lengths), key.shape[2]) if lengths is None else np.asarray(lengths)
        assert (new <= key.shape[2]).all()
        room = int((self.lengths + new).max()) - self.key.shape[2]
        pads = ((0, 0), (0, 0), (0, max(room, 0)), (0, 0))
        # Tokens beyond an entry's length are NaN, so that reading them shows.
        self.key, self.value = (
            np.pad(x, pads, constant_values=np.nan) for x in (self.key, self.value)
        )
        for entry, (start, count) in enumerate(zip(self.lengths, new, strict=True)):
            self.key[entry, :, start : start + count] = key[entry, :, :count]
            self.value[entry, :, start : start + count] = value[entry, :, :count]
        self.lengths = self.lengths + new

    def attend(self, query, **options):
        batched = query if query.ndim == 4 else query[None]
        options = {
            "is_causal": True,
            "query_offset": self.lengths - query.shape[-2],
            "key_lengths": self.lengths,
        } | options
        result = regard.scaled_dot_product_attention(batched, self.key, self.value, **options)
        if query.ndim == 4:
            return result
        return tuple(x[0] for x in result) if isinstance(result, tuple) else result[0]

    def truncate(self, length):
        self.lengths = np.minimum(self.lengths, length)
