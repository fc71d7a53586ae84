"""Mappings for rotary embeddings as in configurations, one function for each type."""

TRAINED = "original_max_position_embeddings"
LONGEST = "max_position_embeddings"
FACTORS = ("short_factor", "long_factor")
HALF = {"rope_type": "default", "rope_theta": 77.0, "partial_rotary_factor": 0.5}


def yarn(**changes):
    return {"rope_type": "yarn", "factor": 4.0, TRAINED: 4096} | changes


def llama3(**changes):
    numbers = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, TRAINED: 8192}
    return {"rope_type": "llama3"} | numbers | changes


def dynamic(**changes):
    return {"rope_type": "dynamic", "factor": 2.0, TRAINED: 2048} | changes


def linear(**changes):
    return {"rope_type": "linear", "factor": 4.0} | changes


def longrope(**changes):
    """Return the first of each list of factors; `of_dim` makes the lists."""
    numbers = {"short_factor": 1.0, "long_factor": 2.0, "factor": 32.0, TRAINED: 4096}
    return {"rope_type": "longrope"} | numbers | changes


def proportional(**changes):
    return {
        "rope_type": "proportional",
        "rope_theta": 77.0,
        "partial_rotary_factor": 0.25,
    } | changes


def of_dim(scaling, rotary_dim):
    """Replace single factors by lists for a head of this width, rising along the pairs."""
    pairs = rotary_dim // 2
    return {
        key: [value + m / pairs for m in range(pairs)] if key in FACTORS else value
        for key, value in scaling.items()
    }
