"""The queries and keys of a Llama-family language model for a text."""

from regard._cli.models._forward import queries_and_keys
from regard._cli.models._hugging_face import open_hugging_face
from regard._cli.models._smollm2 import SMOLLM2_INSTALL, open_smollm2

__all__ = ["SMOLLM2_INSTALL", "open_hugging_face", "open_smollm2", "queries_and_keys"]
