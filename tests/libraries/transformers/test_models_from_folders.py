"""`regard.models.load` computes the logits of the transformers models that wrote the folder."""

import json

import numpy as np
import pytest

import regard
from rope_cases import TRAINED, llama3

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
}
LLAMA3 = llama3(rope_theta=5e5, **{TRAINED: 64})
ON = {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 3}
MODELS = {  # the class, its options, and the windows
    "Llama": ("Llama", {"rope_parameters": LLAMA3}, [None] * 4),
    "Llama, tied": ("Llama", {"tie_word_embeddings": True}, [None] * 4),
    "Llama ignores windows": ("Llama", {"sliding_window": 8}, [None] * 4),
    "Mistral": ("Mistral", {"sliding_window": 8}, [8] * 4),
    "Qwen2, off": ("Qwen2", {"sliding_window": 8}, [None] * 4),
    "Qwen2, last layer": ("Qwen2", ON, [None] * 3 + [8]),
    "Qwen2, all layers": ("Qwen2", ON | {"max_window_layers": 0}, [8] * 4),
    "Qwen3": ("Qwen3", ON | {"max_window_layers": 2}, [None] * 2 + [8] * 2),
}


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_logits(name, listed, tmp_path):
    """Older configurations do not list the layers with windows: `listed` is False."""
    kind, options, windows = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES, **options)
    theirs = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(0, 0.2)
    theirs.save_pretrained(tmp_path)
    if not listed:
        path = tmp_path / "config.json"
        config = json.loads(path.read_text()) | options
        config.pop("layer_types", None)
        path.write_text(json.dumps(config))
    vocabulary = tokenizers.models.WordLevel({f"w{i}": i for i in range(50)}, unk_token="w0")
    tokenizers.Tokenizer(vocabulary).save(str(tmp_path / "tokenizer.json"))

    ids = torch.randint(1, 50, (2, 40))
    with torch.no_grad():
        wanted = theirs(ids).logits.numpy()
    model = regard.models.load(tmp_path)
    assert list(model.windows) == windows
    parts = np.split(ids.numpy(), [17, 18, 19, 33], axis=1)
    limit = 1e-5 * np.abs(wanted).max()
    for caches in (model.caches(2), model.caches(2, keep_last=model.windows)):
        found = [model.logits(model(part, caches)) for part in parts]
        np.testing.assert_allclose(np.concatenate(found, axis=1), wanted, rtol=0, atol=limit)
