"""Recordings of models contain the weights that the models' own, eager attention computes."""

import threading

import numpy as np
import pytest

import regard
from in_float64 import in_float64
from zoo import BATCH, LENGTH, PADDING, TARGETS, build, inputs_of, torch, transformers

# One model or more for each way to call attention: windows, soft caps, sinks of heads and of
# queries, chunks, selected keys, grouped heads, position biases, encoders and decoders.
TYPES = """
llama mistral gemma2 gemma3_text gpt_oss qwen2 qwen3 llama4_text deepseek_v32 inkling2_text
mimo_v2_flash gpt2 opt phi3 cohere2 bert roberta distilbert albert modernbert t5 mt5
switch_transformers bart m2m_100 t5gemma whisper vit clip_vision_model dinov2 clip_text_model splinter
wav2vec2
""".split()
QUICK = {"llama", "gemma2", "gpt_oss", "inkling2_text", "bert", "t5", "whisper"}
CROSS = ("encoder_attn", "EncDecAttention", "cross_attn")


def weights_of(layer):
    """The weights of a recorded layer, and which rows see a key."""
    _, weights, lse = regard.scaled_dot_product_attention(
        layer.query,
        layer.key,
        layer.key,
        layer.mask,
        **layer.options,
        return_weights=True,
        return_lse=True,
    )
    return weights, lse > -np.inf


def eager_weights(model, inputs):
    """The weights that a model returns, by the part that computes them."""
    with torch.no_grad():
        outputs = (
            model(**inputs, output_attentions=True, use_cache=False)
            if takes_cache(model)
            else model(**inputs, output_attentions=True)
        )
    parts = {
        name: getattr(outputs, name, None)
        for name in ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
    }
    return {
        name: [each.numpy() for each in found if each is not None]
        for name, found in parts.items()
        if found
    }


def takes_cache(model):
    return "use_cache" in model.forward.__code__.co_varnames or hasattr(model.config, "use_cache")


def part_of(name, has_two):
    if not has_two:
        return "attentions"
    if any(each in name for each in CROSS):
        return "cross_attentions"
    return "decoder_attentions" if "decoder" in name.split(".") else "encoder_attentions"


def assert_weights(recording, wanted):
    """The recording has the weights of the model, layer by layer."""
    actual = {}
    for layer in recording:
        actual.setdefault(part_of(layer.name, "encoder_attentions" in wanted), []).append(layer)
    assert actual.keys() == wanted.keys()
    for part, layers in actual.items():
        assert len(layers) == len(wanted[part]) > 0
        for layer, weights in zip(layers, wanted[part], strict=True):
            own, is_visible = weights_of(layer)
            assert own.shape == weights.shape
            assert is_visible.mean() > 0.5
            error = np.abs(own - weights)[is_visible].max()
            assert error <= 1e-10, f"{layer} is off by {error}"


@pytest.mark.parametrize(
    "model_type", [x if x in QUICK else pytest.param(x, marks=pytest.mark.slow) for x in TYPES]
)
def test_weights_of_the_eager_attention(model_type):
    model = build(model_type)
    inputs = inputs_of(model_type, model.config)
    with in_float64():
        wanted = eager_weights(model, inputs)
        recording = regard.transformers.record(model, **inputs)
    assert_weights(recording, wanted)
    assert model.config._attn_implementation == "eager"
