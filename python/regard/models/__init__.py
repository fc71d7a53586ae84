"""Language models of the Llama family, from GGUF files and Hugging Face folders. Experimental.

The models run in NumPy, with regard's attention, caches and matrix products.
"""

from regard._runtime.public import publish as _publish
from regard.models._functions import sample, silu, swiglu
from regard.models._load import load
from regard.models._model import Model

__all__ = ["Model", "load", "sample", "silu", "swiglu"]

_publish(globals())
