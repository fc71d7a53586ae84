"""Encodings that tell attention where a token sits."""

from regard.positional._alibi import alibi_slopes
from regard.positional._rotary import rotary, rotary_cache
from regard.positional._sinusoidal import sinusoidal

__all__ = ["alibi_slopes", "rotary", "rotary_cache", "sinusoidal"]
