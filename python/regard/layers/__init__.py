"""Attention with parameters of its own, and the names that parameters come by."""

from regard.layers._multi_head import MultiHeadAttention
from regard.layers._self_attention import SelfAttention

__all__ = ["MultiHeadAttention", "SelfAttention"]
