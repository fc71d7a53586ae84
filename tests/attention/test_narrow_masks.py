"""Test float masks of 16 bits: every call gives the bits that it gives with the mask in float32."""

import numpy as np
import pytest

import regard
from reference import assert_same_bits

ml_dtypes = pytest.importorskip("ml_dtypes")

SIZES = [(1, 1), (1, 300), (7, 9), (50, 131), (130, 20)]
sdpa = regard.scaled_dot_product_attention


def drawn(shape, dtype, rng):
    """Return a mask with -inf, subnormal and extreme numbers, and a whole hidden row."""
    mask = rng.standard_normal(shape).astype(np.float32)
    mask[rng.random(shape) < 0.2] = -np.inf
    mask[rng.random(shape) < 0.05] = 1e-7
    mask[rng.random(shape) < 0.05] = -6e4
    mask[..., :1, :] = np.where(rng.random() < 0.3, -np.inf, mask[..., :1, :])
    return mask.astype(dtype)


LAYOUTS = {
    "contiguous": lambda mask: mask,
    "strided": lambda mask: np.repeat(mask, 3, -1)[..., ::3],
    "reversed": lambda mask: mask[..., ::-1, ::-1],
    "transposed": lambda mask: np.asfortranarray(mask),
    "one row": lambda mask: mask[..., :1, :],
    "one key": lambda mask: mask[..., :, :1],
    "one head": lambda mask: mask[:1],
    "offset": lambda mask: np.pad(mask, [(0, 0), (0, 0), (3, 0)])[..., 3:],
}


def backward(query, key, value, mask):
    output, lse = sdpa(query, key, value, mask, return_lse=True)
    return regard.scaled_dot_product_attention_backward(
        output, query, key, value, output, lse, mask
    )[:3]


def decode(query, key, value, mask):
    cache = regard.KVCache(1, len(key), key.shape[-1], value_dim=value.shape[-1])
    cache.append(key.astype("f4"), value.astype("f4"))
    return (cache.attend(query[None, :, -1:], mask[..., -1:, :]),)


def ragged(query, key, value, mask):
    q_len, kv_len = query.shape[1], key.shape[1]
    packed = [x.swapaxes(0, 1) for x in (query, key, value)]
    full = np.broadcast_to(mask, (len(query), q_len, kv_len)).swapaxes(0, 1)
    starts = [0, q_len], [0, kv_len]
    return (regard.scaled_dot_product_attention_ragged(*packed, *starts, full),)


CALLS = {
    "forward": lambda *given: sdpa(*given, return_lse=True, return_weights=True),
    "pair": lambda q, k, v, mask: (sdpa(q, k, v, (np.arange(k.shape[1]) != 5, mask)),),
    "options": lambda *given: (
        sdpa(*given, is_causal=True, query_offset="end", alibi_slopes=[0.1] * 4),
    ),
    "int8": lambda *given: (
        sdpa(*(x.astype("f4") for x in given[:3]), given[3], precision="int8"),
    ),
    "backward": backward,
    "jvp": lambda q, k, v, mask: regard.scaled_dot_product_attention_jvp(q, k, v, q, k, v, mask),
    "summary": lambda q, k, v, mask: tuple(regard.summarize_attention(q, k, mask)[:4]),
    "decode": decode,
    "ragged": ragged,
    "stage": lambda q, k, v, mask: (
        regard.apply_mask(q[..., :1] * np.swapaxes(k, 1, 2)[:1, :1], mask),
    ),
}


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("call", CALLS)
def test_bits_of_the_wide_mask(call, layout, dtype, target):
    rng = np.random.default_rng(list(CALLS).index(call) * 10 + list(LAYOUTS).index(layout))
    for number, (q_len, kv_len) in enumerate(SIZES):
        arithmetic = np.float64 if number % 3 == 2 else np.float32
        query, key, value = (
            rng.standard_normal(shape).astype(arithmetic)
            for shape in ((4, q_len, 24), (2, kv_len, 24), (2, kv_len, 12))
        )
        mask = LAYOUTS[layout](drawn((4, q_len, kv_len), dtype, rng))
        results = CALLS[call](query, key, value, mask)
        wanted = CALLS[call](query, key, value, mask.astype(np.float32))
        for result, right in zip(results, wanted, strict=True):
            assert_same_bits(result, right)
