"""Keywords of other libraries raise a TypeError that names regard's own."""

import inspect

import numpy as np
import pytest

import regard
from regard._arguments.keywords import refuse_keywords, refuses_unknown

ATTEND_NAMES = [*inspect.signature(regard.scaled_dot_product_attention).parameters, "left_padding"]
RAGGED = [*ATTEND_NAMES, "query_starts", "key_starts"]
ADVICE = [
    # PyTorch
    ("attn_mask", ATTEND_NAMES, "pass mask="),
    ("dropout", ATTEND_NAMES, "pass dropout_p= and dropout_seed="),
    ("requires_grad", ATTEND_NAMES, "a separate call"),
    ("enable_gqa", ATTEND_NAMES, "leave it out: query heads share"),
    ("need_weights", ATTEND_NAMES, "pass return_weights="),
    ("key_padding_mask", ATTEND_NAMES, "pass mask=~key_padding_mask[:, None, None, :]"),
    ("dim", ["x", "axis", "out", "threads"], "pass axis="),
    ("dim", ATTEND_NAMES, "the softmax runs over the keys"),
    ("input", ["x", "axis", "out", "threads"], "pass x="),
    ("other", ["a", "b", "out", "threads"], "pass b="),
    # FlashAttention and FlashInfer
    ("q", ATTEND_NAMES, "pass query="),
    ("k", ATTEND_NAMES, "pass key="),
    ("v", ATTEND_NAMES, "pass value="),
    ("causal", ATTEND_NAMES, 'pass is_causal=True, and query_offset="end"'),
    ("softmax_scale", ATTEND_NAMES, "pass scale="),
    ("sm_scale", ATTEND_NAMES, "pass scale="),
    ("window_size", ATTEND_NAMES, "pass window=(left, right), with None for FlashAttention's -1"),
    ("cu_seqlens_q", ATTEND_NAMES, "call scaled_dot_product_attention_ragged"),
    ("cu_seqlens_q", RAGGED, "pass query_starts="),
    ("cu_seqlens_k", RAGGED, "pass key_starts="),
    ("cache_leftpad", ATTEND_NAMES, "pass left_padding="),
    ("logits_soft_cap", ATTEND_NAMES, "pass softcap="),
    # JAX
    ("bias", ATTEND_NAMES, "pass mask=bias, since a float mask is added"),
    ("is_training", ATTEND_NAMES, "dropout_p determines"),
    ("key_value_seq_lengths", ATTEND_NAMES, "pass key_lengths="),
    ("query_seq_lengths", ATTEND_NAMES, "leave it out"),
    ("local_window_size", ATTEND_NAMES, "pass window=(left, right)"),
    ("implementation", ATTEND_NAMES, "regard.explain"),
    ("return_residual", ATTEND_NAMES, "pass return_lse="),
    # Hugging Face and Keras
    ("attention_mask", ATTEND_NAMES, "attention_mask.astype(bool)[:, None, None, :]"),
    ("output_attentions", ATTEND_NAMES, "pass return_weights="),
    ("s_aux", ATTEND_NAMES, "pass sinks="),
    ("sliding_window", ATTEND_NAMES, "pass window=(n - 1, 0)"),
    ("return_attention_scores", ATTEND_NAMES, "pass return_weights="),
    # typos
    ("is_casual", ATTEND_NAMES, "did you mean is_causal=?"),
    ("windows", ATTEND_NAMES, "did you mean window=?"),
    ("treads", ATTEND_NAMES, "did you mean threads=?"),
    # no typos of threads=
    ("head", ATTEND_NAMES, "select the head in the arrays"),
    ("head_mask", ATTEND_NAMES, "multiply the output by head_mask[:, None, None]"),
    ("heads", ATTEND_NAMES, "the heads axis is the"),
    ("n_heads", ATTEND_NAMES, "the heads axis is the"),
    ("head", ["x", "threads"], "its arguments are x, threads"),
    ("zzz", ["a", "b"], "its arguments are a, b"),
]


@pytest.mark.parametrize(("name", "known", "advice"), ADVICE)
def test_advice(name, known, advice):
    with pytest.raises(TypeError) as raised:
        refuse_keywords("call", [name], known)
    message = str(raised.value)
    assert message.startswith(f"call() has no argument {name}: ")
    assert advice in message


def test_every_unknown_keyword_is_named():
    with pytest.raises(TypeError) as raised:
        refuse_keywords("call", ["causal", "attn_mask"], ATTEND_NAMES)
    assert "no argument attn_mask: pass mask=; no argument causal: pass is_causal" in str(
        raised.value
    )


def test_a_decorated_call_keeps_its_signature_and_its_own_errors():
    def call(mask, *, scale=None):
        """Return both arguments."""
        return mask, scale

    checked = refuses_unknown(call)
    assert checked(1, scale=2) == (1, 2)
    assert inspect.signature(checked) == inspect.signature(call)
    assert checked.__doc__ == call.__doc__
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'mask'"):
        checked()
    with pytest.raises(TypeError, match="no argument attn_mask: pass mask="):
        checked(attn_mask=1)


LAYER = regard.MultiHeadAttention(8, 2, rng=0)
ALONE = regard.SelfAttention(4, 2, rng=0)
CACHE = regard.KVCache(1, 1, 8)
X = np.zeros((3, 8))
ATTEND = regard.scaled_dot_product_attention
STARTS = ([0, 3], [0, 3])
PAGED = regard.paged_attention
LENGTHS = ("seq_lens", "lengths", "kv_len", "context_lens")
CALLS = [
    (ATTEND, (X, X, X), "attn_mask", "pass mask="),
    (ATTEND, (X, X, X), "attention_dropout", "pass dropout_p="),
    (ATTEND, (X, X, X), "enable_gqa", "leave it out"),
    (ATTEND, (X, X, X), "causal", "pass is_causal=True"),
    (ATTEND, (X, X, X), "softmax_scale", "pass scale="),
    (ATTEND, (X, X, X), "bias", "pass mask=bias"),
    (ATTEND, (X, X, X), "dim", "the softmax runs over the keys"),
    (ATTEND, (X, X, X), "is_casual", "did you mean is_causal=?"),
    (regard.scaled_dot_product_attention_ragged, (X, X, X, *STARTS), "attn_mask", "pass mask="),
    (regard.scaled_dot_product_attention_ragged, (X, X, X), "cu_seqlens_q", "pass query_starts="),
    (regard.scaled_dot_product_attention_ragged, (), "q", "pass query="),
    (CACHE.append, (X,), "v", "pass value="),
    (CACHE.append_ragged, (X, X), "cu_seqlens", "starts"),
    (regard.explain, (X, X, X), "window_size", "pass window=(left, right)"),
    (ATTEND, (X, X, X), "num_heads", "the heads axis is the"),
    (ATTEND, (X, X, X), "sink_tokens", "with keep_first= of a regard.KVCache"),
    (ATTEND, (X, X, X), "query_lengths", "change no other row"),
    (ATTEND, (X, X, X), "score_mod", "pass score_function=, a regard.ScoreFunction"),
    (regard.summarize_attention, (X, X), "score_mod", "pass score_function="),
    (regard.rollout, (X[None, None],) * 2, "head_mask", "pass head_weights="),
    (regard.rollout, (X[None, None],) * 2, "head_fusion", "pass head_weights= for a weighted mean"),
    (regard.rollout, (X[None, None],) * 2, "discard_ratio", "it would need all weights"),
    (regard.rollout, (X[None, None],) * 2, "dropout_p", "this call drops no weights"),
    (LAYER, (X,), "score_mod", "this layer calls no function of scores"),
    (ATTEND, (X, X, X), "block_mask", "pass mask= as regard.masks.Blocks"),
    (regard.attend_stream, (X, [(X, X)]), "block_mask", "pass mask= as regard.masks.Blocks"),
    (LAYER, (X,), "block_mask", "pass mask= as regard.masks.Blocks"),
    (ATTEND, (X, X, X), "mask_mod", "regard.masks.from_function(mask_mod, q_len, kv_len)"),
    (ATTEND, (X, X, X), "segment_ids", "regard.masks.documents(segment_ids), or call"),
    (CACHE.attend, (X,), "segment_ids", "pass mask=regard.masks.documents(segment_ids)"),
    (ALONE, (X,), "segment_ids", "and add [:, 0] after it"),
    (ATTEND, (X, X, X), "document_ids", "regard.masks.documents(document_ids)"),
    (LAYER, (X,), "document_id", "regard.masks.documents(document_id)"),
    (
        regard.scaled_dot_product_attention_ragged,
        (X, X, X, *STARTS),
        "document_ids",
        "query_starts= and key_starts= separate",
    ),
    (ATTEND, (X, X, X), "global_tokens", "| regard.masks.global_tokens(...)"),
    (ALONE, (X,), "global_tokens", "| regard.masks.global_tokens(...)"),
    (ATTEND, (X, X, X), "global_attention_mask", "| regard.masks.global_tokens(...)"),
    (
        regard.scaled_dot_product_attention_ragged,
        (X, X, X, *STARTS),
        "global_tokens",
        "True in the rows and columns of the global tokens",
    ),
    (ATTEND, (X, X, X), "num_random_blocks", "pass mask=regard.masks.random_blocks("),
    (ATTEND, (X, X, X), "kernel_size", "regard.masks.neighborhood(shape, kernel_size)"),
    (ATTEND, (X, X, X), "dilation", "regard.masks.sliding(..., dilation=dilation)"),
    (LAYER, (X,), "dilation", "regard.masks.sliding(..., dilation=dilation)"),
    (ATTEND, (X, X, X), "relative_bias", "pass distance_bias="),
    (ATTEND, (X, X, X), "relative_position_bias", "pass distance_bias="),
    (regard.MultiHeadAttention, (8, 2), "relative_bias", "pass distance_bias="),
    (LAYER, (X,), "relative_bias", "pass distance_bias=n to the constructor"),
    (ALONE, (X,), "relative_bias", "this layer has one head"),
    (regard.softmax, (X,), "block_mask", "its arguments are x, "),
    (regard.KVCache, (1, 2, 4), "window", "pass keep_last=n"),
    (regard.KVCache, (1, 2, 4), "sink_tokens", "pass keep_first="),
    (regard.KVCache, (1,), "kv_heads", "pass num_kv_heads="),
    (regard.KVCache, (1,), "num_key_value_heads", "pass num_kv_heads="),
    (regard.KVCache, (1, 2, 4), "max_cache_len", "pass capacity="),
    (regard.KVCache, (1, 2, 4), "sliding_window", "pass keep_last=n"),
    (regard.KVCache, (1, 2, 4), "window_size", "pass keep_last=n"),
    (regard.KVCache, (1, 2, 4), "heads", "pass num_kv_heads="),
    (regard.KVCache, (1, 2, 4), "num_layers", "a regard.KVCaches for all layers"),
    (CACHE.attend, (X,), "causal", "causal unless is_causal=False"),
    (CACHE.attend, (X,), "left_padding", "append with lengths="),
    (CACHE.attend, (X,), "k", "cache.append(key, value)"),
    (CACHE.attend, (X,), "zzz", "its arguments are query, mask, is_causal"),
    (CACHE.attend, (X,), "softmax_scale", "pass scale="),
    (CACHE.explain, (X,), "key_lengths", "the cache knows its lengths"),
    (CACHE.explain, (X,), "attn_mask", "pass mask="),
    (regard.attend_stream, (X, [(X, X)]), "attn_mask", "pass mask="),
    (regard.attend_stream, (X, [(X, X)]), "causal", "pass is_causal=True"),
    (regard.attend_stream, (X, [(X, X)]), "k", "pass chunks=regard.KeyValueChunks(key, value)"),
    (regard.attend_stream, (X, [(X, X)]), "need_weights", "with return_lse=True"),
    (regard.KeyValueChunks, (X, X), "chunk_size", "pass length="),
    (regard.softmax, (X,), "dim", "pass axis="),
    (regard.softmax_backward, (X, X), "dim", "pass axis="),
    (regard.apply_mask_backward, (X, X), "attn_mask", "pass mask="),
    (regard.matmul_backward, (X, X, X.T), "other", "pass b="),
    (regard.matmul, (X, X.T), "dtype", "its arguments are a, b, out, threads"),
    (regard.MultiHeadAttention, (), "embed_dim", "pass d_model="),
    (regard.MultiHeadAttention, (8,), "num_attention_heads", "pass num_heads="),
    (regard.MultiHeadAttention, (8, 2), "num_key_value_heads", "pass num_kv_heads="),
    (regard.MultiHeadAttention, (8, 2), "bias", "pass qkv_bias= and out_bias="),
    (LAYER.backward, (X,), "retain_graph", "MultiHeadAttention.backward() has no argument"),
    (regard.MultiHeadAttention, (8, 2), "dropout_p", "pass dropout= to the constructor"),
    (regard.MultiHeadAttention, (8, 2), "batch_first", "leave it out"),
    (regard.MultiHeadAttention, (8, 2), "kdim", "pass d_key="),
    (regard.MultiHeadAttention, (8, 2), "causal", "pass is_causal="),
    (LAYER, (X,), "alibi_slopes", "pass alibi=True to the constructor"),
    (regard.MultiHeadAttention, (8, 2), "rope_theta", 'pass rotary={"base": rope_theta}'),
    (regard.MultiHeadAttention, (8, 2), "rope_scaling", 'pass rotary={"scaling": rope_scaling}'),
    (regard.MultiHeadAttention, (8, 2), "alibi_slopes", "pass alibi="),
    (regard.MultiHeadAttention, (8, 2), "add_zero_attn", "sinks=np.zeros(num_heads)"),
    (LAYER, (X,), "attn_mask", "True hides it"),
    (LAYER, (X,), "key_padding_mask", "mask=~key_padding_mask[:, None, None, :]"),
    (LAYER, (X,), "attention_mask", "attention_mask.astype(bool)[:, None, None, :]"),
    (LAYER, (X,), "dropout_p", "pass dropout= to the constructor, MultiHeadAttention()"),
    (LAYER, (X,), "head_mask", "pass head_gates=, which multiplies the outputs of heads, not"),
    (regard.MultiHeadAttention, (8, 2), "head_mask", "pass head_gates=True to learn a number"),
    (ALONE, (X,), "head_gates", "this layer has one head"),
    (regard.SelfAttention, (4, 2), "head_gates", "this layer has one head"),
    (ATTEND, (X, X, X), "head_gates", "multiply the output by head_gates[:, None, None]"),
    (regard.rollout, (X[None, None],) * 2, "head_gates", "pass head_weights="),
    (LAYER, (X,), "cos", "its arguments are query, key"),
    (LAYER, (X,), "need_weights", "pass return_weights="),
    (LAYER, (X,), "average_attn_weights", "weights.mean(axis=-3)"),
    (LAYER, (X,), "is_causal", "constructor, MultiHeadAttention()"),
    (LAYER, (X,), "causal", "constructor, MultiHeadAttention()"),
    (LAYER, (X,), "window", "constructor, MultiHeadAttention()"),
    (LAYER, (X,), "past_key_values", "pass cache="),
    (LAYER, (), "hidden_states", "pass query="),
    (regard.SelfAttention, (4, 2), "bias", "pass qkv_bias="),
    (regard.SelfAttention, (2,), "in_features", "pass d_in="),
    (ALONE, (), "hidden_states", "pass x="),
    (ALONE, (X,), "attn_mask", "pass mask="),
    (ALONE, (X,), "causal", "pass is_causal="),
    (ALONE, (X,), "key_padding_mask", "mask=~key_padding_mask[:, None, :]"),
    (ALONE, (X,), "attention_mask", "attention_mask.astype(bool)[:, None, :]"),
    (ALONE, (X,), "bias", "pass mask=bias"),
    (ALONE, (X,), "dropout", "pass dropout= to the constructor, SelfAttention()"),
    (ATTEND, (X, X, X), "seed", "pass dropout_seed="),
    (LAYER, (X,), "seed", "pass dropout_seed="),
    (CACHE.attend, (X,), "seed", "this call drops no weights"),
    (regard.MultiHeadAttention, (8, 2), "seed", "pass rng="),
    (regard.masks.random_blocks, (3,), "seed", "pass rng="),
    *((ATTEND, (X, X, X), name, "pass key_lengths=") for name in LENGTHS),
    *((LAYER, (X,), name, "pass key_lengths=") for name in LENGTHS),
    *((CACHE.attend, (X,), name, "the cache knows its lengths") for name in LENGTHS),
    *((ALONE, (X,), name, "regard.masks.padding(lengths") for name in LENGTHS),
    (CACHE.append, (X, X), "seq_lens", "pass lengths="),
    (CACHE.append, (X, X), "cache_seqlens", "pass lengths="),
    (CACHE.attend, (X,), "head", "select the head in the results"),
    (regard.MultiHeadAttention, (8, 2), "k", "its arguments are d_model, "),
    (regard.MultiHeadAttention, (8, 2), "partial_rotary_factor", 'rotary={"rotary_dim": int('),
    (regard.MultiHeadAttention, (8, 2), "add_bias_kv", "the layer has no such parameters"),
    (LAYER, (X,), "head", "all heads are returned"),
    (LAYER, (X,), "num_heads", "the constructor, MultiHeadAttention(), determines it"),
    (ALONE, (X,), "num_kv_heads", "this layer has one head"),
    *((ALONE, (X,), name, "regard.masks.window(length") for name in ("window_size", "window")),
    (
        regard.scaled_dot_product_attention_backward,
        (*(X,) * 5, X[:, 0]),
        "cu_seqlens_q",
        "call scaled_dot_product_attention_ragged_backward",
    ),
    (regard.attention_map, (X, X), "cu_seqlens_q", "call summarize_attention_ragged"),
    (regard.rollout, (X[None, None],) * 2, "max_seqlen", "call summarize_attention_ragged"),
    (
        regard.scaled_dot_product_attention_jvp,
        (*(X,) * 3, None, None, None),
        "cu_seqlens_q",
        "this call has no packed sequences",
    ),
    (regard.summarize_attention_ragged, (X, X, *STARTS), "head_mask", "ignore the unneeded"),
    (
        regard.scaled_dot_product_attention_ragged,
        (X, X, X, *STARTS),
        "dilation",
        "pass the tokens i, i + dilation, ... of a sequence",
    ),
    (regard.positional.rotary, (X,), "cos_cache", "pass cache=(cos_cache, sin_cache)"),
    (regard.positional.rotary, (X,), "unsqueeze_dim", "the heads axis is the third"),
    (ATTEND, (X, X, X), "temperature", "pass scale=1 / (temperature * math.sqrt(head_dim))"),
    (LAYER, (X,), "temperature", "pass scale=1 / (temperature * math.sqrt(head_dim))"),
    (ALONE, (X,), "temperature", "this layer has one head and no options for scores"),
    (ATTEND, (X, X, X), "scale_factor", "pass scale="),
    (regard.scale, (X, 1), "scale_factor", "pass factor="),
    (ATTEND, (X, X, X), "p", "pass dropout_p= and dropout_seed="),
    (regard.MultiHeadAttention, (8, 2), "p", "pass dropout= to the constructor"),
    (LAYER, (X,), "p", "pass dropout= to the constructor"),
    (regard.summarize_attention, (X, X), "p", "this call drops no weights"),
    (regard.softmax, (X,), "p", "its arguments are x, "),
    (ATTEND, (X, X, X), "smooth_softmax", "pass sinks=np.zeros(num_heads)"),
    (regard.MultiHeadAttention, (8, 2), "smooth_softmax", "sinks=np.zeros(num_heads) to the call"),
    (ATTEND, (X, X, X), "past_key", "append earlier and new keys and values to a regard.KVCache"),
    (LAYER, (X,), "past_key", "pass cache="),
    (CACHE.attend, (X,), "past_value", "call append() with the keys and values of earlier"),
    (ATTEND, (X, X, X), "qv", "key=np.concatenate([key, value], axis=-1)"),
    (CACHE.attend, (X,), "qv", "after append(np.concatenate([key, value], axis=-1), value)"),
    (ATTEND, (X, X, X), "max_seqlen", "call scaled_dot_product_attention_ragged"),
    (LAYER, (X,), "max_seqlen", "the starts of the sequences determine it"),
    (
        regard.scaled_dot_product_attention_ragged,
        (X, X, X, *STARTS),
        "max_seqlen",
        "the starts of the sequences determine it",
    ),
    (LAYER, (X,), "query_start_loc", "pass starts="),
    (CACHE.attend, (X,), "query_start_loc", "call attend_ragged, which accepts starts="),
    *(
        (PAGED, arguments, name, advice)
        for arguments in ((X, X, X, [[0]], [3]), (X, X, X))  # some names replace required ones
        for name, advice in (
            ("context_lens", "pass lengths="),
            ("seq_lens", "pass lengths="),
            ("query_start_loc", "pass starts="),
            ("block_tables", "pass block_table="),
            ("k_scale", "pass key_scales="),
            ("v_scale", "pass value_scales="),
            ("last_page_len", "pass lengths=(pages - 1) * page_size + last_page_len, and 0"),
            ("max_seqlen", "leave it out: lengths= determines it"),
            ("smooth_softmax", "pass sinks=np.zeros(num_heads)"),
            ("temperature", "pass scale=1 / (temperature"),
        )
    ),
    (PAGED, (X, X, X, [[0]], [3]), "qv", "np.concatenate([key, value], axis=-1) as key_pages="),
    (PAGED, (X, X, X, [[0]], [3]), "past_key", "the pages contain the earlier tokens"),
    (regard.masks.causal, (), "seq_len", "pass q_len="),
    (regard.masks.causal, (3,), "diagonal", "pass query_offset="),
    (regard.masks.window, (3,), "window_size", "pass window=(left, right)"),
    (regard.masks.prefix, (3,), "prefix_length", "did you mean prefix_lengths=?"),
    (regard.masks.padding, ([3], 4), "padding_side", "pass side="),
    (regard.masks.segments, (), "segment_ids", "pass query_segments="),
    (regard.masks.segments, ([3],), "zzz", "its arguments are query_segments, key_segments"),
    (regard.masks.as_additive, (), "attn_mask", "pass mask="),
    (regard.masks.check, (), "attn_mask", "pass mask="),
    (regard.masks.check, (), "bias", "its arguments are mask, "),
    (regard.masks.check, (), "dim", "its arguments are mask, "),
    (regard.masks.segments, ([3],), "batch_first", "its arguments are query_segments"),
    (regard.positional.rotary, (X,), "position_ids", "pass positions="),
    (regard.positional.rotary, (X,), "rope_theta", "pass base="),
    (regard.positional.rotary, (X,), "traditional", "pass interleaved="),
    (regard.positional.rotary, (X,), "cos", "pass cache=(cos, sin)"),
    (regard.positional.rotary, (X,), "attn_mask", "its arguments are x, "),
    (regard.positional.rotary, (X,), "window", "its arguments are x, "),
    (regard.positional.rotary, (X,), "is_causal", "its arguments are x, "),
    (regard.positional.rotary, (X,), "alibi", "its arguments are x, "),
    (regard.positional.rotary, (X,), "causal", "its arguments are x, "),
    (regard.MultiHeadAttention, (8, 2), "cos", "its arguments are d_model, "),
    (regard.positional.rotary_cache, (3,), "dim", "pass rotary_dim="),
    (regard.positional.rotary_frequencies, (), "theta", "pass base="),
    (regard.positional.sinusoidal, (3, 4), "theta", "pass base="),
    (regard.positional.alibi_slopes, (), "num_heads", "pass heads="),
    (regard.positional.t5_buckets, (3,), "relative_attention_num_buckets", "pass num_buckets="),
]


@pytest.mark.parametrize(("call", "arguments", "name", "advice"), CALLS)
def test_calls_give_advice(call, arguments, name, advice):
    with pytest.raises(TypeError) as raised:
        call(*arguments, **{name: None})
    assert f"() has no argument {name}: " in str(raised.value)
    assert advice in str(raised.value)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: CACHE.append(X), r"^KVCache\.append\(\) missing .* 'value'"),
        (lambda: regard.scaled_dot_product_attention_ragged(X, X, X), "missing 2 .* 'key_starts'"),
        (lambda: CACHE.append(X[None, None], X[None, None], lengths="ab"), "^lengths must be"),
    ],
)
def test_other_type_errors_are_those_of_the_call(call, words):
    with pytest.raises(TypeError, match=words):
        call()


GRID = ((3, 3), (3, 3))
WINDOWS = {
    "attention": lambda: ATTEND(X, X, X, window=GRID),
    "ragged": lambda: regard.scaled_dot_product_attention_ragged(
        *(X[:, None],) * 3, *STARTS, window=GRID
    ),
    "explain": lambda: regard.explain(X, X, X, window=list(GRID)),
    "weights": lambda: regard.summarize_attention(X, X, window=GRID),
    "gradients": lambda: regard.scaled_dot_product_attention_jvp(
        X, X, X, None, None, None, window=GRID
    ),
    "layer": lambda: regard.MultiHeadAttention(8, 2, window=GRID),
    "masks.window": lambda: regard.masks.window(3, window=GRID),
    "masks.sliding": lambda: regard.masks.sliding(3, window=[[3, 3]]),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_a_window_of_a_grid_is_a_mask(name):
    with pytest.raises(TypeError, match=r"window must be a pair .*regard\.masks\.neighborhood"):
        WINDOWS[name]()


def test_a_keyword_without_letters():
    with pytest.raises(TypeError, match="no argument : its arguments are"):
        regard.softmax(X, **{"": 1})
