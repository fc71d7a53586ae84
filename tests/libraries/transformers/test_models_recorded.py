"""Recordings of models contain the weights that the models' own eager attention computes."""

import threading
from inspect import signature

import numpy as np
import pytest

import regard
from outcomes import in_float64
from zoo import BATCH, LENGTH, TARGETS, build, inputs_of, torch

# One model or more for each way to call attention: windows, soft caps, sinks of heads and of
# queries, chunks, selected keys, grouped heads, position biases, encoders and decoders.
TYPES = """
llama mistral gemma2 gemma3_text gpt_oss qwen2 qwen3 llama4_text deepseek_v32 inkling2_text
mimo_v2_flash gpt2 opt phi3 cohere2 bert roberta distilbert albert modernbert t5 mt5
switch_transformers bart m2m_100 t5gemma whisper vit clip_vision_model dinov2 clip_text_model
splinter wav2vec2
"""
QUICK = {"llama", "gemma2", "gpt_oss", "inkling2_text", "bert", "t5", "whisper"}
CROSS = ("encoder_attn", "EncDecAttention", "cross_attn")


def weights_of(layer):
    """Return the weights of a recorded layer, and which rows see a key."""
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
    """Return the weights that a model returns, by the part that computes them."""
    with torch.no_grad():
        outputs = model(**inputs, output_attentions=True)
    parts = {
        name: getattr(outputs, name, None)
        for name in ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
    }
    return {
        name: [each.numpy() for each in found if each is not None]
        for name, found in parts.items()
        if found
    }


def part_of(name, has_two):
    if not has_two:
        return "attentions"
    if any(each in name for each in CROSS):
        return "cross_attentions"
    return "decoder_attentions" if "decoder" in name.split(".") else "encoder_attentions"


def assert_weights(recording, wanted):
    """Check that the recording has the weights of the model, layer by layer."""
    actual = {}
    for layer in recording:
        if layer.name.endswith(("_input", "_residual")):
            continue  # attention over layers, whose weights a model does not return
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
    "model_type",
    [x if x in QUICK else pytest.param(x, marks=pytest.mark.slow) for x in TYPES.split()],
)
def test_weights_of_the_eager_attention(model_type):
    model = build(model_type)
    inputs = inputs_of(model_type, model.config)
    with in_float64():
        wanted = eager_weights(model, inputs)
        recording = regard.transformers.record(model, **inputs)
    assert_weights(recording, wanted)
    assert model.config._attn_implementation == "eager"


def packed(model, inputs):
    """Return several texts in each row, distinguished by their positions."""
    rows = [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 0], [0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8]
    given = {"input_ids": inputs["input_ids"], "position_ids": torch.tensor(rows)}
    return given | {"use_cache": False}  # with a cache, transformers reads them as one text


def with_holes(model, inputs):
    mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    mask[0, [2, 5]] = 0
    return inputs | {"attention_mask": mask}


def after_a_prompt(model, inputs):
    tokens = inputs["input_ids"]
    with torch.no_grad():
        past = model(tokens[:, :6], use_cache=True).past_key_values
    # The argument has another name in newer versions.
    is_new = "cache" in signature(model.model.forward).parameters
    return {"input_ids": tokens[:, 6:], "cache" if is_new else "past_key_values": past}


@pytest.mark.parametrize("change", [packed, with_holes, after_a_prompt])
@pytest.mark.parametrize("model_type", ["llama", "mistral"])
def test_masks(model_type, change):
    model = build(model_type)
    inputs = inputs_of(model_type, model.config, padding=None)
    with in_float64():
        wanted = eager_weights(model, change(model, inputs))
        inputs = change(model, inputs)  # a cache grows in each call
        recording = regard.transformers.record(model, **inputs)
    assert_weights(recording, wanted)


def test_an_error_restores_the_implementations_of_all_parts(monkeypatch):
    model = build("llava")
    model.set_attn_implementation({"text_config": "sdpa", "vision_config": "eager"})
    configs = model.config, model.config.text_config, model.config.vision_config
    before = [config._attn_implementation for config in configs]
    inputs = inputs_of("llava", model.config)

    def broken(*args, **kwargs):
        assert model.config.text_config._attn_implementation == "regard"
        raise RuntimeError("broken")

    monkeypatch.setattr(model.language_model.norm, "forward", broken)
    with pytest.raises(RuntimeError, match="broken"):
        regard.transformers.record(model, **inputs)
    assert [config._attn_implementation for config in configs] == before
    monkeypatch.undo()
    assert len(regard.transformers.record(model, **inputs)) == 2
    assert [config._attn_implementation for config in configs] == before


def test_the_output():
    model = build("llama", torch.float32)
    inputs = inputs_of("llama", model.config, torch.float32)
    model.set_attn_implementation("regard")
    with torch.no_grad():
        wanted = model(**inputs)
    _, output = regard.transformers.record(model, **inputs, return_output=True)
    assert torch.equal(output.logits, wanted.logits)
    assert not output.logits.requires_grad


class Tokenizer:
    """Remove the space before a token, like SentencePiece tokenizers."""

    def decode(self, numbers, *, skip_special_tokens):
        assert skip_special_tokens is False
        return "".join(f"<{number}>" for number in numbers)

    def convert_ids_to_tokens(self, numbers):
        return [f"\u2581<{number}>" if number % 2 else f"<{number}>" for number in numbers]


def test_tokens():
    model = build("t5")
    inputs = inputs_of("t5", model.config, padding=None)
    sources, targets = inputs["input_ids"], inputs["decoder_input_ids"]
    assert sources.shape == (BATCH, LENGTH)
    assert targets.shape == (BATCH, TARGETS)
    recording = regard.transformers.record(model, **inputs)
    assert recording.tokens is None
    for layer in recording.select("encoder"):
        assert layer.query_tokens.tolist() == layer.key_tokens.tolist() == sources.tolist()
    for layer in recording.select("decoder"):
        keys = sources if "EncDec" in layer.name else targets
        assert layer.query_tokens.tolist() == targets.tolist()
        assert layer.key_tokens.tolist() == keys.tolist()
    same = inputs | {"decoder_input_ids": sources.flip(0)}  # their lengths do not distinguish them
    cross = regard.transformers.record(model, **same)[-1]
    assert cross.query_tokens.tolist() == sources.flip(0).tolist()
    assert cross.key_tokens.tolist() == sources.tolist()
    texts = regard.transformers.record(model, **inputs, tokenizer=Tokenizer())
    wanted = [f" <{number}>" if number % 2 else f"<{number}>" for number in sources[1].tolist()]
    assert texts.entry(1)[0].key_tokens.tolist() == wanted


def test_models_within_a_module_and_compiled_models():
    model = build("bert")
    inputs = inputs_of("bert", model.config)
    wanted = regard.transformers.record(model, **inputs)

    class Around(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, features):
            return self.model(**features)

    recording = regard.transformers.record(Around(), inputs)
    assert recording.names == tuple(f"model.{name}" for name in wanted.names)
    compiled = regard.transformers.record(torch.compile(model, backend="eager"), **inputs)
    assert compiled.names == wanted.names
    for other in (recording, compiled):
        assert all(np.array_equal(x.key, y.key) for x, y in zip(other, wanted, strict=True))
    assert model.config._attn_implementation == "eager"


def test_recordings_of_two_threads_follow_each_other():
    model, ids, recordings = build("llama"), torch.arange(3, 9)[None], []
    model.set_attn_implementation("sdpa")

    def record():
        recordings.append(regard.transformers.record(model, input_ids=ids))

    thread, runs = threading.Thread(target=record), []

    def note(module, arguments):
        runs.append(threading.current_thread() is thread)
        if not thread.ident:
            thread.start()

    for layer in (model.model.layers[0], model.model.layers[-1]):
        layer.register_forward_pre_hook(note)
    record()
    thread.join()
    assert runs == [False, False, True, True]
    assert len(recordings[0]) == len(recordings[1])
    assert model.config._attn_implementation == "sdpa"
