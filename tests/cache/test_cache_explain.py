"""Explanations of attention to a cache agree with `regard.explain` for the same keys and values."""

import numpy as np
import pytest

import regard
from cache_model import normal, tokens

SIZES = ["batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "value_dim", "target"]
SIZES += ["kernel", "result_type", "threads", "tasks", "task_rows", "chunk_keys", "strip_rows"]
SIZES += ["tile_keys", "block_keys", "tiles", "tiles_computed", "tiles_biased"]
SIZES += ["scores_computed", "flops"]

OPTIONS = {
    "plain": {},
    "offset": {"query_offset": [3, 7]},
    "square": {"is_causal": False},
    "window": {"window": (20, 0), "softcap": 3.0},
    "alibi and sinks": {"alibi_slopes": [0.5] * 6, "sinks": [0.0] * 6, "scale": 0.1},
    "one thread": {"threads": 1},
}


KINDS = ["float32", "float64", "float16", "int8", "pages", "int8 pages"]
CASES = [
    (options, KINDS[(number + shift) % 6], q_len, [400, (400, 250)[(number + shift) % 2]])
    for number, options in enumerate(OPTIONS)
    for shift, q_len in enumerate((1, 30, 1, 30))
]


@pytest.mark.parametrize(("name", "kind", "q_len", "lengths"), CASES)
def test_as_for_plain_arrays(name, kind, q_len, lengths, target):
    options = OPTIONS[name]
    dtype = np.dtype("float32" if kind == "pages" else kind.removesuffix(" pages"))
    cache = regard.KVCache(2, 3, 8, 5, dtype=dtype, page_size=16 if "pages" in kind else None)
    key, value = tokens(0, 2, 400, kv_heads=3)
    cache.append(key, value, lengths)
    as_read = np.float32 if dtype == np.int8 else dtype
    query = normal(1, 2, 6, q_len, 8).astype(as_read)
    got = cache.explain(query, **options)
    given = {"is_causal": True, "query_offset": np.array(lengths) - q_len} | options
    given |= {"key_lengths": None if lengths[0] == lengths[1] else lengths}
    want = regard.explain(query, key.astype(as_read), value.astype(as_read), **given)
    for size in SIZES:
        assert getattr(got, size) == getattr(want, size), size
    row = (8 + 5) * dtype.itemsize + (8 if dtype == np.int8 else 0)
    output = 2 * 6 * q_len * 5 * query.itemsize
    assert got.bytes == query.nbytes + output + sum(lengths) * 3 * row
    assert cache.attend(query, **options).dtype == got.result_type
    notes = " ".join(got.notes)
    assert ("8-bit integers" in notes) == ("int8" in kind)
    assert f"pages of {16 if 'pages' in kind else 192} tokens" in notes
