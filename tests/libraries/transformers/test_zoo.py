"""Models have the same results, and write the same texts, with regard's attention as with their own
eager attention."""

import pytest

from outcomes import (
    assert_alike,
    assert_as_eager,
    assert_close,
    errors,
    in_float64,
    outcome,
    widened,
)
from tiny import tiny_config
from zoo import build, inputs_of, regard, torch, transformers, types

EPS = torch.finfo(torch.float32).eps


@pytest.mark.parametrize("model_type", types())
def test_float64(model_type, calls):
    """`"sdpa"` models, whose calls of PyTorch's function regard replaces, have them too."""
    model = build(model_type)
    inputs = inputs_of(model_type, model.config)
    wanted = assert_as_eager(model, inputs, calls)
    calls.clear()
    if model._supports_sdpa:
        with in_float64(), regard.torch.replacing_sdpa() as replaced:
            assert_alike(outcome(model, "sdpa", inputs), wanted)
        assert replaced.by_regard
        assert not replaced.by_pytorch
        assert not calls


@pytest.mark.parametrize("model_type", types())
def test_float32(model_type):
    """The error is at most twice the error of eager attention, plus a few roundings."""
    wide, model = build(model_type), build(model_type, torch.float32)
    inputs = inputs_of(model_type, model.config, torch.float32)
    with in_float64():
        wanted = outcome(wide, "eager", widened(inputs))
    of_eager, of_regard = (
        errors(outcome(model, implementation, inputs), wanted)
        for implementation in ("eager", "regard")
    )
    for actual, limit in zip(of_regard, of_eager, strict=True):
        assert limit < 1e-3
        assert actual <= 2 * limit + 8 * EPS


@pytest.mark.parametrize("model_type", types("decoder", "encoder", "encoder-decoder"))
@pytest.mark.parametrize("padding", ["right", None])
def test_other_padding(model_type, padding):
    model = build(model_type)
    inputs = inputs_of(model_type, model.config, padding=padding)
    with in_float64():
        wanted, actual = (outcome(model, name, inputs)[0] for name in ("eager", "regard"))
    assert_close(actual, wanted)


NEW = 9
# The ways to call generate(). With windows of 4 tokens, all window caches roll.
WAYS = {
    "greedy": {"output_logits": True},
    "static cache": {"output_logits": True, "cache_implementation": "static"},
    "without a cache": {"output_logits": True, "use_cache": False},
    "beams": {"num_beams": 3, "num_return_sequences": 2, "output_scores": True},
    "beams, static cache": {"num_beams": 3, "cache_implementation": "static"},
}


def written(model, implementation, inputs, way):
    model.set_attn_implementation(implementation)
    with in_float64():
        return model.generate(
            **inputs,
            **WAYS[way],
            do_sample=False,
            decoder_start_token_id=1,
            min_new_tokens=NEW,
            max_new_tokens=NEW,
            return_dict_in_generate=True,
        )


@pytest.mark.parametrize("model_type", types("decoder", "encoder-decoder"))
@pytest.mark.parametrize("way", WAYS)
def test_same_tokens(model_type, way, calls):
    model = build(model_type)
    inputs = inputs_of(model_type, model.config)
    inputs.pop("decoder_input_ids", None)
    wanted = written(model, "eager", inputs, way)
    assert not calls
    actual = written(model, "regard", inputs, way)
    assert calls
    assert torch.equal(actual.sequences, wanted.sequences)
    for name in ("logits", "sequences_scores"):
        if wanted.get(name) is None:
            continue
        for x, y in zip(actual[name], wanted[name], strict=True):
            assert_close(x, y)


IMAGE_TOKEN = 60
# The number of tokens of a 16 x 16 image, and the configuration entries for the image token.
MODELS = {
    "llava": (16, {"image_token_id": IMAGE_TOKEN}),
    "paligemma": (16, {"image_token_id": IMAGE_TOKEN, "projection_dim": 32}),
    "gemma3": (4, {"image_token_id": IMAGE_TOKEN, "mm_tokens_per_image": 4}),
}


@pytest.mark.parametrize("model_type", MODELS)
@pytest.mark.parametrize("padding", [0, 2])
def test_an_image_and_a_text(model_type, padding):
    """Gemma 3 and PaliGemma let the tokens of an image, or of a prompt, see
    each other, in one sequence with the text."""
    count, changes = MODELS[model_type]
    torch.manual_seed(0)
    model = transformers.AutoModelForImageTextToText.from_config(
        tiny_config(model_type, **changes), attn_implementation="eager"
    )
    model = model.double().eval()
    ids = torch.randint(3, 50, (2, count + 8))
    ids[:, 3 : 3 + count] = IMAGE_TOKEN
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    inputs["pixel_values"] = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    inputs["attention_mask"][0, :padding] = 0
    if model_type != "llava":
        inputs["token_type_ids"] = (ids == IMAGE_TOKEN).long()
    with in_float64():
        wanted, actual = (outcome(model, name, inputs) for name in ("eager", "regard"))
    assert_alike(actual, wanted)
