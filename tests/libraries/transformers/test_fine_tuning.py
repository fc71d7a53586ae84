"""Models trained with regard's attention learn what they learn with PyTorch's attention."""

from contextlib import nullcontext

import pytest

from in_float64 import in_float64
from zoo import LENGTH, build, inputs_of, torch

STEPS = 50
# A decoder with padding on the right, an encoder with padding, biases of distances.
TYPES = ["llama", "mistral", "bert", "t5"]


def labeled(model_type, config):
    """Return a batch with padding, which has no labels."""
    inputs = inputs_of(model_type, config, padding="right")
    if model_type == "t5":
        return inputs | {"labels": inputs.pop("decoder_input_ids")}
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    if model_type == "bert":
        hidden = torch.arange(LENGTH) % 3 == 1
        inputs["input_ids"] = inputs["input_ids"].masked_fill(hidden, 3)
        labels = labels.masked_fill(~hidden, -100)
    return inputs | {"labels": labels}


def losses(model_type, implementation, dtype):
    """Return the loss before each step, without dropout."""
    words = {"decoder_start_token_id": 1} if model_type == "t5" else {}
    model = build(model_type, dtype, **words)
    model.set_attn_implementation(implementation)
    inputs = labeled(model_type, model.config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    found = []
    with in_float64() if dtype == torch.float64 else nullcontext():
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = model(**inputs, use_cache=False).loss
            loss.backward()
            optimizer.step()
            found.append(loss.detach().double())
    return torch.stack(found)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", TYPES)
def test_training(model_type, calls):
    """In float64 the losses agree. In float32 they are at most twice as far from these."""
    wanted = losses(model_type, "sdpa", torch.float64)
    assert not calls
    actual = losses(model_type, "regard", torch.float64)
    assert len(calls) >= STEPS
    assert wanted[-1] < 0.8 * wanted[0]
    assert ((actual - wanted) / wanted).abs().max() <= 1e-9
    of_sdpa, of_regard = (
        (losses(model_type, implementation, torch.float32) - wanted).abs().max()
        for implementation in ("sdpa", "regard")
    )
    assert of_regard <= 2 * of_sdpa + 8 * torch.finfo(torch.float32).eps * wanted.max()
