"""The queries and keys of a Llama-family language model for a text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard._cli.models._forward import queries_and_keys
from regard._cli.models._gguf import is_gguf, open_gguf
from regard._cli.models._hugging_face import open_hugging_face
from regard._cli.models._smollm2 import SMOLLM2_INSTALL, open_smollm2

if TYPE_CHECKING:
    import os

    from regard._cli.models._model import Model

__all__ = [
    "SMOLLM2_INSTALL",
    "open_gguf",
    "open_hugging_face",
    "open_model",
    "open_smollm2",
    "queries_and_keys",
]


def open_model(path: str | os.PathLike[str]) -> Model:
    """Return the model of a GGUF or a safetensors file."""
    return open_gguf(path) if is_gguf(path) else open_hugging_face(path)
