"""Masks of transformers, as rows of keys or as arrays, show what the masks of `"sdpa"` show, and
position biases are added to them."""

import pytest

from zoo import build, inputs_of, masking_utils, regard, torch, transformers

attend = regard.transformers._attention.attend
make_mask = regard.transformers._masks.make_mask
with_bias = regard.transformers._masks.with_bias
theirs = torch.nn.functional.scaled_dot_product_attention
BATCH = 3
# (q_length, kv_length, q_offset, kv_offset): from the start, within a growing cache, a token, an
# empty and a filled static cache, and a moved window.
SHAPES = [(6, 6, 0, 0), (3, 9, 6, 0), (1, 9, 8, 0), (4, 12, 0, 0), (2, 12, 5, 0), (3, 5, 9, 7)]
WINDOW = 3
CONFIG = build("mistral", sliding_window=WINDOW).config
FUNCTIONS = {
    "causal": (masking_utils.causal_mask_function, {}),
    "bidirectional": (
        masking_utils.bidirectional_mask_function,
        {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": True},
    ),
    "window": (masking_utils.sliding_window_causal_mask_function(WINDOW), {"local_size": WINDOW}),
    "chunks": (
        masking_utils.chunked_causal_mask_function(4, torch.zeros(BATCH, dtype=torch.int64)),
        {"local_size": 4},
    ),
    "two-sided window": (
        masking_utils.sliding_window_bidirectional_mask_function(2),
        {"allow_is_causal_skip": False, "local_size": 2},
    ),
    "unknown": (
        lambda batch, head, query, key: (key + query) % 2 == 0,
        {"allow_is_causal_skip": False},
    ),
}
PADDINGS = {
    "none": [],
    "left": [(0, slice(2)), (2, slice(1))],
    "right": [(1, slice(-2, None))],
    "holes": [(0, slice(2)), (1, slice(2, 3))],
    "an empty entry": [(1, slice(None))],
}


def padding(name, length):
    """Return which tokens are real."""
    tokens = torch.ones(BATCH, length, dtype=torch.bool)
    for entry, places in PADDINGS[name]:
        tokens[entry, places] = False
    return tokens


def called(shape, function, tokens, **changes):
    """Return regard's mask, its output, and the output with the mask of `sdpa`."""
    q_length, kv_length, *_ = shape
    mask_function, others = FUNCTIONS[function]
    words = dict(zip(("q_length", "kv_length", "q_offset", "kv_offset"), shape, strict=True))
    words |= {"batch_size": BATCH, "mask_function": mask_function, "attention_mask": tokens}
    words |= others | {"config": CONFIG} | changes
    mask = make_mask(**words)
    array = masking_utils.sdpa_mask(**words | {"allow_is_causal_skip": False})
    random = torch.Generator().manual_seed(2)
    lengths = q_length, kv_length, kv_length
    tensors = [torch.randn(BATCH, 4, n, 8, generator=random, dtype=torch.float64) for n in lengths]
    module = torch.nn.Module()
    module.config, module.is_causal = CONFIG, function != "bidirectional"
    window = WINDOW if function == "window" else None
    actual, _ = attend(module, *tensors, mask, sliding_window=window)
    wanted = theirs(*tensors, attn_mask=array)
    return mask, actual.transpose(1, 2), torch.nan_to_num(wanted)


@pytest.mark.parametrize("tokens", [None, *PADDINGS])
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_masks(shape, function, tokens):
    q_length, _, q_offset, _ = shape
    if tokens is not None:
        tokens = padding(tokens, q_length + q_offset)
    mask, actual, wanted = called(shape, function, tokens)
    assert (actual - wanted).abs().max() < 1e-14
    if function in ("causal", "window", "bidirectional"):
        assert mask is None or mask.ndim < 4 or mask.shape[2] == 1


def test_a_causal_mask_without_padding_is_left_to_the_module():
    for shape in ((6, 6, 0, 0), (1, 9, 8, 0)):
        assert called(shape, "causal", padding("none", shape[1]))[0] is None
    assert called((4, 12, 0, 0), "causal", padding("none", 4))[0].shape == (BATCH, 1, 4)


def test_models_without_flash_attention_get_arrays(monkeypatch):
    monkeypatch.setattr(transformers.MistralPreTrainedModel, "_supports_flash_attn", False)
    mask, actual, wanted = called((6, 6, 0, 0), "causal", padding("left", 6))
    assert mask.shape == (BATCH, 1, 6, 6)
    assert (actual - wanted).abs().max() < 1e-14


@pytest.mark.parametrize("chunk", [2, 3])
@pytest.mark.parametrize("model_type", ["bart", "t5"])
def test_a_prompt_of_an_encoder_decoder_in_parts(model_type, chunk):
    """transformers cuts the mask of the encoder too. Later queries have an offset."""
    model = build(model_type)
    inputs = inputs_of(model_type, model.config, padding=None)
    words = {"do_sample": False, "min_new_tokens": 6, "max_new_tokens": 6}
    words["decoder_start_token_id"] = 1
    written = []
    for implementation, more in [("eager", {}), ("regard", {"prefill_chunk_size": chunk})]:
        model.set_attn_implementation(implementation)
        written.append(model.generate(**inputs, **words, **more))
    assert torch.equal(*written)


def test_a_bias_is_added_to_the_bias_of_a_pair():
    shown, bias, more = torch.ones(3, 5, dtype=torch.bool), torch.rand(3, 5), torch.rand(4, 3, 5)
    mask = with_bias((shown, bias), more)
    assert mask[0] is shown
    assert torch.equal(mask[1], bias + more)
