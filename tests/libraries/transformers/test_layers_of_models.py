"""Attention layers of tiny random models whose norms multiply by 1 + weight."""

import numpy as np
import pytest

import regard
from reference import error, largest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "max_position_embeddings": 64,
    "vocab_size": 50,
    "attn_implementation": "eager",
}
FULL = {"layer_types": ["full_attention"]}


def gemma3():
    config = transformers.Gemma3TextConfig(**SIZES, **FULL, query_pre_attn_scalar=8)
    base = config.rope_parameters["full_attention"]["rope_theta"]
    return transformers.Gemma3ForCausalLM(config), {"base": base}


def gated(name):
    def make():
        names = {"qwen3_next": "Qwen3Next", "qwen3_5_text": "Qwen3_5"}
        experts = {"num_experts": 4, "num_experts_per_tok": 2} if name == "qwen3_next" else {}
        config = transformers.AutoConfig.for_model(name, **SIZES, **FULL, **experts)
        rope = config.rope_parameters
        dim = int(8 * rope["partial_rotary_factor"])
        model = getattr(transformers, f"{names[name]}ForCausalLM")(config)
        return model, {"base": rope["rope_theta"], "rotary_dim": dim}

    return make


MODELS = {
    "gemma3": gemma3,
    "qwen3_next": gated("qwen3_next"),
    "qwen3_5": gated("qwen3_5_text"),
}


def randomized(model):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3, generator=generator)
    return model.eval()


def without_gates(model, attention):
    """Set the gates of a gated layer to 1/2, and return the state that its queries need."""
    state = {name: array.numpy() for name, array in model.state_dict().items()}
    weight = attention.q_proj.weight
    if weight.shape[0] == 32:
        return state, 1.0
    heads = weight.detach().view(4, 2, 8, 32)  # the query and the gate of each head
    heads[:, 1] = 0
    name = next(name for name in state if name.endswith("layers.0.self_attn.q_proj.weight"))
    return state | {name: heads[:, 0].reshape(32, 32).numpy()}, 0.5


@pytest.mark.parametrize("name", MODELS)
def test_norms_that_multiply_by_one_plus_the_weight(name):
    model, rotary = MODELS[name]()
    attention = randomized(model).model.layers[0].self_attn
    state, gate = without_gates(model, attention)
    calls = []
    attention.register_forward_hook(
        lambda module, arguments, options, output: calls.append((options, output[0])),
        with_kwargs=True,
    )
    with torch.no_grad():
        model(torch.arange(12)[None])
    options, output = calls[0]
    x, wanted = options["hidden_states"].numpy(), output.numpy()

    layer = regard.MultiHeadAttention(
        32, 4, num_kv_heads=2, is_causal=True, rotary=rotary, qk_norm="rms_plus_one", rng=0
    )
    layer.load_state_dict(state, "model.layers.0.self_attn")
    limit = 32 * np.finfo(np.float32).eps * largest(wanted)
    assert error(gate * layer(x), wanted) <= limit
