"""Attention layers with parameters, which read and write the states of other libraries.

It also contains functions that language models need around attention and that NumPy lacks.
"""

from regard._runtime.public import publish as _publish
from regard.layers._backward import InputGradients
from regard.layers._functions import rms_norm, sample, silu, swiglu
from regard.layers._multi_head import MultiHeadAttention
from regard.layers._self_attention import SelfAttention

__all__ = [
    "InputGradients",
    "MultiHeadAttention",
    "SelfAttention",
    "rms_norm",
    "sample",
    "silu",
    "swiglu",
]

_publish(globals())
