"""Hugging Face transformers: its positions, and its attention modules with random parameters, under
their own names."""

import warnings
from copy import deepcopy

import numpy as np
import pytest

import regard
from reference import error, largest
from regard import positional
from rope_cases import TRAINED, llama3, longrope, of_dim, yarn

REASON = "transformers and PyTorch are not installed: pip install '.[conformance]'"
torch = pytest.importorskip("torch", reason=REASON)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    rope_utils = pytest.importorskip("transformers.modeling_rope_utils", reason=REASON)
    from transformers.models.bert import modeling_bert as bert
    from transformers.models.glm.modeling_glm import GlmRotaryEmbedding
    from transformers.models.gpt2 import modeling_gpt2 as gpt2
    from transformers.models.llama import modeling_llama as llama
    from transformers.models.ministral3 import modeling_ministral3 as ministral
    from transformers.models.qwen2 import modeling_qwen2 as qwen2
    from transformers.models.qwen2_vl import modeling_qwen2_vl as qwen2_vl
    from transformers.models.qwen3 import modeling_qwen3 as qwen3
    from transformers.models.qwen3_vl import modeling_qwen3_vl as qwen3_vl
    from transformers.models.t5.modeling_t5 import T5Attention
    from transformers.models.whisper import modeling_whisper as whisper

D, HEADS, KV_HEADS, LENGTH = 64, 4, 2, 12
X = np.random.default_rng(0).standard_normal((2, LENGTH, D)).astype(np.float32)
MEMORY = np.random.default_rng(1).standard_normal((2, 20, D)).astype(np.float32)
HIDDEN = torch.full((LENGTH, LENGTH), -torch.inf).triu(1)[None, None]
BIASES = {"qkv_bias": True, "out_bias": True}
GROUPED = {"num_kv_heads": KV_HEADS, "is_causal": True}
YARN, LLAMA3 = yarn(**{TRAINED: 64}), llama3(**{TRAINED: 64})
MINISTRAL = YARN | {TRAINED: 4, "llama_4_scaling_beta": 0.7}
LONGROPE = of_dim(longrope(long_factor=3.0, factor=16.0, **{TRAINED: LENGTH - 1}), D // HEADS)
EAGER = {"attn_implementation": "eager"}


def randomised(module):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.2, generator=generator)
    return module.eval()


def rotating(models, config_name, attention, rotary, scaling=None, **options):
    config = getattr(models, config_name)(
        hidden_size=D,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=D // HEADS,
        num_hidden_layers=1,
        max_position_embeddings=256,
        rope_parameters=(scaling or {"rope_type": "default"}) | {"rope_theta": 500.0},
        **EAGER,
        **options,
    )
    module = randomised(getattr(models, attention)(config, layer_idx=0))
    places = torch.arange(LENGTH)[None]
    tables = getattr(models, rotary)(config)(torch.from_numpy(X), places)
    return module, lambda: module(torch.from_numpy(X), tables, HIDDEN, position_ids=places)[0]


PARTS = "Config", "Attention", "RotaryEmbedding"


def llamas(scaling=None):
    return rotating(llama, *(f"Llama{name}" for name in PARTS), scaling)


def bert_layer():
    config = bert.BertConfig(hidden_size=D, num_attention_heads=HEADS, **EAGER)
    module = randomised(bert.BertAttention(config))
    # The parts after output.dense (the residual, the norm) belong to the surrounding layer.
    return module, lambda: module.output.dense(module.self(torch.from_numpy(X))[0])


def gpt2_layer():
    config = gpt2.GPT2Config(n_embd=D, n_head=HEADS, n_positions=32, **EAGER)
    module = randomised(gpt2.GPT2Attention(config, layer_idx=0))
    return module, lambda: module(torch.from_numpy(X), attention_mask=HIDDEN)[0]


def whisper_layer(*memory):
    config = whisper.WhisperConfig(d_model=D, **EAGER)
    module = randomised(whisper.WhisperAttention(D, HEADS, config=config))
    inputs = [torch.from_numpy(x) for x in (X, *memory)]
    return module, lambda: module(*inputs)[0]


def rope(**options):
    return {"rotary": {"base": 500.0} | options}


MODULES = {
    "llama": (llamas, GROUPED | rope(), ()),
    "llama, yarn": (lambda: llamas(YARN), GROUPED | rope(scaling=YARN), ()),
    "ministral": (
        lambda: rotating(ministral, *(f"Ministral3{name}" for name in PARTS), MINISTRAL),
        GROUPED | rope(scaling=MINISTRAL),
        (),
    ),
    "llama, longrope beyond": (lambda: llamas(LONGROPE), GROUPED | rope(scaling=LONGROPE), ()),
    "llama, v5": (
        lambda: llamas(LLAMA3),
        GROUPED | {"rotary": {"scaling": LLAMA3 | {"rope_theta": 500.0}}},
        (),
    ),
    "qwen2": (
        lambda: rotating(qwen2, "Qwen2Config", "Qwen2Attention", "Qwen2RotaryEmbedding"),
        GROUPED | rope() | {"qkv_bias": True},
        (),
    ),
    "qwen3": (
        lambda: rotating(qwen3, "Qwen3Config", "Qwen3Attention", "Qwen3RotaryEmbedding"),
        GROUPED | rope() | {"qk_norm": "rms"},
        (),
    ),
    "bert": (bert_layer, BIASES, ()),
    "gpt2": (gpt2_layer, BIASES | {"is_causal": True}, ()),
    "whisper": (whisper_layer, BIASES, ()),
    "whisper, cross": (lambda: whisper_layer(MEMORY), BIASES, (MEMORY,)),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules(name):
    """Both compute in float32: each sums 64 products twice and rotates by float32 tables
    (theirs)."""
    make, options, memory = MODULES[name]
    module, call = make()
    state = {f"model.attn.{n}": array.numpy() for n, array in module.state_dict().items()}
    ours = regard.MultiHeadAttention(D, HEADS, rng=0, **options)
    ours.load_state_dict(state, "model.attn")
    with torch.no_grad():
        wanted = call().numpy()
    actual = ours(X, *memory)
    assert actual.shape == wanted.shape
    limit = 32 * np.finfo(np.float32).eps * largest(wanted)
    assert error(actual, wanted) <= limit, error(actual, wanted) / limit


FACTORS = {"short_factor": np.linspace(1, 2, 16).tolist(), "long_factor": [4.0] * 8 + [30.0] * 8}
# The entries of config.json: rope_parameters or rope_scaling, and the keys next to it.
CONFIGURATIONS = {
    "linear, v5": {
        "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
    },
    "Llama 3, v5": {"rope_parameters": LLAMA3 | {"rope_theta": 500000.0, TRAINED: 8192}},
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
        compute = rope_utils.ROPE_INIT_FUNCTIONS[rope_type]
        wanted, wanted_factor = compute(config, "cpu", seq_len=length)
    scaling = stands.get("rope_parameters") or stands["rope_scaling"]
    if "rope_scaling" in stands or rope_type in ("dynamic", "longrope"):
        scaling = scaling | {key: stands[key] for key in LENGTHS if key in stands}
    actual, factor = positional.rotary_frequencies(
        head_dim=head_dim, base=stands.get("rope_theta"), scaling=scaling, length=length
    )
    np.testing.assert_allclose(actual, wanted.numpy(), rtol=32 * np.finfo(np.float32).eps)
    assert factor == pytest.approx(wanted_factor, rel=1e-15)


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "default", "mrope_section": [2, 4, 2]},
        {"type": "mrope", "mrope_section": [4, 3, 1]},
        YARN | {"mrope_section": [0, 3, 5]},
        {"mrope_section": [4, 2, 2], "mrope_interleaved": True},
    ],
)
def test_three_positions(scaling):
    """The limit is that of float32 angles up to 50."""
    scaling = {"rope_theta": 500.0} | scaling
    x, places = X[:, None, :, :16], np.random.default_rng(1).integers(0, 50, (3, 2, LENGTH))
    theirs = torch.from_numpy(x), torch.from_numpy(places)
    options = {"hidden_size": 16, "num_attention_heads": 1, "head_dim": 16}
    options["rope_parameters"] = {"rope_type": "default"} | scaling
    if "mrope_interleaved" in scaling:
        tables = qwen3_vl.Qwen3VLTextRotaryEmbedding(qwen3_vl.Qwen3VLTextConfig(**options))
    else:
        tables = qwen2_vl.Qwen2VLRotaryEmbedding(qwen2_vl.Qwen2VLTextConfig(**options))
    wanted, _ = qwen2_vl.apply_rotary_pos_emb(theirs[0], theirs[0], *tables(*theirs))
    actual = positional.rotary(x, places, scaling=scaling)
    assert error(actual, wanted.numpy()) <= 50 * np.finfo(np.float32).eps * largest(x)
    cache = positional.rotary_cache(places, 16, scaling=scaling)
    assert np.array_equal(positional.rotary(x, cache=cache), actual)
    text = [positional.rotary(x, scaling=each) for each in (scaling, {"rope_theta": 500.0})]
    assert np.array_equal(*text) or scaling.get("rope_type") == "yarn"


def test_factors_of_queries():
    scaling = {"rope_theta": 500.0, TRAINED: 16, "llama_4_scaling_beta": 0.1}
    x, places = np.ones((2, 1, 5, 8)), np.array([[0, 15, 16, 31, 4000], [-3, 1, 32, 64, 100]])
    options = {"positions": places, "scaling": scaling}
    key = positional.rotary(x, **options, is_query=False)
    assert np.array_equal(key, positional.rotary(x, places, base=500.0))
    factors = ministral.get_llama_4_attn_scale(torch.from_numpy(places).clip(0).double(), 0.1, 16)
    query = positional.rotary(x, **options, is_query=True)
    np.testing.assert_allclose(query, key * factors.numpy(), rtol=1e-14)


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
    wanted = T5Attention._relative_position_bucket(torch.from_numpy(relative), **options)
    offsets = np.array([0, 700, 1499])
    actual = positional.t5_buckets(1, 1500, query_offset=offsets, **options)
    np.testing.assert_array_equal(actual[:, 0], wanted.numpy())
