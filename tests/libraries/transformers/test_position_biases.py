"""Biases of T5-like models: biases of distances become a table, and others are added unchanged."""

import pytest

from outcomes import errors, outcome
from zoo import build, inputs_of, torch, transformers

TYPES = "t5", "mt5", "umt5", "switch_transformers", "longt5"
OF_DISTANCES, NOTHING, ALL = "distance_bias", "nothing", "float mask"


@pytest.mark.parametrize("padding", [None, "left", "right"])
@pytest.mark.parametrize(
    "model_type", [x if x == "t5" else pytest.param(x, marks=pytest.mark.slow) for x in TYPES]
)
def test_models(model_type, padding, biases):
    model = build(model_type)
    inputs = inputs_of(model_type, model.config, padding=padding)
    wanted = outcome(model, "eager", inputs)
    actual = outcome(model, "regard", inputs)
    assert max(errors(actual, wanted)) <= 1e-10
    # LongT5's encoder has its own attention.
    layers = {"longt5": 0, "switch_transformers": model.config.num_layers}.get(model_type, 2)
    decoder = model.config.num_decoder_layers if model_type == "switch_transformers" else 2
    assert biases == [OF_DISTANCES] * layers + [OF_DISTANCES, NOTHING] * decoder


TRAINED = {
    "evaluation": {},
    "checkpoints": {"use_reentrant": False},
    "checkpoints with backward passes of their own": {"use_reentrant": True},
}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("settings", TRAINED.values(), ids=TRAINED)
def test_gradient_checkpoints(settings, biases):
    """Biases that a checkpoint copies are not recognized, but have the same gradients."""
    model = build("t5", dropout_rate=0.0)
    inputs = inputs_of("t5", model.config)
    wanted = outcome(model, "eager", inputs)
    model.train()
    if settings:
        model.activation_checkpointing_enable(settings)
    assert max(errors(outcome(model, "regard", inputs), wanted)) <= 1e-10
    assert OF_DISTANCES in biases


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode, biases):
    model = build("t5")
    inputs = inputs_of("t5", model.config)
    with mode():
        wanted = model(**inputs).logits
        model.set_attn_implementation("regard")
        torch.testing.assert_close(model(**inputs).logits, wanted, rtol=1e-10, atol=1e-10)
    assert biases == [OF_DISTANCES] * 2 + [OF_DISTANCES, NOTHING] * 2


@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")
def test_a_prompt_that_is_read_in_parts(biases):
    """Later queries have an offset. For one query, the bias is no larger than the table."""
    model = build("t5")
    model.set_attn_implementation("regard")
    inputs = inputs_of("t5", model.config)
    tokens = inputs.pop("decoder_input_ids")
    whole = model(**inputs, decoder_input_ids=tokens).logits
    parts, cache = [], None
    for part in tokens.split([3, 3, 1], dim=1):
        del biases[:]
        output = model(**inputs, decoder_input_ids=part, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        parts.append(output.logits)
        of_part = [OF_DISTANCES, NOTHING] if part.shape[1] > 1 else [ALL, ALL]
        assert biases == [OF_DISTANCES] * 2 + of_part * 2
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-10, atol=1e-10)


def self_attention():
    """Return the first self-attention of an encoder, which computes the bias, and its input."""
    module = build("t5").encoder.block[0].layer[0].SelfAttention
    return module, torch.randn(2, 7, 32, dtype=torch.float64)


def alike(module, hidden, **arguments):
    results = []
    for name in ("eager", "regard"):
        module.config._attn_implementation = name
        results.append(module(hidden, **arguments)[0])
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)


def test_a_bias_of_another_function(biases):
    module, hidden = self_attention()
    own = module.compute_bias(7, 7).detach()
    alike(module, hidden, position_bias=own.clone())
    assert biases.pop() == OF_DISTANCES
    for index in ((0, 0, 0, 0), (0, 1, 3, 4), (0, 3, 6, 0), (0, 3, 6, 6)):
        changed = own.clone()
        changed[index] += 1
        alike(module, hidden, position_bias=changed)
        assert biases.pop() == ALL
    alike(module, hidden, position_bias=own.expand(2, -1, -1, -1))
    assert biases.pop() == ALL


def test_a_bias_that_changes_between_layers(biases):
    module, hidden = self_attention()
    bias = module.compute_bias(7, 7).detach()
    alike(module, hidden, position_bias=bias)
    bias[0, 1, 2, 3] += 5
    alike(module, hidden, position_bias=bias)
    assert biases == [OF_DISTANCES, ALL]


def test_a_table_without_a_gradient_is_not_reused_where_one_is_wanted(biases):
    module, hidden = self_attention()
    module.config._attn_implementation = "regard"
    weight = module.relative_attention_bias.weight
    bias = module.compute_bias(7, 7)
    with torch.no_grad():
        module(hidden, position_bias=bias)
    (module(hidden, position_bias=bias)[0] ** 2).sum().backward()
    assert biases == [OF_DISTANCES] * 2
    actual, weight.grad = weight.grad, None
    module.config._attn_implementation = "eager"
    (module(hidden)[0] ** 2).sum().backward()
    torch.testing.assert_close(actual, weight.grad, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_types(dtype, biases):
    model = build("t5", dtype, initializer_factor=0.5)
    inputs = inputs_of("t5", model.config, dtype)
    wanted = model(**inputs).logits
    model.set_attn_implementation("regard")
    tolerance = 1e-4 if dtype is torch.float32 else 0.1
    limit = tolerance * float(wanted.detach().abs().max())
    torch.testing.assert_close(model(**inputs).logits, wanted, rtol=0, atol=limit)
    assert biases == [OF_DISTANCES] * 2 + [OF_DISTANCES, NOTHING] * 2


def test_other_models_add_their_biases(biases):
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
    assert biases == [ALL] * 2
