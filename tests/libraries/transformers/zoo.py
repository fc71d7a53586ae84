"""The tested model types: tiny models of them, and inputs that fit.

A test module that imports this module is skipped if transformers or PyTorch is not installed.
"""

import warnings
from dataclasses import dataclass

import pytest

REASON = "transformers or PyTorch is not installed: pip install '.[conformance]'"
torch = pytest.importorskip("torch", reason=REASON)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers", reason=REASON)
    masking_utils = pytest.importorskip("transformers.masking_utils", reason=REASON)
    import regard.transformers
    from tiny import VOCABULARY, tiny_config

regard.transformers.register()
transformers.logging.set_verbosity_error()

BATCH, LENGTH, TARGETS = 2, 11, 7
# This many tokens of the first entry are padding.
PADDING = 3


@dataclass(frozen=True)
class Kind:
    """The use of a model, and the transformers class that makes it."""

    name: str
    auto: str
    changes: dict
    names: str

    @property
    def types(self):
        return self.names.split()


WITHOUT_GROUPS = {"num_key_value_heads": 4}
LINEAR_FIRST = ["linear_attention", "full_attention"]
KINDS = [
    Kind(
        "decoder",
        "AutoModelForCausalLM",
        {
            "llama4_text": {"attention_chunk_size": 4, "no_rope_layers": [1, 0]},
            "qwen2": {"use_sliding_window": True, "max_window_layers": 1},
            "deepseek_v2": WITHOUT_GROUPS | {"num_experts_per_tok": 2},
            "deepseek_v3": WITHOUT_GROUPS,
            "deepseek_v32": WITHOUT_GROUPS | {"index_topk": 5, "index_n_heads": 2},
            "minicpm3": WITHOUT_GROUPS,
            "youtu": WITHOUT_GROUPS,
            "glm4_moe_lite": WITHOUT_GROUPS,
            "glm_moe_dsa": WITHOUT_GROUPS | {"index_topk": 5, "index_n_heads": 2},
            "bailing_hybrid": WITHOUT_GROUPS | {"layer_types": LINEAR_FIRST},
            "lara_mini": WITHOUT_GROUPS | {"layer_types": LINEAR_FIRST},
            "kimi_linear": WITHOUT_GROUPS | {"layer_types": LINEAR_FIRST},
            "olmo_hybrid": {"layer_types": LINEAR_FIRST},
            "qwen3_next": {"layer_types": LINEAR_FIRST},
            "qwen3_5_moe_text": {"layer_types": LINEAR_FIRST},
            "qwen3_5_text": {"layer_types": LINEAR_FIRST},
            "bamba": {"mamba_n_heads": 4, "mamba_d_head": 16, "attn_layer_indices": [1]},
            # Otherwise it is an encoder, whose texts differ with the cache in eager attention too.
            "bert-generation": {"is_decoder": True},
            # With other weights, the errors of float32 vary by factors between draws, in both
            # directions.
            "gemma4_text": {
                "initializer_range": 0.1,
                "head_dim": 8,
                "sliding_window": 4,
                "hidden_size_per_layer_input": 8,
                "vocab_size_per_layer_input": VOCABULARY,
            },
            "granitemoehybrid": {
                "mamba_n_heads": 4,
                "mamba_d_head": 16,
                "layer_types": ["mamba", "attention"],
            },
            "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
            "longcat_flash": WITHOUT_GROUPS,
            "ministral": {
                "head_dim": 8,
                "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            },
            "nemotron": {"num_key_value_heads": 2},
            "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
        },
        """
        afmoe apertus arcee aria_text bailing_hybrid bamba bert-generation biogpt bitnet codegen
        cohere cohere2 cohere2_moe ctrl cwm deepseek_v2 deepseek_v3 deepseek_v32 diffllama doge
        ernie4_5 ernie4_5_moe exaone exaone4 exaone_moe flex_olmo flint gemma gemma2 gemma3
        gemma3_text gemma4_text glm glm4 glm4_moe glm4_moe_lite glm_moe_dsa gpt2 gpt_bigcode
        gpt_neox gpt_oss gptj granite granite_swa granitemoe granitemoehybrid granitemoeshared
        helium hy_v3 hy_v4 hyperclovax inkling2_text internlm3 jais2 jamba jetmoe kimi_linear
        laguna lara_mini lfm2 llama llama4 llama4_text longcat_flash mimo_v2_flash minicpm3
        minimax minimax_m2 ministral ministral3 mistral mixtral modernbert-decoder nanochat
        nemotron olmo olmo2 olmo3 olmo_hybrid olmoe opt persimmon phi phi3 phimoe qwen2
        qwen2_moe qwen3 qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next recurrent_gemma
        seed_oss smollm3 solar_open stablelm starcoder2 vaultgemma youtu
        """,
    ),
    Kind(
        "encoder",
        "AutoModelForMaskedLM",
        # It has no norms, and larger weights would make its attention all or nothing.
        {
            "mobilebert": {"initializer_range": 0.05},
            "esm": {"vocab_size": VOCABULARY},
            "esmc": WITHOUT_GROUPS,
            "xmod": {"default_language": "en_XX"},
        },
        """
        albert bert camembert data2vec-text distilbert electra ernie esm esmc eurobert gte
        jina_embeddings_v3 layoutlm mobilebert modernbert nomic_bert roberta roberta-prelayernorm
        xlm-roberta xlm-roberta-xl xmod
        """,
    ),
    Kind(
        "encoder-decoder",
        "AutoModelForSeq2SeqLM",
        {},
        """
        bart blenderbot blenderbot-small longt5 m2m_100 marian mbart mt5 nllb-moe pegasus
        pegasus_x plbart switch_transformers t5 t5gemma umt5
        """,
    ),
    Kind(
        "vision",
        "AutoModel",
        {},
        """
        aimv2_vision_model beit chinese_clip_vision_model clip_vision_model deit dinov2
        dinov2_with_registers dinov3_vit ijepa mlcd_vision_model pixio siglip_vision_model vit
        vit_msn yolos
        """,
    ),
    Kind(
        "text encoder",
        "AutoModel",
        {
            "glm5_next_text": WITHOUT_GROUPS
            | {"layer_types": LINEAR_FIRST, "qk_rope_head_dim": 0, "qk_head_dim": 8}
            | {"index_topk": 16, "index_n_heads": 2}
        },
        "clip_text_model glm5_next_text openai_privacy_filter splinter tipsv2_text_model",
    ),
    Kind(
        "vision and text, given text",
        "AutoModel",
        {},
        "llava idefics3 internvl mistral3 paligemma qwen3_vl smolvlm",
    ),
    Kind(
        "audio",
        "AutoModel",
        {
            "audio-spectrogram-transformer": {"max_length": 16},
            "hubert": {"conv_dim": [8] * 2, "conv_stride": [4, 2], "conv_kernel": [8, 4]},
            "wav2vec2": {"conv_dim": [8] * 2, "conv_stride": [4, 2], "conv_kernel": [8, 4]},
            "wav2vec2-bert": {"feature_projection_input_dim": 8},
            "speech_to_text": {"input_feat_per_channel": 8, "conv_channels": 16},
        },
        """
        audio-spectrogram-transformer hubert moonshine parakeet_encoder qwen2_audio_encoder
        speech_to_text voxtral_encoder wav2vec2 wav2vec2-bert whisper
        """,
    ),
]
KIND_OF = {model_type: kind for kind in KINDS for model_type in kind.types}
# One model for each way to use the interface.
QUICK = {"llama", "mistral", "gemma2", "gpt_oss", "llama4_text", "bert", "t5", "vit", "whisper"}


def build(model_type, dtype=torch.float64, *, kind=None, **changes):
    """Build a model with eager attention, in evaluation mode, identical in each call. A kind that
    is not in KINDS is passed, here and below."""
    # Weights are drawn in this type, so they are the same numbers in any other type.
    assert torch.get_default_dtype() == torch.float32
    kind = kind or KIND_OF[model_type]
    config = tiny_config(model_type, **kind.changes.get(model_type, {}) | changes)
    torch.manual_seed(0)
    auto = getattr(transformers, kind.auto)
    chosen = {"attn_implementation": "eager", "experts_implementation": "eager"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Tiny sizes make some tensors empty.
        model = auto.from_config(config, **chosen)
    return model.to(dtype).eval()


def inputs_of(model_type, config, dtype=torch.float64, *, padding="left", kind=None):
    """Return the arguments of a model's call."""
    generator = torch.Generator().manual_seed(1)
    kind = (kind or KIND_OF[model_type]).name

    def numbers(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    def tokens(length):
        return torch.randint(3, VOCABULARY // 2, (BATCH, length), generator=generator)

    if kind == "vision":
        return {"pixel_values": numbers(BATCH, config.num_channels, 16, 16)}
    if kind == "audio":
        return audio_inputs(model_type, config, numbers, tokens)
    inputs = {"input_ids": tokens(LENGTH)}
    if padding is not None:
        mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
        mask[0, :PADDING] = 0
        inputs["attention_mask"] = mask if padding == "left" else mask.flip(-1)
    if kind == "encoder-decoder":
        inputs["decoder_input_ids"] = tokens(TARGETS)
    return inputs


def audio_inputs(model_type, config, numbers, tokens):
    """Return spectrograms, or the samples of a sound."""
    if model_type == "audio-spectrogram-transformer":
        return {"input_values": numbers(BATCH, config.max_length, config.num_mel_bins)}
    if model_type in ("hubert", "wav2vec2"):
        return {"input_values": numbers(BATCH, 400)}
    if model_type == "moonshine":
        return {"input_values": numbers(BATCH, 4000), "decoder_input_ids": tokens(TARGETS)}
    if model_type == "wav2vec2-bert":
        return {"input_features": numbers(BATCH, 12, config.feature_projection_input_dim)}
    if model_type == "speech_to_text":
        features = numbers(BATCH, 32, config.input_feat_per_channel * config.input_channels)
        return {"input_features": features, "decoder_input_ids": tokens(TARGETS)}
    if model_type == "parakeet_encoder":
        return {"input_features": numbers(BATCH, 64, config.num_mel_bins)}
    features = {"input_features": numbers(BATCH, config.num_mel_bins, 2 * 64)}
    if model_type == "whisper":
        features["decoder_input_ids"] = tokens(TARGETS)
    return features


def result_of(output):
    """Return what a model computes: logits, or else the last hidden states."""
    return output.logits if "logits" in output else output.last_hidden_state


def types(*names):
    """Return the types of some kinds, or all, to parametrize a test with. Most of them are slow."""
    chosen = [each for kind in KINDS if not names or kind.name in names for each in kind.types]
    return [x if x in QUICK else pytest.param(x, marks=pytest.mark.slow) for x in chosen]
