"""Mappings for rotary embeddings as in configurations, one function for each type."""

TRAINED = "original_max_position_embeddings"
LONGEST = "max_position_embeddings"
FACTORS = ("short_factor", "long_factor")
HALF = {"rope_type": "default", "rope_theta": 77.0, "partial_rotary_factor": 0.5}


def _of_type(rope_type, **numbers):
    return lambda **changes: {"rope_type": rope_type} | numbers | changes


linear = _of_type("linear", factor=4.0)
dynamic = _of_type("dynamic", factor=2.0, **{TRAINED: 2048})
yarn = _of_type("yarn", factor=4.0, **{TRAINED: 4096})
llama3 = _of_type(
    "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, **{TRAINED: 8192}
)
# The first of each list of factors; `of_dim` makes the lists.
longrope = _of_type("longrope", short_factor=1.0, long_factor=2.0, factor=32.0, **{TRAINED: 4096})
proportional = _of_type("proportional", rope_theta=77.0, partial_rotary_factor=0.25)


def of_dim(scaling, rotary_dim):
    """Replace single factors by lists for a head of this width, rising along the pairs."""
    pairs = rotary_dim // 2
    return {
        key: [value + m / pairs for m in range(pairs)] if key in FACTORS else value
        for key, value in scaling.items()
    }
