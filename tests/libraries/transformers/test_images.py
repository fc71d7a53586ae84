"""Models that read images and text together, with both in one sequence, as with eager attention."""

import pytest

from outcomes import assert_alike, in_float64, outcome
from tiny import tiny_config
from zoo import torch, transformers

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
    """Gemma 3 and PaliGemma let the tokens of an image, or of a prompt, see each other."""
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
