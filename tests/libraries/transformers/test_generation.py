"""Models generate the same text with regard's attention as with their own."""

import pytest

from outcomes import assert_close, in_float64
from zoo import build, inputs_of, torch, types

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
