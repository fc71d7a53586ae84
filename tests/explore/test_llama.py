"""Models of Hugging Face's files: their queries and keys against a float64 forward pass."""

import json

import numpy as np
import pytest

from explorer_pages import Page
from llama_models import DIM, HEADS, KV_HEADS, LAYERS, TEXT, WIDTH, WORDS, forward, parameters
from regard._cli import main
from regard._cli.models import open_hugging_face, queries_and_keys

safetensors = pytest.importorskip("safetensors.numpy", reason='pip install ".[models]"')
tokenizers = pytest.importorskip("tokenizers", reason='pip install ".[models]"')

CONFIG = {
    "model_type": "llama",
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": DIM,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500.0,
}
ROPE = {"rope_type": "default", "rope_theta": 500.0}


@pytest.fixture
def folder(tmp_path):
    """Return a function that writes a model, with changes to its configuration."""

    def write(own=None, **changes):
        model_type = changes.get("model_type", "llama")
        own = parameters(np.random.default_rng(0), model_type) if own is None else own
        safetensors.save_file(own, tmp_path / "model.safetensors")
        config = {key: value for key, value in (CONFIG | changes).items() if value is not None}
        (tmp_path / "config.json").write_text(json.dumps(config))
        encoder = tokenizers.models.WordLevel({f"w{i}": i for i in range(WORDS)}, unk_token="w0")
        tokenizer = tokenizers.Tokenizer(encoder)
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        return own, tmp_path / "model.safetensors"

    return write


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({}, None),
        (
            {"rope_theta": None, "rope_parameters": ROPE},
            None,
        ),
        ({"model_type": "qwen2", "sliding_window": 4, "use_sliding_window": False}, None),
        ({"model_type": "qwen3"}, None),
        ({"model_type": "mistral", "sliding_window": 3}, 3),
    ],
)
def test_queries_and_keys(folder, changes, window):
    own, path = folder(**changes)
    model = open_hugging_face(path)
    numbers, texts = model.tokens(TEXT)
    assert numbers == [3, 1, 4, 1, 5, 9, 2, 6]
    assert texts == TEXT.split()
    queries, keys = queries_and_keys(model, numbers)
    for query, key, exact in zip(queries, keys, forward(own, numbers, window), strict=True):
        assert np.allclose(query, exact[0], rtol=1e-4, atol=1e-3 * np.abs(exact[0]).max())
        assert np.allclose(key, exact[1], rtol=1e-4, atol=1e-3 * np.abs(exact[1]).max())


def test_layers_that_are_not_wanted_are_left_out(folder):
    model = open_hugging_face(folder()[1])
    calls = []
    queries, keys = queries_and_keys(model, [3, 1], lambda *each: calls.append(each), layers=[1])
    every = queries_and_keys(model, [3, 1])
    assert len(queries) == len(keys) == 1
    assert np.array_equal(queries[0], every[0][1])
    assert np.array_equal(keys[0], every[1][1])
    assert calls == [(1, 2), (2, 2)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type must be one of llama, mistral"),
        ({"model_type": None}, "model_type must be one of"),
        ({"hidden_act": "gelu"}, "hidden_act must be 'silu'"),
        ({"rms_norm_eps": None}, "rms_norm_eps must be present"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be at least 1"),
    ],
)
def test_configurations_that_are_refused(folder, changes, message):
    _, path = folder(**changes)
    with pytest.raises(ValueError, match=message):
        open_hugging_face(path)


def test_parameters_that_do_not_fit(folder):
    own, path = folder(num_attention_heads=2, num_key_value_heads=2)
    with pytest.raises(ValueError, match=r"q_proj\.weight must have shape \(16, 24\), got"):
        queries_and_keys(open_hugging_face(path), [1])
    del own["model.layers.1.mlp.up_proj.weight"]
    _, path = folder(own)
    with pytest.raises(ValueError, match=r"layer 1 must have .* missing: model\.layers\.1\.mlp"):
        queries_and_keys(open_hugging_face(path), [1])
    with pytest.raises(ValueError, match="they belong to different models"):
        queries_and_keys(open_hugging_face(path), [WORDS])


def test_the_command_shows_layers_of_one_window(folder, tmp_path, capsys):
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    _, path = folder(model_type="qwen3", sliding_window=3, layer_types=kinds)
    page = tmp_path / "page.html"
    command = ["explore", str(path), TEXT, "-o", str(page), "--layers"]
    assert main([*command, "0-1"]) == 1
    assert "got windows 3, None: name layers of the same window" in capsys.readouterr().err
    assert main([*command, "0,2"]) == 0
    explorer = Page.of_file(page)
    assert [layer["name"] for layer in explorer.facts["layers"]] == ["0", "2"]
    assert (explorer.map(1, 0)["weights"] > 0).sum() == 1 + 2 + 6 * 3


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_files_beside_the_model(folder, name):
    _, path = folder()
    (path.parent / name).write_text("{")
    with pytest.raises(ValueError, match=rf"{name} is not "):
        open_hugging_face(path)
    (path.parent / name).unlink()
    with pytest.raises(FileNotFoundError, match=rf"{name} is missing: the model's file needs"):
        open_hugging_face(path)
