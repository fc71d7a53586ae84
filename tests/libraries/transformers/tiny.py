"""Tiny configurations of the transformers model types.

Configurations of different types name the same sizes with the same word, or with one of a few
words. Here every size of a configuration is small, in its parts too.
"""

from transformers import CONFIG_MAPPING, PreTrainedConfig

VOCABULARY = 99
SIZES = {
    "vocab_size": VOCABULARY,
    "unpadded_vocab_size": VOCABULARY,
    "hidden_size": 32,
    "d_model": 32,
    "n_embd": 32,
    "embed_dim": 32,
    "embedding_size": 32,
    "projection_dim": 32,
    "word_embed_proj_dim": 32,
    "intermediate_size": 48,
    "d_ff": 48,
    "n_inner": 48,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "ffn_dim": 48,
    "ffn_hidden_size": 48,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_layers": 2,
    "n_layer": 2,
    "n_layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_decoder_layers": 2,
    "num_attention_heads": 4,
    "num_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "d_kv": 8,
    "rotary_dim": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "qk_head_dim": 16,
    "v_head_dim": 8,
    "max_position_embeddings": 64,
    "n_positions": 64,
    "max_source_positions": 64,
    "max_target_positions": 64,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "sliding_window": 4,
    "image_size": 16,
    "patch_size": 4,
    "num_mel_bins": 8,
    "type_vocab_size": 2,
}
# Weights are large enough for attention to be far from uniform.
SPREADS = {"initializer_range": 0.2, "init_std": 0.2, "initializer_factor": 2.0}
# Small enough for every vocabulary.
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}


def tiny_config(model_type, **changes):
    """Return the tiny configuration of a type, with some changes."""
    return _shrunk(CONFIG_MAPPING[model_type], changes)


def _shrunk(kind, changes):
    default = kind()

    def known(words, wanted):
        return {name: x for name, x in words.items() if type(_own(default, name)) is wanted}

    words = known(SIZES, int) | known(SPREADS, float)
    words |= {name: token for name, token in TOKENS.items() if hasattr(default, name)}
    for name, part in vars(default).items():
        if isinstance(part, PreTrainedConfig):
            words[name] = _shrunk(type(part), changes.get(name, {})).to_dict()
    return kind(**words | changes)


def _own(config, name):
    """Return an attribute of a configuration, or None if it is missing or differs between
    layers."""
    try:
        return getattr(config, name, None)
    except RuntimeError:
        return None
