"""Test multi-head attention as a layer: errors of its construction and its calls, and its repr."""

import numpy as np
import pytest

from regard import KVCache, MultiHeadAttention
from rope_cases import yarn


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"d_model": 0}, ValueError, "d_model must be at least 1, got 0"),
        ({"d_model": 12.0}, TypeError, "d_model must be an int, got float"),
        ({"num_heads": True}, TypeError, "num_heads must be an int, got bool"),
        (
            {"num_heads": 5},
            ValueError,
            "num_heads must divide d_model if head_dim is not given, got 5 and 12",
        ),
        ({"num_kv_heads": 2}, ValueError, "num_kv_heads must divide num_heads, got 2 and 3"),
        ({"num_kv_heads": 0}, ValueError, "num_kv_heads must be at least 1, got 0"),
        ({"head_dim": 0}, ValueError, "head_dim must be at least 1, got 0"),
        ({"d_key": 0}, ValueError, "d_key must be at least 1, got 0"),
        ({"d_value": "4"}, TypeError, "d_value must be an int, got str"),
        ({"qkv_bias": 1}, TypeError, "qkv_bias must be True or False, got int"),
        ({"out_bias": None}, TypeError, "out_bias must be True or False, got NoneType"),
        ({"is_causal": "yes"}, TypeError, "is_causal must be True or False, got str"),
        ({"alibi": 2}, TypeError, "alibi must be True or False, got int"),
        ({"distance_bias": 0}, ValueError, "distance_bias must be at least 1, got 0"),
        ({"distance_bias": 2.0}, TypeError, "distance_bias must be an int, got float"),
        ({"distance_bias": True}, TypeError, "distance_bias must be an int, got bool"),
        (
            {"distance_bias": np.zeros((3, 5))},
            TypeError,
            "distance_bias must be an int, the number of distances on a side, got an array of "
            "shape (3, 5): load_state_dict() writes its numbers",
        ),
        ({"window": 3}, TypeError, "window must be a pair (left, right), got int"),
        ({"window": (-1, 0)}, ValueError, "window[0] must be at least 0, got -1"),
        ({"rotary": 10000.0}, TypeError, "rotary must be None, True or a mapping, got float"),
        ({"rotary": False}, TypeError, "rotary must be None, True or a mapping, got bool"),
        (
            {"rotary": {"theta": 3}},
            ValueError,
            "rotary must have keys among base, rotary_dim, interleaved, inverse_frequencies, "
            "scaling, length, got theta",
        ),
        ({"rotary": {"base": -1}}, ValueError, "base must be positive and finite, got -1.0"),
        (
            {"rotary": {"rotary_dim": 6}},
            ValueError,
            "rotary_dim must be at most head_dim, got 6 and 4",
        ),
        (
            {"rotary": True, "head_dim": 5},
            ValueError,
            "rotary_dim must be even, got 5, the head_dim: rotate fewer columns with rotary_dim=",
        ),
        (
            {"rotary": {"inverse_frequencies": [1.0], "base": 5}},
            ValueError,
            "rotary's inverse_frequencies already determine the angles: leave base out",
        ),
        (
            {"rotary": {"interleaved": 1}},
            TypeError,
            "rotary['interleaved'] must be True or False, got int",
        ),
        ({"rotary": {"scaling": {"rope_type": "linear"}}}, ValueError, None),
        (
            {"qk_norm": "layer"},
            ValueError,
            "qk_norm must be None, 'rms', 'rms_plus_one' or an eps, got 'layer'",
        ),
        ({"qk_norm": True}, TypeError, "qk_norm must be a real number, got bool"),
        ({"qk_norm": -1.0}, ValueError, "qk_norm must be at least 0 and finite, got -1.0"),
        ({"rng": -1}, ValueError, "rng must be at least 0, got -1"),
        ({"dtype": np.float16}, TypeError, "dtype must be float32 or float64, got float16"),
    ],
)
def test_construction_errors(arguments, error, message):
    with pytest.raises(error) as raised:
        MultiHeadAttention(**({"d_model": 12, "num_heads": 3} | arguments))
    assert message is None or str(raised.value) == message


X = np.zeros((2, 5, 12))


@pytest.mark.parametrize(
    ("inputs", "options", "error", "message"),
    [
        ((X[..., :8],), {}, ValueError, "query must have shape (..., seq, 12), got (2, 5, 8)"),
        ((X[0, 0],), {}, ValueError, "query must have shape (..., seq, 12), got (12,)"),
        ((X + 1j,), {}, TypeError, "query must be an array of real numbers, got complex128"),
        ((X, X[..., :8]), {}, ValueError, "key must have shape (..., seq, 12), got (2, 5, 8)"),
        ((X, X, X[..., :8]), {}, ValueError, "value must have shape (..., seq, 12), got (2, 5, 8)"),
        ((X, None, X), {}, ValueError, "value needs key, got only value"),
        ((X, X, X[:, :4]), {}, ValueError, None),
        ((X, np.zeros((3, 5, 12))), {}, ValueError, None),
        ((X,), {"mask": np.ones((5, 4), bool)}, ValueError, None),
        ((X,), {"key_lengths": 6}, ValueError, None),
        ((X,), {"query_offset": 0.5}, TypeError, None),
        (
            (X,),
            {"query_offset": [1, 2, 3]},
            ValueError,
            "query_offset must be an integer or broadcast to the batch axes (2,), got shape (3,)",
        ),
        (
            (X,),
            {"query_offset": "end", "key_lengths": [1, 2, 3]},
            ValueError,
            "key_lengths must be an integer or broadcast to the batch axes (2,), got shape (3,)",
        ),
        ((X,), {"threads": 0}, ValueError, None),
    ],
)
def test_call_errors(inputs, options, error, message):
    with pytest.raises(error) as raised:
        MultiHeadAttention(12, 3, rotary=True, rng=0)(*inputs, **options)
    assert message is None or str(raised.value) == message


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


def test_what_is_not_a_cache():
    layer = MultiHeadAttention(16, 2, rng=0)
    with pytest.raises(TypeError, match=r"^cache must be a KVCache, got dict$"):
        layer(np.zeros((1, 3, 16)), cache={})


def test_errors_of_the_offset_end():
    layer = MultiHeadAttention(16, 2, is_causal=True, rotary=True, rng=0)
    with pytest.raises(ValueError, match=r"^query_offset must be an int, .* got 'start'$"):
        layer(np.zeros((2, 3, 16)), query_offset="start")
    with pytest.raises(ValueError, match="query_offset must be left out with a cache"):
        layer(np.zeros((1, 3, 16)), cache=KVCache(1, 2, 8), query_offset="end")
