"""Positions as Hugging Face transformers computes them, in float32."""

import warnings
from copy import deepcopy

import numpy as np
import pytest

from regard import positional

REASON = "transformers and PyTorch are not installed: pip install '.[conformance]'"
torch = pytest.importorskip("torch", reason=REASON)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    rope = pytest.importorskip("transformers.modeling_rope_utils", reason=REASON)
    llama = pytest.importorskip("transformers.models.llama.configuration_llama", reason=REASON)
    from transformers.models.glm.modeling_glm import GlmRotaryEmbedding

    t5 = pytest.importorskip("transformers.models.t5.modeling_t5", reason=REASON)

TRAINED = "original_max_position_embeddings"
LLAMA = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    TRAINED: 8192,
}


FACTORS = {"short_factor": np.linspace(1, 2, 16).tolist(), "long_factor": [4.0] * 8 + [30.0] * 8}
# The entries of config.json: rope_parameters or rope_scaling, and the keys next to it.
CONFIGURATIONS = {
    "linear, v5": {
        "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
    },
    "Llama 3, v5": {"rope_parameters": LLAMA | {"rope_theta": 500000.0}},
    "dynamic, v4": {
        "rope_scaling": {"type": "dynamic", "factor": 2.0},
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
    },
    "dynamic of a part, v5": {
        "rope_parameters": {
            "rope_type": "dynamic",
            "factor": 4.0,
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
        },
        "max_position_embeddings": 2048,
    },
    "gpt-oss, v5": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            TRAINED: 4096,
        },
        "max_position_embeddings": 131072,
    },
    "DeepSeek, v4": {
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 40.0,
            "mscale": 1.0,
            "mscale_all_dim": 0.8,
            TRAINED: 4096,
        },
        "rope_theta": 10000.0,
        "max_position_embeddings": 163840,
    },
    "Phi-3, v4": {
        "rope_scaling": {"type": "longrope", **FACTORS},
        "rope_theta": 10000.0,
        "max_position_embeddings": 131072,
        TRAINED: 4096,
    },
}
LENGTHS = ("max_position_embeddings", TRAINED)


@pytest.mark.parametrize("length", [None, 2048, 4096, 4097, 40000])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_configurations_as_they_stand(name, length):
    """A user passes the mapping, along with the other keys of the configuration. The limit covers
    their float32 exponent times log(base) < 17 (dynamic raises it), the power and some ramps."""
    head_dim, stands = 32, CONFIGURATIONS[name]
    config = llama.LlamaConfig(hidden_size=2 * head_dim, num_attention_heads=2, **deepcopy(stands))
    rope_type = config.rope_parameters["rope_type"]
    if rope_type == "default":
        wanted, wanted_factor = GlmRotaryEmbedding.compute_default_rope_parameters(config)
    else:
        compute = rope.ROPE_INIT_FUNCTIONS[rope_type]
        wanted, wanted_factor = compute(config, "cpu", seq_len=length)
    scaling = stands.get("rope_parameters") or stands["rope_scaling"]
    if "rope_scaling" in stands or rope_type in ("dynamic", "longrope"):
        scaling = scaling | {key: stands[key] for key in LENGTHS if key in stands}
    actual, factor = positional.rotary_frequencies(
        head_dim=head_dim, base=stands.get("rope_theta"), scaling=scaling, length=length
    )
    np.testing.assert_allclose(actual, wanted.numpy(), rtol=32 * np.finfo(np.float32).eps)
    assert factor == pytest.approx(wanted_factor, rel=1e-15)


@pytest.mark.parametrize("max_distance", [17, 20, 64, 100, 128, 256, 1000])
@pytest.mark.parametrize("num_buckets", [4, 8, 16, 32])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_t5_buckets(bidirectional, num_buckets, max_distance):
    options = {
        "bidirectional": bidirectional,
        "num_buckets": num_buckets,
        "max_distance": max_distance,
    }
    relative = np.arange(1500) - np.array([0, 700, 1499])[:, None]
    wanted = t5.T5Attention._relative_position_bucket(torch.from_numpy(relative), **options)
    offsets = np.array([0, 700, 1499])
    actual = positional.t5_buckets(1, 1500, query_offset=offsets, **options)
    np.testing.assert_array_equal(actual[:, 0], wanted.numpy())
