"""Models that select keys, or blocks of keys, for each query give the results of their eager
attention."""

import pytest

from outcomes import assert_as_eager, assert_close, in_float64
from zoo import WITHOUT_GROUPS, Kind, build, inputs_of, torch, transformers

FIVE = WITHOUT_GROUPS | {"index_topk": 5, "index_n_heads": 2}
OF_A_LAYER = {"num_attention_heads": 4, "num_key_value_heads": 4}
KIND = Kind(
    "selecting",
    "AutoModel",
    {
        "axk2": FIVE,
        "deepseek_v32": FIVE,
        "dots3_note_text": FIVE | {"per_layer_config": {0: OF_A_LAYER, 1: OF_A_LAYER}},
        "glm5_next_text": FIVE
        | {"index_topk": 4, "index_kpool": 2, "qk_rope_head_dim": 0}
        | {"layer_types": ["full_attention"] * 2},
        "glm_moe_dsa": FIVE,
        "minimax_m3_vl_text": {"layer_types": ["minimax_m3_sparse"] * 2}
        | {"index_block_size": 3, "index_topk_blocks": 2, "index_local_blocks": 1}
        | {"index_n_heads": 2, "index_head_dim": 8},
        "mistral_large4_text": FIVE,
        "qwen4_exp_text": {"layer_types": ["linear_attention", "full_attention"]}
        | {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8}
        | {"indexer_budget": 4, "indexer_compress_ratio": 2},
    },
    """
    axk2 deepseek_v32 deepseek_v4 dots3_note_text glm5_next_text glm_moe_dsa hy_v4
    minimax_m3_vl_text mistral_large4_text qwen4_exp_text
    """,
)
TYPES = [
    pytest.param(each, marks=[pytest.mark.slow] * (i % 3 > 0)) for i, each in enumerate(KIND.types)
]


@pytest.mark.parametrize("padding", ["right", None])
@pytest.mark.parametrize("model_type", TYPES)
def test_results_and_gradients(model_type, padding, calls):
    model = build(model_type, kind=KIND)
    inputs = inputs_of(model_type, model.config, padding=padding, kind=KIND)
    assert_as_eager(model, inputs, calls)


@pytest.mark.parametrize("model_type", TYPES)
def test_one_token_after_another(model_type):
    model = build(model_type, kind=KIND)
    tokens = inputs_of(model_type, model.config, padding=None, kind=KIND)["input_ids"]

    def states(implementation):
        model.set_attn_implementation(implementation)
        cache, found = None, []
        for part in (tokens[:, :7], *tokens[:, 7:].split(1, dim=1)):
            output = model(input_ids=part, cache=cache, use_cache=True)
            cache = output.cache
            found.append(output.last_hidden_state)
        return torch.cat(found, dim=1)

    with in_float64(), torch.no_grad():
        assert_close(states("regard"), states("eager"))


def test_packed_texts():
    """A key in another text stays hidden, though an index selects it."""
    calls = transformers.AttentionInterface()["regard"]
    module = torch.nn.Module()
    module.is_causal = False
    query = torch.randn(1, 2, 6, 4, generator=torch.Generator().manual_seed(0)).double()
    starts = torch.tensor([0, 2, 6], dtype=torch.int32)
    indices = torch.tensor([[[0, 3], [1, 5], [2, 0], [4, -1], [3, 3], [5, 1]]])
    output, _ = calls(
        *(module, query, query, query, None),
        **{"indices": indices, "cu_seq_lens_q": starts, "cu_seq_lens_k": starts},
    )
    shown = torch.zeros(6, 6, dtype=torch.bool)
    for row, keys in enumerate([[0], [1], [2], [4], [3], [5]]):
        shown[row, keys] = True
    wanted = torch.nn.functional.scaled_dot_product_attention(query, query, query, shown)
    assert_close(output.transpose(1, 2), wanted)
