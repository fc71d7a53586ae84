"""Few rows of queries have the bits of many, also where they run in a separate kernel."""

import itertools

import numpy as np

import regard
from element_types import each_in_one_type

# (heads, kv_heads, queries per call): 1, 2, 3, 4, 5, 6 and 8 rows for each key head.
ROWS = [(4, 4, 1), (4, 2, 1), (6, 2, 1), (2, 2, 4), (5, 1, 1), (3, 1, 2), (8, 1, 1), (4, 2, 4)]
# Around tiles, steps, blocks of 96 keys and chunks of 1536.
LENGTHS = [1, 15, 16, 17, 95, 96, 97, 1535, 1536, 1537, 3100]


def arrays_of(dtype, heads, kv_heads, q_len, kv_len, head_dim=16, value_dim=24, spread=1.0):
    random = np.random.default_rng(kv_len)
    shapes = (2, heads, q_len, head_dim), (2, kv_heads, kv_len, head_dim)
    query, key = (random.standard_normal(shape) for shape in shapes)
    value = random.standard_normal((2, kv_heads, kv_len, value_dim))
    return (query * spread).astype(dtype), key.astype(dtype), value.astype(dtype)


def same_bits(query, key, value, mask=None, *, step, query_offset, **options):
    """Check that `step` queries at a time give the bits that all queries give at once."""
    few_rows = "forward" if query.dtype == np.float64 else "decode"
    attend = regard.scaled_dot_product_attention
    whole = attend(query, key, value, mask, query_offset=query_offset, return_lse=True, **options)
    assert regard.explain(query, key, value, mask, **options).kernel == "forward"
    for first in range(0, query.shape[-2], step):
        part = query[..., first : first + step, :]
        part_mask = mask
        if mask is not None and np.ndim(mask) > 1 and mask.shape[-2] > 1:
            part_mask = mask[..., first : first + step, :]
        here = {"query_offset": query_offset + first, **options}
        results = attend(part, key, value, part_mask, return_lse=True, **here)
        assert regard.explain(part, key, value, part_mask, **options).kernel == few_rows
        for all_rows, rows in zip(whole, results, strict=True):
            np.testing.assert_array_equal(rows, all_rows[:, :, first : first + step])


@each_in_one_type(list(itertools.product(ROWS, LENGTHS)), "dtype", quick=2)
def test_the_bits_of_the_forward_kernel(case, dtype, target):
    (heads, kv_heads, step), kv_len = case
    arrays = arrays_of(dtype, heads, kv_heads, 17, kv_len)
    same_bits(*arrays, step=step, query_offset=kv_len - 17, is_causal=True)


OPTIONS = {
    "-".join(options): options
    for options in [
        {"window": (40, 3)},
        {"alibi_slopes": [0.5, 0.1, 0.0, -0.2]},
        {"sinks": [0.5, -np.inf, 3.0, -40.0]},
        {"softcap": 3.0},
        {"key_lengths": np.array([0, 1600])},
        {"scale": -2.0},
        {"window": (100, 0), "sinks": [1, 2, 3, 4], "softcap": 1.0, "alibi_slopes": [1, 2, 3, 4]},
    ]
}
MASKS = ["no mask", "bool", "float", "row"]
SPREADS = [1.0, 30.0]


@each_in_one_type(list(itertools.product(OPTIONS, MASKS, SPREADS)), "dtype", quick=3)
def test_the_bits_under_options(case, dtype, target):
    options, masked, spread = case
    arrays = arrays_of(dtype, 4, 2, 9, 1700, spread=spread)
    random = np.random.default_rng(1)
    seen = random.random((9, 1700)) < 0.6
    mask = {
        "no mask": None,
        "bool": seen,
        "float": np.where(seen, random.standard_normal((4, 9, 1700)), -np.inf).astype(dtype),
        "row": seen[0],
    }[masked]
    same_bits(*arrays, mask, step=2, query_offset=1650, is_causal=True, **OPTIONS[options])


LONG_LENGTHS = [1600, 3072, 7000]
HEADS = [(1, 1), (3, 3), (6, 2), (5, 5)]
LONG_OPTIONS = {
    "plain": lambda heads: {},
    "sinks": lambda heads: {"sinks": np.linspace(-2, 3, heads)},
    "window": lambda heads: {"window": (1700, 0)},
    "key_lengths": lambda heads: {"key_lengths": [0, 1537]},
}


@each_in_one_type(list(itertools.product(LONG_LENGTHS, HEADS, LONG_OPTIONS)), "dtype", quick=2)
def test_threads_share_the_keys_of_a_head(case, dtype, target):
    """The threads gather chunks in any order, but the bits equal the bits of one thread."""
    kv_len, (heads, kv_heads), name = case
    options = LONG_OPTIONS[name](heads)
    arrays = arrays_of(dtype, heads, kv_heads, 1, kv_len)
    options = {"is_causal": True, "query_offset": kv_len - 5, "return_lse": True, **options}
    attend = regard.scaled_dot_product_attention
    wanted = attend(*arrays, threads=1, **options)
    for threads in (2, 3, 7):
        for one, many in zip(wanted, attend(*arrays, threads=threads, **options), strict=True):
            np.testing.assert_array_equal(many, one)
