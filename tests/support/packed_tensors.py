"""Packed sequences as tensors, and the options of calls with them.

A test module that imports this module is skipped if PyTorch is not installed.
"""

import numpy as np

from gradient_cases import drawn
from torch_problems import torch

from regard.torch import scaled_dot_product_attention_ragged  # isort: skip

HEADS, KV_HEADS, HEAD_DIM, VALUE_DIM = 4, 2, 8, 6
QUERIES, KEYS = [0, 3, 3, 10, 11], [0, 5, 9, 9, 30]
LONGEST = 21


def tensors(dtype=np.float32, kv_heads=KV_HEADS):
    shapes = (
        (QUERIES[-1], HEADS, HEAD_DIM),
        (KEYS[-1], kv_heads, HEAD_DIM),
        (KEYS[-1], kv_heads, VALUE_DIM),
    )
    return [
        torch.from_numpy(drawn(shape, np.float64, i).astype(dtype))
        for i, shape in enumerate(shapes)
    ]


def tensor(*shape, seed=9):
    return torch.from_numpy(drawn(shape, np.float32, seed))


DROPOUT = {"dropout_p": 0.4, "dropout_seed": 2**64 - 9}
# The options of a call; a tensor whose first axis is 4 has one row for each sequence.
OPTIONS = {
    "plain": {},
    "causal": {"is_causal": True},
    "end": {"is_causal": True, "query_offset": "end"},
    "offset of each": {"is_causal": True, "query_offset": torch.tensor([1, 2, 0, 20])},
    "window": {"window": (3, 1), "query_offset": 2},
    "lengths of each": {
        "key_lengths": torch.tensor([4, 4, 0, 13]),
        "left_padding": torch.tensor([1, 0, 0, 2]),
    },
    "scale": {"scale": 0.7, "softcap": 1.5},
    "scale of heads": {"scale": [0.1, 0.2, 0.3, 0.4], "softcap": [1.0, 2.0, 3.0, 4.0]},
    "slopes": {"alibi_slopes": tensor(HEADS)},
    "slopes of each": {"alibi_slopes": tensor(4, HEADS)},
    "distances": {"distance_bias": tensor(HEADS, 7), "query_offset": 3},
    "sinks": {"sinks": tensor(HEADS)},
    "dropout": DROPOUT,
    "all": {
        "is_causal": True,
        "query_offset": torch.tensor([1, 2, 0, 20]),
        "window": (9, 0),
        "softcap": 2.0,
        "alibi_slopes": tensor(4, HEADS),
        "distance_bias": tensor(HEADS, 7),
        "sinks": tensor(HEADS),
        **DROPOUT,
    },
}


def packed(query, key, value, attn_mask=None, **options):
    return scaled_dot_product_attention_ragged(
        *(query, key, value, torch.tensor(QUERIES), KEYS, attn_mask),
        enable_gqa=True,
        return_lse=True,
        **options,
    )
