"""Encode the positions of tokens for attention."""

from regard._runtime.public import publish as _publish
from regard.positional._rotary import rotary
from regard.positional._rotary_frequencies import rotary_cache, rotary_frequencies
from regard.positional._sinusoidal import alibi_slopes, sinusoidal
from regard.positional._t5 import t5_buckets, t5_distance_bias, t5_distance_bias_backward

__all__ = [
    "alibi_slopes",
    "rotary",
    "rotary_cache",
    "rotary_frequencies",
    "sinusoidal",
    "t5_buckets",
    "t5_distance_bias",
    "t5_distance_bias_backward",
]

_publish(globals())
