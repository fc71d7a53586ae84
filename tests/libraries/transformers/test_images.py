"""Test models that read images and text together, with both in one sequence."""

import pytest

from in_float64 import in_float64
from tiny import tiny_config
from zoo import result_of, torch, transformers

IMAGE_TOKEN = 60
# The number of tokens of a 16 x 16 image, and the configuration entries for the image token.
MODELS = {
    "llava": (16, {"image_token_id": IMAGE_TOKEN}),
    "paligemma": (16, {"image_token_id": IMAGE_TOKEN, "projection_dim": 32}),
    "gemma3": (4, {"image_token_id": IMAGE_TOKEN, "mm_tokens_per_image": 4}),
}


@pytest.mark.parametrize("model_type", MODELS)
@pytest.mark.parametrize("is_padded", [False, True])
def test_an_image_and_a_text(model_type, is_padded):
    """Gemma 3 and PaliGemma let the tokens of an image, or of a prompt, see each other."""
    count, changes = MODELS[model_type]
    torch.manual_seed(0)
    model = transformers.AutoModelForImageTextToText.from_config(
        tiny_config(model_type, **changes), attn_implementation="eager"
    )
    model = model.double().eval()
    ids = torch.randint(3, 50, (2, count + 8))
    ids[:, 3 : 3 + count] = IMAGE_TOKEN
    inputs = {
        "input_ids": ids,
        "pixel_values": torch.randn(2, 3, 16, 16, dtype=torch.float64),
        "attention_mask": torch.ones_like(ids),
    }
    if is_padded:
        inputs["attention_mask"][0, :2] = 0
    if model_type != "llava":
        inputs["token_type_ids"] = (ids == IMAGE_TOKEN).long()
    found = []
    for implementation in ("eager", "regard"):
        model.set_attn_implementation(implementation)
        model.zero_grad(set_to_none=True)
        with in_float64():
            logits = result_of(model(**inputs))[inputs["attention_mask"].bool()]
        logits.square().sum().backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        found.append([logits.detach(), *gradients])
    wanted, actual = found
    assert len(wanted) == len(actual) > 20
    for x, y in zip(wanted, actual, strict=True):
        assert (x - y).abs().max() <= 1e-10 * max(1, x.abs().max())
