"""Masks whose shape is not (q_len, kv_len) have the same meaning as for `"sdpa"`."""

import pytest

from zoo import build, inputs_of, masking_utils, regard, torch

attend = regard.transformers._attention.attend
make_mask = regard.transformers._masks.make_mask
PatternMask = regard.transformers._pattern_mask.PatternMask
theirs = torch.nn.functional.scaled_dot_product_attention

BATCH, Q_LEN, KV_LEN = 2, 5, 9
FUNCTIONS = {
    "causal": masking_utils.causal_mask_function,
    "bidirectional": masking_utils.bidirectional_mask_function,
    "window": masking_utils.sliding_window_causal_mask_function(3),
}
# (q_length, kv_length, q_offset, number of padding tokens)
BROADCAST = {
    "one row": (1, KV_LEN, 6, 0),
    "one row with padding": (1, KV_LEN, 6, 2),
    "one column": (Q_LEN, 1, 0, 0),
    "one column of padding": (Q_LEN, 1, 0, 1),
    "one element": (1, 1, 0, 0),
    "one element of padding": (1, 1, 0, 1),
}


def call(q_length, kv_length, q_offset, padding, function):
    """Return a module, query, key and value, and the arguments of a mask."""
    random = torch.Generator().manual_seed(2)
    lengths = Q_LEN, KV_LEN, KV_LEN
    tensors = [torch.randn(BATCH, 4, n, 8, generator=random, dtype=torch.float64) for n in lengths]
    tokens = torch.ones(BATCH, kv_length, dtype=torch.bool)
    tokens[0, :padding] = False
    words = {
        "batch_size": BATCH,
        "q_length": q_length,
        "kv_length": kv_length,
        "q_offset": q_offset,
        "mask_function": FUNCTIONS[function],
        "attention_mask": tokens,
    }
    return torch.nn.Module(), tensors, words


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("shape", BROADCAST)
def test_masks_that_broadcast(shape, function):
    module, tensors, words = call(*BROADCAST[shape], function)
    mask = make_mask(**words)
    assert type(mask) is PatternMask
    array = masking_utils.sdpa_mask(**words, allow_is_causal_skip=False)
    wanted = theirs(*tensors, attn_mask=array)
    for each in (mask, array, array[:1]):
        actual, _ = attend(module, *tensors, each)
        expected = theirs(*tensors, attn_mask=array[:1]) if each.shape[0] == 1 else wanted
        assert (actual.transpose(1, 2) - expected).abs().max() < 1e-14


@pytest.mark.parametrize("shape", [(Q_LEN, 7, 0, 0), (3, KV_LEN, 0, 0), (1, 7, 0, 1)])
def test_masks_that_do_not(shape):
    module, tensors, words = call(*shape, "causal")
    with pytest.raises(ValueError, match="mask must broadcast to"):
        attend(module, *tensors, make_mask(**words))


def test_what_hides_nothing_has_no_shape():
    module, tensors, words = call(3, 7, 0, 0, "bidirectional")
    actual, _ = attend(module, *tensors, make_mask(**words))
    assert (actual.transpose(1, 2) - theirs(*tensors)).abs().max() < 1e-14


@pytest.mark.parametrize("chunk", [2, 3])
def test_a_prompt_of_an_encoder_decoder_in_parts(chunk):
    """transformers cuts the mask of the encoder too. If it then hides all keys, it is refused, as
    in eager attention."""
    model = build("bart")
    inputs = inputs_of("bart", model.config, padding=None)
    words = {"do_sample": False, "min_new_tokens": 6, "max_new_tokens": 6}
    written = []
    for implementation, more in [("eager", {}), ("regard", {"prefill_chunk_size": chunk})]:
        model.set_attn_implementation(implementation)
        written.append(model.generate(**inputs, **words, **more))
    assert torch.equal(*written)
    inputs = inputs_of("bart", model.config)
    for implementation, error in [("eager", RuntimeError), ("regard", ValueError)]:
        model.set_attn_implementation(implementation)
        with pytest.raises(error, match=r"must match|mask must broadcast to"):
            model.generate(**inputs, **words, prefill_chunk_size=chunk)
