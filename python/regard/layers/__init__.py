"""Attention layers with parameters, which read and write the states of other libraries."""

from regard._runtime.public import publish as _publish
from regard.layers._backward import InputGradients
from regard.layers._multi_head import MultiHeadAttention
from regard.layers._norms import rms_norm
from regard.layers._self_attention import SelfAttention

__all__ = [
    "InputGradients",
    "MultiHeadAttention",
    "SelfAttention",
    "rms_norm",
]

_publish(globals())
