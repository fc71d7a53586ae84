"""Test the public names: their signatures, and that they are documented."""

import inspect
import re
from operator import attrgetter

import numpy as np
import pytest

import regard

POSITIONAL, NAMED = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
SIGNATURES = {
    "scaled_dot_product_attention": {
        "query": inspect.Parameter.empty,
        "key": inspect.Parameter.empty,
        "value": inspect.Parameter.empty,
        "mask": None,
        "*": None,
        "rows": None,
        "is_causal": False,
        "query_offset": 0,
        "window": None,
        "key_lengths": None,
        "left_padding": None,
        "scale": None,
        "softcap": None,
        "alibi_slopes": None,
        "distance_bias": None,
        "score_function": None,
        "sinks": None,
        "dropout_p": 0.0,
        "dropout_seed": None,
        "dropout_origin": (0, 0, 0),
        "precision": None,
        "return_weights": False,
        "return_lse": False,
        "out": None,
        "threads": None,
        "device": None,
    },
    "matmul": {"a": inspect.Parameter.empty, "b": inspect.Parameter.empty},
    "scale": {"scores": inspect.Parameter.empty, "factor": inspect.Parameter.empty},
    "apply_mask": {"scores": inspect.Parameter.empty, "mask": inspect.Parameter.empty},
    "softmax": {"x": inspect.Parameter.empty, "axis": -1},
}
_attention = {**SIGNATURES["scaled_dot_product_attention"]}
del _attention["rows"]
_starts = {"query_starts": inspect.Parameter.empty, "key_starts": inspect.Parameter.empty}
_names = list(_attention)
SIGNATURES["scaled_dot_product_attention_ragged"] = {
    **{name: _attention[name] for name in _names[:3]},
    **_starts,
    **{name: _attention[name] for name in _names[3:]},
}
SIGNATURES["explain"] = {
    **{name: _attention[name] for name in _names[:5]},
    **dict.fromkeys(_starts),
    **{name: _attention[name] for name in _names[5:] if name not in ("out", "device")},
}
for _name, _wanted in SIGNATURES.items():
    if not _wanted.keys() & {"threads"}:
        _wanted |= {"*": None, "out": None, "threads": None}

NEEDED = inspect.Parameter.empty
_WEIGHT_OPTIONS = {
    name: default
    for name, default in _attention.items()
    if name in (*_names[5 : _names.index("dropout_p")], "threads")
}
_STATISTICS = {
    "*": None,
    "statistics": (
        *("entropy", "max", "effective_count", "mean_distance", "first_mass", "local_mass"),
        *("previous_token", "column_sums", "column_means"),
    ),
    "top_k": 8,
    "first_keys": 4,
    "local_reach": 64,
    "tokens": None,
    "lse": None,
    "progress": None,
    **_WEIGHT_OPTIONS,
}
OTHERS = {
    "KVCache": {
        "batch": NEEDED,
        "num_kv_heads": NEEDED,
        "head_dim": NEEDED,
        "value_dim": None,
        "*": None,
        "capacity": None,
        "dtype": np.float32,
        "keep_last": None,
        "keep_first": 0,
        "page_size": None,
        "max_bytes": None,
        "key_scales": None,
        "value_scales": None,
    },
    "attend_stream": {
        "query": NEEDED,
        "chunks": NEEDED,
        "mask": None,
        "*": None,
        "return_lse": False,
        "progress": None,
        **{
            name: default
            for name, default in _attention.items()
            if name not in ("query", "key", "value", "mask", "*", "return_lse")
            and name not in ("precision", "return_weights", "device")
        },
    },
    "summarize_attention": {"query": NEEDED, "key": None, "mask": None, **_STATISTICS},
    "summarize_attention_ragged": {
        "query": NEEDED,
        "key": NEEDED,
        "query_starts": NEEDED,
        "key_starts": NEEDED,
        "mask": None,
        **_STATISTICS,
    },
    "attention_map": {
        "query": NEEDED,
        "key": None,
        "mask": None,
        "*": None,
        "shape": (512, 512),
        "reduce": "max",
        "regions": None,
        "lse": None,
        "progress": None,
        **_WEIGHT_OPTIONS,
    },
    "explore": {
        "query": None,
        "key": None,
        "mask": None,
        "*": None,
        "weights": None,
        "tokens": None,
        "names": None,
        "statistics": None,
        **{name: _STATISTICS[name] for name in ("top_k", "first_keys", "local_reach")},
        "detail": None,
        "regions": None,
        "tile_bytes": None,
        "max_bytes": 100_000_000,
        "progress": None,
        **_WEIGHT_OPTIONS,
    },
    "ScoreFunction": {
        "function": NEEDED,
        "derivative": None,
        "user_data": None,
        "*": None,
        "dtype": None,
    },
    "KeyValueChunks": {"key": NEEDED, "value": NEEDED, "*": None, "length": None},
    "show": {"weights": NEEDED, "tokens": None, "*": None, "head": None},
    "set_threading_layer": {"name": NEEDED},
    "threading_layer": {},
    "merge_attention_states": {"outputs": NEEDED, "lses": NEEDED, "*": None, "threads": None},
    "merge_attention_states_backward": {
        "grad_output": NEEDED,
        "outputs": NEEDED,
        "lses": NEEDED,
        "output": NEEDED,
        "lse": NEEDED,
        "*": None,
        "grad_lse": None,
    },
    "MultiHeadAttention": {
        "d_model": NEEDED,
        "num_heads": NEEDED,
        "*": None,
        "num_kv_heads": None,
        "head_dim": None,
        "d_key": None,
        "d_value": None,
        "qkv_bias": False,
        "out_bias": False,
        "is_causal": False,
        "window": None,
        "rotary": None,
        "alibi": False,
        "distance_bias": None,
        "head_gates": False,
        "qk_norm": None,
        "dropout": 0.0,
        "rng": None,
        "dtype": np.float32,
    },
    "checkpoints.load_gguf": {"path": NEEDED, "prefix": "", "*": None, "weight_dtype": None},
    "checkpoints.load_safetensors": {"path": NEEDED, "prefix": "", "*": None, "weight_dtype": None},
    "masks.causal": {"q_len": NEEDED, "kv_len": None, "*": None, "query_offset": 0},
    "masks.window": {
        "q_len": NEEDED,
        "kv_len": None,
        "*": None,
        "window": NEEDED,
        "query_offset": 0,
    },
    "masks.padding": {"key_lengths": NEEDED, "kv_len": NEEDED, "*": None, "side": "right"},
    "masks.segments": {"query_segments": NEEDED, "key_segments": None},
    "masks.prefix": {
        "q_len": NEEDED,
        "kv_len": None,
        "*": None,
        "prefix_lengths": NEEDED,
        "query_offset": 0,
    },
    "masks.sliding": {
        "q_len": NEEDED,
        "kv_len": None,
        "*": None,
        "window": NEEDED,
        "dilation": 1,
        "query_offset": 0,
    },
    "masks.documents": {"query_ids": NEEDED, "key_ids": None},
    "masks.global_tokens": {
        "tokens": NEEDED,
        "q_len": NEEDED,
        "kv_len": None,
        "*": None,
        "query_offset": 0,
    },
    "masks.neighborhood": {
        "shape": NEEDED,
        "window": NEEDED,
        "*": None,
        "dilation": 1,
        "is_causal": False,
    },
    "masks.tree": {"parents": NEEDED, "*": None, "past": 0},
    "masks.random_blocks": {
        "q_len": NEEDED,
        "kv_len": None,
        "*": None,
        "blocks_per_row": NEEDED,
        "heads": None,
        "block": (128, 128),
        "rng": None,
    },
    "masks.from_function": {
        "f": NEEDED,
        "q_len": NEEDED,
        "kv_len": None,
        "*": None,
        "block": (128, 128),
        "by_corners": False,
    },
    "masks.stack": {"masks": NEEDED},
    "masks.SparseMask": {},
    "masks.Ranges": {"first": NEEDED, "last": NEEDED, "*": None, "kv_len": None},
    "masks.Blocks": {
        "indptr": NEEDED,
        "indices": None,
        "*": None,
        "shape": None,
        "block": None,
        "bits": None,
    },
    "masks.check": {"mask": NEEDED, "*": None, "allow_empty_rows": False},
    "masks.as_additive": {"mask": NEEDED, "dtype": np.float32},
    "positional.sinusoidal": {
        "length": NEEDED,
        "dim": NEEDED,
        "base": 10000.0,
        "*": None,
        "dtype": np.float64,
    },
    "positional.rotary": {
        "x": NEEDED,
        "positions": None,
        "*": None,
        "base": None,
        "rotary_dim": None,
        "interleaved": False,
        "inverse_frequencies": None,
        "scaling": None,
        "length": None,
        "cache": None,
        "out": None,
    },
    "positional.rotary_cache": {
        "positions": NEEDED,
        "rotary_dim": None,
        "*": None,
        "head_dim": None,
        "base": None,
        "inverse_frequencies": None,
        "scaling": None,
        "length": None,
        "dtype": np.float64,
    },
    "positional.alibi_slopes": {"heads": NEEDED, "*": None, "dtype": np.float64},
    "positional.rotary_frequencies": {
        "rotary_dim": None,
        "*": None,
        "head_dim": None,
        "base": None,
        "scaling": None,
        "length": None,
    },
    "positional.t5_distance_bias": {
        "table": NEEDED,
        "*": None,
        "bidirectional": True,
        "max_distance": 128,
    },
    "positional.t5_distance_bias_backward": {
        "grad": NEEDED,
        "*": None,
        "bidirectional": True,
        "num_buckets": 32,
        "max_distance": 128,
    },
    "positional.t5_buckets": {
        "q_len": NEEDED,
        "kv_len": None,
        "*": None,
        "query_offset": 0,
        "bidirectional": True,
        "num_buckets": 32,
        "max_distance": 128,
    },
}


@pytest.mark.parametrize("name", [*SIGNATURES, *OTHERS])
def test_signature(name):
    actual, kind = {}, POSITIONAL
    for parameter in inspect.signature(attrgetter(name)(regard)).parameters.values():
        if parameter.kind == NAMED and kind == POSITIONAL:
            actual["*"], kind = None, NAMED
        assert parameter.kind == kind
        actual[parameter.name] = parameter.default
    assert list(actual.items()) == list((SIGNATURES | OTHERS)[name].items())


def test_public_names_exist_and_are_documented():
    needed = {*SIGNATURES, "set_num_threads", "get_num_threads", "cpu_targets", "active_target"}
    needed |= {name for name in OTHERS if "." not in name}
    assert needed | {"show_config"} <= set(regard.__all__)
    assert len(set(regard.__all__)) == len(regard.__all__)
    for name in regard.__all__:
        thing = getattr(regard, name)
        if not isinstance(thing, str):
            assert (thing.__doc__ or "").strip(), name
    for module in ("checkpoints", "masks", "positional"):
        public = {name.split(".")[1] for name in OTHERS if name.startswith(f"{module}.")}
        listed = set(getattr(regard, module).__all__)
        assert public == listed, f"signatures in OTHERS, above, for {module}: {public ^ listed}"
    for name, parameters in (SIGNATURES | OTHERS).items():
        for parameter in parameters:
            assert parameter == "*" or re.search(
                rf"\b{parameter}\b", attrgetter(name)(regard).__doc__
            ), f"{name} does not describe {parameter} in its docstring"
