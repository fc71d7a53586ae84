"""Test the representations of layers, which show the options that are not the defaults."""

import numpy as np
import pytest

import regard
from regard import MultiHeadAttention
from rope_cases import yarn


def test_representation():
    layer = MultiHeadAttention(12, 6, num_kv_heads=2, is_causal=True, rng=0, dtype="f8")
    assert repr(layer) == (
        "MultiHeadAttention(d_model=12, num_heads=6, num_kv_heads=2, head_dim=2, is_causal=True, "
        "dtype=float64)"
    )


START = "MultiHeadAttention(d_model=12, num_heads=3, num_kv_heads=3, head_dim=4, is_causal=False"


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({}, ""),
        ({"d_key": 5}, ", d_key=5"),
        ({"d_key": 5, "d_value": 7}, ", d_key=5, d_value=7"),
        ({"d_value": 7}, ", d_value=7"),
        ({"qkv_bias": True, "out_bias": True}, ", qkv_bias=True, out_bias=True"),
        ({"window": [3, None], "alibi": True}, ", window=(3, None), alibi=True"),
        ({"qk_norm": "rms"}, ", qk_norm=1e-06"),
        ({"rotary": True}, ", rotary=True"),
        ({"rotary": {}}, ", rotary=True"),
        (
            {"rotary": {"base": 500.0, "interleaved": True, "scaling": yarn()}},
            ", rotary={'base': 500.0, 'interleaved': True, 'scaling': ...}",
        ),
        ({"rotary": {"inverse_frequencies": np.ones(2)}}, ", rotary={'inverse_frequencies': ...}"),
        ({"rotary": {"base": None, "rotary_dim": 2}}, ", rotary={'rotary_dim': 2}"),
    ],
)
def test_repr_shows_the_options(options, shown):
    layer = MultiHeadAttention(12, 3, rng=0, **options)
    assert repr(layer) == f"{START}{shown}, dtype=float32)"


def test_representations_show_dropout():
    assert "dropout" not in repr(regard.MultiHeadAttention(4, 2, rng=0))
    assert repr(regard.MultiHeadAttention(4, 2, dropout=0.1, rng=0)).endswith(
        "is_causal=False, dropout=0.1, dtype=float32)"
    )
    assert repr(regard.SelfAttention(4, 2, dropout=0.1, rng=0)) == (
        "SelfAttention(d_in=4, d_out=2, qkv_bias=False, init='linear', dropout=0.1, dtype=float32)"
    )
