"""Keywords of other libraries raise a TypeError that names regard's own."""

import inspect

import numpy as np
import pytest

import regard
from regard._arguments.keywords import refuses_unknown

X = np.zeros((3, 8))
ATTEND = regard.scaled_dot_product_attention
RAGGED = regard.scaled_dot_product_attention_ragged
LAYER, ONE_HEAD = regard.MultiHeadAttention(8, 2, rng=0), regard.SelfAttention(4, 2, rng=0)
CACHE = regard.KVCache(1, 1, 8)
ROTARY = regard.positional.rotary
# How many arrays a call needs before its keywords are looked at.
ARRAYS = {ATTEND: 3, RAGGED: 3, regard.attention_map: 2, CACHE.attend: 1, regard.softmax: 1}
# One row for each way to find the advice, and for each other library.
ADVICE = [
    (ATTEND, "attn_mask", "pass mask="),
    (ATTEND, "causal", "pass is_causal=True, and query_offset="),
    (ATTEND, "dim", "the softmax runs over the keys"),
    (ATTEND, "is_casual", "did you mean is_causal=?"),
    (ATTEND, "key_padding_mask", "pass mask=~key_padding_mask[:, None, None, :]"),
    (ATTEND, "cache_leftpad", "pass left_padding="),
    (ATTEND, "cu_seqlens_q", "call scaled_dot_product_attention_ragged"),
    (RAGGED, "cu_seqlens_q", "pass query_starts="),
    (regard.attention_map, "cu_seqlens_q", "call summarize_attention_ragged"),
    (LAYER, "is_causal", "constructor, MultiHeadAttention()"),
    (ONE_HEAD, "key_padding_mask", "mask=~key_padding_mask[:, None, :]"),
    (regard.MultiHeadAttention, "rope_theta", 'pass rotary={"base": rope_theta}'),
    (regard.MultiHeadAttention, "k", "its arguments are d_model, "),
    (regard.KVCache, "sliding_window", "pass keep_last=n"),
    (regard.softmax, "dim", "pass axis="),
    (regard.softmax, "heads", "its arguments are x, "),  # no typo of threads
    (ROTARY, "cos", "pass cache=(cos, sin)"),
]


@pytest.mark.parametrize(("call", "name", "advice"), ADVICE)
def test_unknown_keywords_get_advice(call, name, advice):
    with pytest.raises(TypeError) as raised:
        call(*[X] * ARRAYS.get(call, 0), **{name: None})
    assert f"() has no argument {name}: " in str(raised.value)
    assert advice in str(raised.value)


def test_every_unknown_keyword_is_named():
    with pytest.raises(TypeError, match=r"no argument attn_mask: .*; no argument causal: "):
        ATTEND(X, X, X, causal=True, attn_mask=None)


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
