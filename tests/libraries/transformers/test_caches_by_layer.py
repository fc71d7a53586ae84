"""Models whose layers differ generate with a `KVCaches` whose layers differ likewise."""

import numpy as np
import pytest

import regard

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 50,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "sliding_window": 20,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1, "num_hidden_layers": 4}
MODELS = {  # five layers with a window and one without, every second, three and one
    "Gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", {"num_hidden_layers": 6}),
    "GptOss": ("GptOssConfig", "GptOssForCausalLM", EXPERTS),
    "Cohere2": ("Cohere2Config", "Cohere2ForCausalLM", {"num_hidden_layers": 4}),
}


def attend(module, query, key, value, mask, scaling, softcap=None, **_):
    """Append a layer's new keys and values, and attend to its cache."""
    cache = module.caches[module.layer_idx]
    cache.append(key.numpy(), value.numpy())
    sinks = getattr(module, "sinks", None)
    output = cache.attend(
        query.numpy(),
        scale=scaling,
        softcap=softcap,
        sinks=None if sinks is None else sinks.numpy(),
    )
    return torch.from_numpy(output).transpose(1, 2), None


@pytest.mark.parametrize("name", MODELS)
def test_generation_with_windows_by_layer(name):
    config_class, model_class, more = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, config_class)(**SIZES, **more)
    model = getattr(transformers, model_class)(config).eval()
    windows = [20 if kind == "sliding_attention" else None for kind in config.layer_types]
    assert len(set(windows)) == 2
    caches = regard.KVCaches(len(windows), 1, 2, 16, keep_last=windows)
    ids = torch.randint(1, 50, (1, 70))
    with torch.no_grad():
        model.set_attn_implementation("eager")
        want = model(ids, use_cache=False).logits
        transformers.AttentionInterface.register("caches", attend)
        model.set_attn_implementation("caches")
        for module in model.modules():
            if hasattr(module, "layer_idx"):
                module.caches = caches
        start, found = 0, []
        for new in (30, 1, 1, 8, *[1] * 30):
            places = torch.arange(start, start + new)[None]
            part = ids[:, start : start + new]
            found.append(model(part, position_ids=places, use_cache=False).logits)
            start += new
    assert caches.lengths.tolist() == [70]
    np.testing.assert_allclose(torch.cat(found, 1), want, rtol=0, atol=2e-5)
