"""Read the parameters of trained models from their files."""

from regard._runtime.public import publish as _publish
from regard.checkpoints._gguf import load_gguf
from regard.checkpoints._safetensors import load_safetensors

__all__ = ["load_gguf", "load_safetensors"]

_publish(globals())
