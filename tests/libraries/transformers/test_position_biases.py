"""Position biases of T5-like models are added to the scores."""

import pytest

from outcomes import errors, outcome
from zoo import build, inputs_of, torch, transformers

TRAINED = {
    "evaluation": {},
    "checkpoints": {"use_reentrant": False},
    "checkpoints with backward passes of their own": {"use_reentrant": True},
}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("settings", TRAINED.values(), ids=TRAINED)
def test_gradient_checkpoints(settings):
    model = build("t5", dropout_rate=0.0)
    inputs = inputs_of("t5", model.config)
    wanted = outcome(model, "eager", inputs)
    model.train()
    if settings:
        model.activation_checkpointing_enable(settings)
    assert max(errors(outcome(model, "regard", inputs), wanted)) <= 1e-10


@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")
def test_a_prompt_that_is_read_in_parts():
    """Later queries have an offset."""
    model = build("t5")
    model.set_attn_implementation("regard")
    inputs = inputs_of("t5", model.config)
    tokens = inputs.pop("decoder_input_ids")
    whole = model(**inputs, decoder_input_ids=tokens).logits
    parts, cache = [], None
    for part in tokens.split([3, 3, 1], dim=1):
        output = model(**inputs, decoder_input_ids=part, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        parts.append(output.logits)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-10, atol=1e-10)


def test_other_models_add_their_biases():
    """UDOP's biases depend on the positions of words on a page."""
    config = transformers.UdopConfig(
        **{"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2},
        **{"num_heads": 4, "image_size": 16, "patch_size": 4},
    )
    torch.manual_seed(0)
    model = transformers.UdopEncoderModel(config).double().eval()
    inputs = {
        "input_ids": torch.randint(3, 99, (2, 6)),
        "bbox": torch.rand(2, 6, 4).double(),
        "pixel_values": torch.randn(2, 3, 16, 16).double(),
    }
    wanted = model(**inputs).last_hidden_state
    model.set_attn_implementation("regard")
    actual = model(**inputs).last_hidden_state
    torch.testing.assert_close(actual, wanted, rtol=1e-10, atol=1e-10)
