"""Continuous batching generates what each prompt by itself generates."""

import pytest

from zoo import build, regard, torch, transformers

attend = regard.transformers._attention.attend
NEW = 12
LENGTHS = 5, 1, 17, 9
# Grouped heads; windows of 4, in all layers and in some; soft caps; sinks; no grouped heads.
QUICK = ["llama", "qwen2", "mistral", "gemma2", "gpt_oss"]
SLOW = ["gpt2", "gemma3_text", "qwen3", "cohere2", "phi3", "olmo3"]
TYPES = [*QUICK, *(pytest.param(x, marks=pytest.mark.slow) for x in SLOW)]


def prompts():
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(3, 40, (n,), generator=generator).tolist() for n in LENGTHS]


def alone(model):
    """Return what each prompt generates with eager attention."""
    model.set_attn_implementation("eager")
    written = []
    for prompt in prompts():
        ids = torch.tensor([prompt])
        words = {"do_sample": False, "min_new_tokens": NEW, "max_new_tokens": NEW}
        whole = model.generate(ids, attention_mask=torch.ones_like(ids), **words)
        written.append(whole[0, len(prompt) :].tolist())
    return written


def batched(model, **changes):
    """Return what all prompts generate in steps of at most 16 tokens, with pages of 4."""
    words = {"page_size": 4, "num_blocks": 40, "max_batch_tokens": 16} | changes
    results = model.generate_batch(
        prompts(),
        generation_config=transformers.GenerationConfig(
            do_sample=False, max_new_tokens=NEW, eos_token_id=-1
        ),
        continuous_batching_config=transformers.ContinuousBatchingConfig(**words),
    )
    return [results[name] for name in sorted(results)]


@pytest.mark.parametrize("model_type", TYPES)
def test_same_tokens(model_type, calls):
    model = build(model_type)
    wanted = alone(model)
    assert not calls
    model.set_attn_implementation("regard")
    actual = batched(model)
    assert calls
    assert [each.error for each in actual] == [None] * len(LENGTHS)
    assert [each.generated_tokens for each in actual] == wanted
    assert model.config._attn_implementation == "regard"


def test_a_module_that_leaves_the_cache_to_attention():
    """transformers 5.23 has such modules."""
    module = torch.nn.Module()
    module.layer_idx, module.is_causal = 3, True
    random = torch.Generator().manual_seed(1)
    query = torch.randn(1, 4, 2, 8, generator=random, dtype=torch.float64)
    key, value = torch.randn(2, 1, 2, 5, 8, generator=random, dtype=torch.float64)
    new = key[:, :, :2]

    class Cache:
        def update(self, own, others, layer, kwargs):
            assert own is new
            assert layer == 3
            kwargs["cu_seq_lens_k"] = kwargs["cu_seq_lens_k"]["full_attention"]
            return key, value

    actual, _ = attend(
        module,
        query,
        new,
        new,
        None,
        cache=Cache(),
        write_index=None,
        cu_seq_lens_q=torch.tensor([0, 1, 2]),
        cu_seq_lens_k={"full_attention": torch.tensor([0, 3, 5])},
    )
    mask = torch.block_diag(torch.ones(1, 3), torch.ones(1, 2)).bool()
    wanted = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, enable_gqa=True
    )
    assert (actual.transpose(1, 2) - wanted).abs().max() < 1e-14
