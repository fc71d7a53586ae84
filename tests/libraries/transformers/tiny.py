"""Tiny configurations of the transformers model types.

Configurations of different types name the same sizes with the same word, or with one of a few
words. Here every size of a configuration is small, in its parts too.
"""

from transformers import CONFIG_MAPPING, PreTrainedConfig

VOCABULARY = 99
_WITH_SIZE = {
    VOCABULARY: "vocab_size unpadded_vocab_size",
    32: "hidden_size d_model n_embd embed_dim embedding_size projection_dim word_embed_proj_dim",
    48: "intermediate_size d_ff n_inner encoder_ffn_dim decoder_ffn_dim ffn_dim ffn_hidden_size",
    24: "moe_intermediate_size shared_expert_intermediate_size",
    2: """
        num_hidden_layers num_layers n_layer n_layers encoder_layers decoder_layers
        num_decoder_layers num_key_value_heads num_experts_per_tok type_vocab_size
        linear_num_key_heads
    """,
    4: """
        num_attention_heads num_heads n_head n_heads encoder_attention_heads
        decoder_attention_heads rotary_dim num_experts num_local_experts n_routed_experts
        sliding_window patch_size linear_num_heads linear_num_value_heads
    """,
    8: """
        head_dim d_kv qk_nope_head_dim qk_rope_head_dim v_head_dim num_mel_bins linear_head_dim
        linear_key_head_dim
    """,
    16: "q_lora_rank kv_lora_rank qk_head_dim image_size linear_value_head_dim",
    64: "max_position_embeddings n_positions max_source_positions max_target_positions",
    1: "n_group topk_group",
}
SIZES = {name: size for size, names in _WITH_SIZE.items() for name in names.split()}
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
