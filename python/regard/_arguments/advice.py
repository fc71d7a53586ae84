"""Advice on the keywords of other libraries. Only a call that fails imports this module."""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from typing import Final, get_args

from regard._arguments.option_table import OPTIONS, Kind

# The same option under other names. The first name that the call accepts is suggested.
_RENAMED = {alias: (option.name,) for option in OPTIONS.values() for alias in option.aliases} | {
    "Q": ("query",),
    "K": ("key",),
    "V": ("value",),
    "q": ("query",),
    "k": ("key",),
    "v": ("value",),
    "hidden_states": ("x", "query"),
    "inputs_q": ("query", "x"),
    "inputs_k": ("key",),
    "inputs_v": ("value",),
    "input": ("x", "a"),
    "other": ("b",),
    "dim": ("axis", "d_model", "rotary_dim"),
    "mask": ("attn_mask",),
    "attn_mask": ("mask",),
    "attention_mask": ("mask", "attn_mask"),
    "custom_mask": ("mask", "attn_mask"),
    "attn_bias": ("mask", "attn_mask"),
    "generator": ("rng",),
    "key": ("rng",),
    "rngs": ("rng",),
    "embed_dim": ("d_model", "d_in"),
    "hidden_size": ("d_model", "d_in"),
    "dims": ("d_model", "rotary_dim"),
    "n_embd": ("d_model",),
    "num_attention_heads": ("num_heads", "heads"),
    "n_head": ("num_heads", "heads"),
    "nhead": ("num_heads",),
    "num_heads": ("heads", "num_kv_heads"),
    "heads": ("num_heads", "num_kv_heads"),
    "q_num_heads": ("num_heads",),
    "kv_heads": ("num_kv_heads",),
    "kv_num_heads": ("num_kv_heads",),
    "num_key_value_heads": ("num_kv_heads",),
    "batch_size": ("batch",),
    "max_batch_size": ("batch",),
    "max_cache_len": ("capacity",),
    "max_length": ("capacity",),
    "max_seq_len": ("capacity",),
    "block_size": ("page_size",),
    "dim_head": ("head_dim",),
    "key_dim": ("head_dim",),
    "kdim": ("d_key",),
    "vdim": ("d_value",),
    "in_features": ("d_in",),
    "out_features": ("d_out",),
    "rotary_embedding_dim": ("rotary_dim",),
    "rotary_interleaved": ("interleaved",),
    "traditional": ("interleaved",),
    "position_ids": ("positions",),
    "rope_theta": ("base",),
    "theta": ("base",),
    "rope_parameters": ("scaling",),
    "rope_scaling": ("scaling",),
    "relative_attention_num_buckets": ("num_buckets",),
    "relative_attention_max_distance": ("max_distance",),
    "alibi_slopes": ("alibi",),
    "src_len": ("kv_len",),
    "tgt_len": ("q_len",),
    "seq_len": ("q_len", "length"),
    "seqlen_q": ("q_len",),
    "seqlen_k": ("kv_len",),
    "n_heads": ("num_heads", "heads"),
    "padding_side": ("side",),
    "segment_ids": ("query_segments",),
    "seed": ("dropout_seed", "rng"),
    "scale_factor": ("scale", "factor"),
    "context_lens": ("key_lengths", "lengths"),
    "seq_lens": ("key_lengths", "lengths"),
    "block_tables": ("block_table",),
    "k_scale": ("key_scales",),
    "v_scale": ("value_scales",),
}

# Kinds of calls in which a keyword has a special meaning: all calls on arrays with a heads axis, or
# one kind of such calls; layers; and single functions, by their qualified names.
_ATTENTION: Final = "attention"
_LAYER: Final = "layer"
_ONE_HEAD: Final = "self-attention"
_KINDS = frozenset(get_args(Kind))
_ATTENTION_KINDS = _KINDS - {_LAYER, _ONE_HEAD}
_LAYER_CONSTRUCTOR = "MultiHeadAttention.__init__()"
_CACHE_CONSTRUCTOR = "KVCache.__init__()"
_ROTARY = "rotary()"
_CHUNKS = "KeyValueChunks.__init__()"


def _refusal(option: str, kind: Kind) -> str:
    return OPTIONS[option].refusal(kind) or ""


_DROPOUT = {
    "dropout_p": "pass dropout_p= and dropout_seed=",
    "dropout": "pass dropout= to the constructor, and dropout_seed= to the call",
    _LAYER: _refusal("dropout_p", _LAYER),
    _ONE_HEAD: _refusal("dropout_p", _ONE_HEAD),
    "": "leave it out: this call drops no weights",
}
_TRAINING = {
    "dropout_seed": "leave it out: dropout_p determines whether weights are dropped, and a layer's "
    "train() and eval() whether it trains",
    "": "leave it out: this is not a call that trains",
}
_ITS_OWN_KERNELS = "leave it out: regard chooses its kernels itself, and regard.explain shows them"
_PACKED_PADDING = "leave it out: packed sequences have no padding"
_NOT_NEEDED = {_ATTENTION: "leave it out: queries beyond their length change no other row"}
_OF_THE_LAYER = {_LAYER: "pass it to the constructor, MultiHeadAttention()"}
_CAUSAL_LAYER = "pass is_causal=True to the constructor, MultiHeadAttention()"
_TOKENIZERS_MASK = (
    "pass mask=, for a tokenizer's (batch, kv_len) of ones and zeros "
    "mask=attention_mask.astype(bool){}"
)
_HEADS_AXIS = {
    "query_starts": "leave it out: the heads axis is the second",
    _ATTENTION: "leave it out: the heads axis is the third from the end",
}
_FIRST_TOKENS = (
    "leave it out: show the first tokens with a mask, or with keep_first= of a regard.KVCache"
)
_NOT_VISIBILITY = _refusal("scale", "pattern")
_ONE_HEAD_ALONE = {_ONE_HEAD: "leave it out: this layer has one head"}
_ALL_HEADS = "leave it out: heads are computed independently, so ignore the unneeded results"
_DILATED = (
    "leave it out, and call this for each i < dilation with query[..., i::dilation, :], and key "
    "and value likewise"
)
_OF_THE_CACHE = _refusal("key_lengths", "cache")
_PER_LAYER = {_CACHE_CONSTRUCTOR: "leave it out: make a regard.KVCaches for all layers"}
_OTHER_WINDOWS = {
    _CACHE_CONSTRUCTOR: "pass keep_last=n, which counts the query's own token too",
    _LAYER: "pass window=(left, right) to the constructor, MultiHeadAttention()",
    _ONE_HEAD: _refusal("window", _ONE_HEAD),
}
_NOT_PACKED = "leave it out: this call has no packed sequences"
_RAGGED_CALLS = {
    "gradients": "scaled_dot_product_attention_ragged_backward",
    "weights": "summarize_attention_ragged",
    _ATTENTION: "scaled_dot_product_attention_ragged",
}


def _sparse(text: str, **others: str) -> dict[str, str]:
    """Return the advice on a keyword that a sparse mask replaces."""
    without = {"cuda": "pass mask= as a bool array, such as the to_dense() of a sparse mask"}
    return {**without, **others, **dict.fromkeys((_ATTENTION, _LAYER, _ONE_HEAD), text)}


def _documents(name: str) -> dict[str, dict[str, str]]:
    """Return the advice on a keyword for the numbers of packed documents."""
    mask = f"pass mask=regard.masks.documents({name})"
    ragged = "or call scaled_dot_product_attention_ragged with the starts of the documents"
    advice: dict[str, str] = {
        "query_starts": "leave it out: query_starts= and key_starts= separate the sequences",
        "cuda": f"pass mask=regard.masks.segments({name}), {ragged}",
        **dict.fromkeys(
            ("cache", "pages", "gradients", "pattern", "torch", "weights", _LAYER), mask
        ),
        _ATTENTION: f"{mask}, {ragged}",
        _ONE_HEAD: f"{mask}, and add [:, 0] after it if x is a batch",
    }
    return {name: advice}


def _starts(name: str, text: str) -> dict[str, str]:
    """Return the advice on a keyword that calls with starts of sequences accept or do not need."""
    calls = {kind: f"call {call}, which accepts {name}=" for kind, call in _RAGGED_CALLS.items()}
    without = dict.fromkeys(("tangent_query", "grad_grad_query", "dask"), _NOT_PACKED)
    return {name: text, **without, **calls}


def _numbers_of_heads(name: str) -> dict[str, str]:
    """Return the advice on a keyword for numbers that multiply the outputs of heads."""
    return {
        "head_weights": "pass head_weights=",
        **dict.fromkeys(("explain", "weights"), _ALL_HEADS),
        "pattern": _NOT_VISIBILITY,
        "gradients": f"leave it out, and multiply grad_output by the {name} of the output",
        "query_starts": f"leave it out, and multiply the output by {name}[:, None]",
        **dict.fromkeys(
            ("out", "torch", "jax", "dask"),
            f"leave it out, and multiply the output by {name}[:, None, None]",
        ),
        _ATTENTION: _ALL_HEADS,
        **_ONE_HEAD_ALONE,
        "SelfAttention.__init__()": _ONE_HEAD_ALONE[_ONE_HEAD],
    }


_LENGTHS = {
    "block_table": "leave it out: lengths= determines it",
    "cache": _OF_THE_CACHE,
    "starts": "leave it out: starts= determines it",
    **_starts("query_starts", "leave it out: the starts of the sequences determine it"),
}
_QUERY_STARTS = {
    "block_table": "pass starts=",
    "cache": "call attend_ragged, which accepts starts=",
    _LAYER: "pass starts=",
    **_starts("query_starts", "pass query_starts="),
}
_PAST = {
    "cache": "call append() with the keys and values of earlier tokens first",
    "pages": "leave it out: the pages contain the earlier tokens",
    _LAYER: "pass cache=",
    _ATTENTION: "append earlier and new keys and values to a regard.KVCache, and call its attend()",
}
_ZERO_SINKS = {
    _LAYER_CONSTRUCTOR: "leave it out, and pass sinks=np.zeros(num_heads) to the call",
    "sinks": "pass sinks=np.zeros(num_heads)",
}
_LAYER_BIASES = {
    "out_bias": "pass qkv_bias= and out_bias=",
    "qkv_bias": "pass qkv_bias=",
}

# Advice other than another name. The key is the kind of the call, or another keyword that the call
# accepts and that the advice recommends ("" is any call). The first match is used.
_ADVICE = {
    "attention_mask": {
        "query_starts": _PACKED_PADDING,
        _ATTENTION: _TOKENIZERS_MASK.format("[:, None, None, :]"),
        _LAYER: _TOKENIZERS_MASK.format("[:, None, None, :]"),
        _ONE_HEAD: _TOKENIZERS_MASK.format("[:, None, :]"),
    },
    "attn_mask": {
        _LAYER: "pass mask=, where True shows a key; in nn.MultiheadAttention, True hides it"
    },
    "dim": {_ATTENTION: "leave it out: the softmax runs over the keys"},
    "key_padding_mask": {
        "query_starts": _PACKED_PADDING,
        _ATTENTION: "pass mask=~key_padding_mask[:, None, None, :]",
        _LAYER: "pass mask=~key_padding_mask[:, None, None, :]",
        _ONE_HEAD: "pass mask=~key_padding_mask[:, None, :]",
    },
    "bias": {
        **dict.fromkeys(
            (_ATTENTION, _LAYER, _ONE_HEAD),
            "pass mask=bias, since a float mask is added to the scores, or mask=(mask, bias)",
        ),
        **_LAYER_BIASES,
    },
    "use_bias": _LAYER_BIASES,
    "attention_bias": _LAYER_BIASES,
    "add_bias_kv": {_LAYER_CONSTRUCTOR: "leave it out: the layer has no such parameters"},
    "add_zero_attn": _ZERO_SINKS,
    "smooth_softmax": _ZERO_SINKS,
    "batch_first": dict.fromkeys(
        (_LAYER_CONSTRUCTOR, _LAYER), "leave it out: arrays are (batch, length, d_model)"
    ),
    "ax": {"figure": "pass figure=, since the picture has several axes"},
    "figure": {"ax": "pass ax=, such as figure.subplots()"},
    "device": {"": "leave it out: this call computes on the CPU"},
    "rows": dict.fromkeys(
        (_ATTENTION, _LAYER, _ONE_HEAD),
        "leave it out: regard.scaled_dot_product_attention(..., rows=) returns the weights of some "
        "queries",
    ),
    "past_key": _PAST,
    "past_value": _PAST,
    "past_key_value": _PAST,
    "past_key_values": _PAST,
    "qv": {
        "cache": "pass query=np.concatenate([query, qv], axis=-1), after "
        "append(np.concatenate([key, value], axis=-1), value)",
        "pages": "pass query=np.concatenate([query, qv], axis=-1), and the pages of "
        "np.concatenate([key, value], axis=-1) as key_pages=",
        "pattern": _NOT_VISIBILITY,
        "weights": "leave it out: the queries are np.concatenate([query, qv], axis=-1), and the "
        "keys np.concatenate([key, value], axis=-1)",
        "stream": "pass query=np.concatenate([query, qv], axis=-1), and chunks of "
        "np.concatenate([key, value], axis=-1) and value",
        _ATTENTION: "pass query=np.concatenate([query, qv], axis=-1) and "
        "key=np.concatenate([key, value], axis=-1)",
    },
    "chunk_length": {_CHUNKS: "pass length="},
    "chunk_size": {_CHUNKS: "pass length="},
    "rotary": _OF_THE_LAYER,
    "alibi": _OF_THE_LAYER,
    "causal": {
        _LAYER: _CAUSAL_LAYER,
        _ONE_HEAD: "pass is_causal=",
        "is_causal": 'pass is_causal=True, and query_offset="end" for the alignment of '
        "FlashAttention (the last query with the last key)",
    },
    "use_causal_mask": {_LAYER: _CAUSAL_LAYER, "is_causal": "pass is_causal="},
    "window": {_CACHE_CONSTRUCTOR: _OTHER_WINDOWS[_CACHE_CONSTRUCTOR]},
    "local_window_size": {
        **_OTHER_WINDOWS,
        "window": "pass window=(left, right); one number n is (n, n) here",
    },
    "sink_tokens": {
        _CACHE_CONSTRUCTOR: "pass keep_first=",
        _ATTENTION: _FIRST_TOKENS,
        _LAYER: _FIRST_TOKENS,
    },
    "sliding_window": {
        **_OTHER_WINDOWS,
        "window": "pass window=(n - 1, 0) to see n keys, the query's own included",
    },
    "window_size": {
        **_OTHER_WINDOWS,
        "window": "pass window=(left, right), with None for FlashAttention's -1",
    },
    "window_left": {
        **_OTHER_WINDOWS,
        "window": "pass window=(window_left, None), with None for FlashInfer's -1",
    },
    "left_window_size": {"window": "pass window=(left, right), with None for ONNX's -1"},
    "right_window_size": {"window": "pass window=(left, right), with None for ONNX's -1"},
    "query_lengths": _NOT_NEEDED,
    "query_seq_lengths": _NOT_NEEDED,
    "cu_seqlens_q": _QUERY_STARTS,
    "query_start_loc": _QUERY_STARTS,
    "cu_seqlens_k": _starts("key_starts", "pass key_starts="),
    "max_seqlen": _LENGTHS,
    "max_seqlen_q": _LENGTHS,
    "max_seqlen_k": _LENGTHS,
    "last_page_len": {
        "block_table": "pass lengths=(pages - 1) * page_size + last_page_len, and 0 for a text "
        "without pages"
    },
    "block_table": {"": "call paged_attention, which accepts block_table="},
    "head": {
        "query_starts": "leave it out: select the head in the arrays, query[:, head : head + 1] "
        "and likewise its key and value",
        **dict.fromkeys(
            ("cache", "pages"),
            "leave it out: select the head in the results, output[:, head]",
        ),
        _ATTENTION: "leave it out: select the head in the arrays, query[..., head, :, :] and "
        "likewise its key and value",
        "return_weights": "leave it out: return_weights=True returns the weights of all heads",
        _LAYER: "leave it out: all heads are recorded",
        **_ONE_HEAD_ALONE,
    },
    "layer": {"head": "pass head=(layer, head)"},
    "discard_ratio": {"head_weights": "leave it out: it would need all weights of a layer"},
    "head_fusion": {
        "head_weights": "pass head_weights= for a weighted mean; the maximum or minimum over heads "
        "would need all weights of a layer"
    },
    "head_mask": {
        **_numbers_of_heads("head_mask"),
        _LAYER_CONSTRUCTOR: "pass head_gates=True to learn a number for each head, and head_gates= "
        "to a call to set one",
        "head_gates": "pass head_gates=, which multiplies the outputs of heads, not the "
        "returned weights",
        _LAYER: "leave it out: all heads are recorded",
    },
    "head_gates": _numbers_of_heads("head_gates"),
    "score_mod": {
        "score_function": "pass score_function=, a regard.ScoreFunction of a compiled function; "
        "softcap=, alibi_slopes=, distance_bias= and a float mask= need no function",
    },
    "block_mask": _sparse(
        "pass mask= as regard.masks.Blocks: hidden blocks take neither memory nor time"
    ),
    "mask_mod": _sparse("pass mask=regard.masks.from_function(mask_mod, q_len, kv_len)"),
    **_documents("document_id"),
    **_documents("document_ids"),
    **_documents("segment_ids"),
    "global_tokens": _sparse(
        "pass mask=regard.masks.sliding(...) | regard.masks.global_tokens(...)",
        query_starts="pass mask= as a bool array with True in the rows and columns of the global "
        "tokens",
    ),
    "global_attention_mask": _sparse(
        "pass mask=regard.masks.sliding(...) | regard.masks.global_tokens(...), with the indices "
        "of the tokens",
    ),
    "num_random_blocks": _sparse("pass mask=regard.masks.random_blocks(...)"),
    "kernel_size": _sparse("pass mask=regard.masks.neighborhood(shape, kernel_size)"),
    "dilation": _sparse(
        "pass mask=regard.masks.sliding(..., dilation=dilation)",
        query_starts="leave it out, and pass the tokens i, i + dilation, ... of a sequence, for "
        "each i < dilation, as a separate sequence",
        cuda=_DILATED,
    ),
    "heads": _HEADS_AXIS,
    "kv_heads": _HEADS_AXIS,
    "n_heads": _HEADS_AXIS,
    "num_heads": _HEADS_AXIS,
    "num_kv_heads": _HEADS_AXIS,
    "q_num_heads": _HEADS_AXIS,
    "kv_num_heads": _HEADS_AXIS,
    "num_layers": _PER_LAYER,
    "num_hidden_layers": _PER_LAYER,
    "enable_gqa": {
        "num_kv_heads": "pass num_kv_heads=",
        **dict.fromkeys(
            (_ATTENTION, _LAYER),
            "leave it out: query heads share key heads if there are fewer key heads",
        ),
    },
    "average_attn_weights": {
        **_ONE_HEAD_ALONE,
        "query_starts": "leave it out: average the weights, weights.mean(axis=-2)",
        "return_weights": "leave it out: average the weights, weights.mean(axis=-3)",
    },
    "implementation": {"": _ITS_OWN_KERNELS},
    "flash_attention": {"": _ITS_OWN_KERNELS},
    "backend": {"": _ITS_OWN_KERNELS},
    "deterministic": {"": "leave it out: the same arguments always give the same bits"},
    "num_splits": {"": "leave it out: the same arguments always give the same bits"},
    "attention_dropout": _DROPOUT,
    "dropout": _DROPOUT,
    "dropout_p": _DROPOUT,
    "dropout_rate": _DROPOUT,
    "p": {condition: text for condition, text in _DROPOUT.items() if condition},
    "is_training": _TRAINING,
    "requires_grad": {
        _ATTENTION: "leave it out: a separate call, ..._backward, computes gradients"
    },
    "temperature": {
        "pattern": _NOT_VISIBILITY,
        _ONE_HEAD: _refusal("scale", _ONE_HEAD),
        "scale": "pass scale=1 / (temperature * math.sqrt(head_dim))",
    },
    "training": _TRAINING,
    "partial_rotary_factor": {
        "rotary_dim": "pass rotary_dim=int(head_dim * partial_rotary_factor)",
        "rotary": 'pass rotary={"rotary_dim": int(head_dim * partial_rotary_factor)}',
    },
    "rope_theta": {"rotary": 'pass rotary={"base": rope_theta}'},
    "rope_parameters": {"rotary": 'pass rotary={"scaling": rope_parameters}'},
    "rope_scaling": {"rotary": 'pass rotary={"scaling": rope_scaling}'},
    "cos": {_ROTARY: "pass cache=(cos, sin)"},
    "sin": {_ROTARY: "pass cache=(cos, sin)"},
    "cos_cache": {_ROTARY: "pass cache=(cos_cache, sin_cache)"},
    "sin_cache": {_ROTARY: "pass cache=(cos_cache, sin_cache)"},
    "unsqueeze_dim": {_ROTARY: "leave it out: the heads axis is the third from the end"},
}


def arguments_of(call: str) -> list[str]:
    """Return the keywords that a public call accepts, for example ``"KVCache.attend"``."""
    found = sys.modules["regard"]
    for name in call.removeprefix("regard.").split("."):
        found = getattr(found, name)
    parameters = inspect.signature(found).parameters.values()  # type: ignore[arg-type]
    return [p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p.name != "self"]


def advice(name: str, known: list[str], kind: str) -> str:
    """Return advice on replacing a keyword."""
    text = _advice(name, known, kind)
    # A call that has PyTorch's name for its mask.
    return re.sub(r"\bmask=", "attn_mask=", text) if "attn_mask" in known else text


def _advice(name: str, known: list[str], kind: str) -> str:
    is_attention = kind in _ATTENTION_KINDS
    # An option of other attention calls, or another name of such an option.
    meant = [o for o in OPTIONS.values() if name == o.name or name in o.aliases]
    meant = meant if is_attention or kind in (_LAYER, _ONE_HEAD) else []
    refusals = [o.refusal(kind) for o in meant if o.name not in known]
    if refusals and meant[0].name == name and refusals[0]:
        return refusals[0]
    for condition, text in _ADVICE.get(name, {}).items():
        if condition in (kind, "") or (condition == _ATTENTION and is_attention):
            return text
        if condition in known and condition not in _KINDS:
            return text
    if refusals and refusals[0]:
        return refusals[0]
    for keyword in _RENAMED.get(name, ()):
        if keyword in known:
            return f"pass {keyword}="
    # Typos seldom change the first letter. Otherwise "heads" would match "threads".
    alike = [each for each in known if each[:1] == name[:1]]
    closest = difflib.get_close_matches(name, alike, n=1, cutoff=0.76)
    if closest:
        return f"did you mean {closest[0]}=?"
    return f"its arguments are {', '.join(known)}"
