"""Attention modules of Hugging Face transformers, with random parameters, under their own names."""

import warnings

import numpy as np
import pytest

import regard
from reference import error, largest

REASON = "transformers and PyTorch are not installed: pip install '.[conformance]'"
torch = pytest.importorskip("torch", reason=REASON)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("transformers.modeling_rope_utils", reason=REASON)
    from transformers.models.bert import modeling_bert as bert
    from transformers.models.gpt2 import modeling_gpt2 as gpt2
    from transformers.models.llama import modeling_llama as llama
    from transformers.models.qwen2 import modeling_qwen2 as qwen2
    from transformers.models.qwen3 import modeling_qwen3 as qwen3
    from transformers.models.whisper import modeling_whisper as whisper

D, HEADS, KV_HEADS, LENGTH = 64, 4, 2, 12
X = np.random.default_rng(0).standard_normal((2, LENGTH, D)).astype(np.float32)
MEMORY = np.random.default_rng(1).standard_normal((2, 20, D)).astype(np.float32)
HIDDEN = torch.full((LENGTH, LENGTH), -torch.inf).triu(1)[None, None]
BIASES = {"qkv_bias": True, "out_bias": True}
GROUPED = {"num_kv_heads": KV_HEADS, "is_causal": True}
TRAINED = "original_max_position_embeddings"
YARN = {"rope_type": "yarn", "factor": 4.0, TRAINED: 64}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    TRAINED: 64,
}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": np.linspace(1, 2, D // HEADS // 2).tolist(),
    "long_factor": np.linspace(3, 60, D // HEADS // 2).tolist(),
    "factor": 16.0,
    TRAINED: LENGTH - 1,
}
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
    tables = getattr(models, rotary)(config)(torch.from_numpy(X), torch.arange(LENGTH)[None])
    return module, lambda: module(torch.from_numpy(X), tables, HIDDEN)[0]


def llamas(scaling=None):
    names = ("LlamaConfig", "LlamaAttention", "LlamaRotaryEmbedding")
    return rotating(llama, *names, scaling)


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
