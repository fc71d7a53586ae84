"""Build masks, which determine the keys that each query may attend to.

A mask is a bool array that broadcasts to ``(..., heads, q_len, kv_len)``, True where a query may
attend. Masks combine like any bool arrays: ``a & b`` lets a query attend where both masks do,
``a | b`` where either mask does, and ``~a`` where `a` does not.
"""

from regard._runtime.public import publish as _publish
from regard.masks._additive import as_additive
from regard.masks._check import check
from regard.masks._positions import causal, prefix, window
from regard.masks._sequences import padding, segments

__all__ = ["as_additive", "causal", "check", "padding", "prefix", "segments", "window"]

_publish(globals())
