"""Models of Hugging Face's files: their queries and keys against a float64 forward pass."""

import base64
import gzip
import re

import numpy as np
import pytest

from llama_models import TEXT, assert_close, computed, parameters, write_folder
from regard._cli import main
from regard.models import load

pytest.importorskip("safetensors", reason='pip install ".[models]"')
pytest.importorskip("tokenizers", reason='pip install ".[models]"')

ROPE = {"rope_type": "default", "rope_theta": 500.0}


@pytest.fixture
def folder(tmp_path):
    """Return a function that writes a model, with changes to its configuration."""

    def write(own=None, **changes):
        if own is None:
            own = parameters(np.random.default_rng(0), changes.get("model_type", "llama"))
        return own, write_folder(tmp_path, own, **changes) / "model.safetensors"

    return write


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({}, None),
        ({"rope_theta": None, "rope_parameters": ROPE}, None),
        ({"model_type": "qwen2", "sliding_window": 4, "use_sliding_window": False}, None),
        ({"model_type": "qwen3"}, None),
        ({"model_type": "mistral", "sliding_window": 3}, 3),
    ],
)
def test_queries_and_keys(folder, changes, window):
    own, path = folder(**changes)
    model = load(path, in_memory=False)
    numbers, texts = model.tokens(TEXT)
    assert numbers == [3, 1, 4, 1, 5, 9, 2, 6]
    assert texts == TEXT.split()
    layers, _ = computed(own, numbers, window)
    for layer, exact in zip(model.record(TEXT), layers, strict=True):
        for array, wanted in zip((layer.query, layer.key), exact, strict=True):
            assert_close(array, wanted)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rms_norm_eps": None}, "rms_norm_eps"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"model_type": "qwen3", "layer_types": ["full_attention"]}, "layer_types"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ({"model_type": "mistral", "sliding_window": 0}, "sliding_window"),
    ],
)
def test_configurations_that_are_refused(folder, changes, message):
    _, path = folder(**changes)
    with pytest.raises(ValueError, match=message):
        load(path, in_memory=False)


def test_the_command_shows_layers_of_different_windows(folder, tmp_path):
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    _, path = folder(
        model_type="qwen3", sliding_window=3, use_sliding_window=True, layer_types=kinds
    )
    page = tmp_path / "page.html"
    command = ["explore", str(path), TEXT, "-o", str(page), "--layers"]
    assert main([*command, "1,2"]) == 0
    written = page.read_bytes()
    assert re.findall(rb'"name":"(\d)","label"', written) == [b"1", b"2"]
    maps = (re.search(rb'id="map-%d.0">([^<]*)<' % layer, written)[1] for layer in (0, 1))
    maps = (np.frombuffer(gzip.decompress(base64.b64decode(each)), np.uint8) for each in maps)
    shown = [each.reshape(2, 8, 8).any(axis=0).sum() for each in maps]  # planes of bytes
    assert shown == [8 * 9 // 2, 1 + 2 + 6 * 3]
