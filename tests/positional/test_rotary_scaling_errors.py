"""Test errors of the scalings of rotary embeddings."""

import numpy as np
import pytest

from regard import positional
from rope_cases import (
    HALF,
    LONGEST,
    TRAINED,
    dynamic,
    linear,
    llama3,
    longrope,
    of_dim,
    yarn,
)

rotary_frequencies = positional.rotary_frequencies
PHI = of_dim(longrope(), 8)
ALWAYS = f"rope_theta, partial_rotary_factor, {LONGEST}, {TRAINED}"
BESIDE = (
    f"; if the configuration contains {TRAINED} or {LONGEST} next to rope_scaling, add it: "
    f'scaling={{**config["rope_scaling"], "{LONGEST}": config["{LONGEST}"]}}'
)
KEYS = f"factor, low_freq_factor, high_freq_factor, {TRAINED}"


@pytest.mark.parametrize(
    ("scaling", "error", "message"),
    [
        ("yarn", TypeError, "scaling must be a mapping, got str"),
        ({}, ValueError, "scaling must have one rope_type, got {}"),
        (
            {"type": "yarn", "rope_type": "linear"},
            ValueError,
            "scaling must have one rope_type, got {'type': 'yarn', 'rope_type': 'linear'}",
        ),
        (
            {"rope_type": "axial"},
            ValueError,
            "scaling's rope_type must be one of ['default', 'linear', 'dynamic', 'yarn', "
            "'longrope', 'llama3', 'proportional'], got 'axial'",
        ),
        (
            {"rope_parameters": linear(), "hidden_size": 64},
            ValueError,
            "scaling must be one mapping of a configuration, got the whole configuration: pass "
            "scaling=config['rope_parameters']",
        ),
        (
            {"full_attention": {"rope_type": "default"}, "sliding_attention": linear()},
            ValueError,
            "scaling must be the mapping of one type of layer, got one for each of "
            "full_attention, sliding_attention: pass scaling=rope_parameters['full_attention'] for "
            "such a layer",
        ),
        ({"rope_type": ["yarn"]}, ValueError, None),
        (
            {"rope_type": "llama3", "factor": 8.0, "high": 3},
            ValueError,
            f"scaling of type 'llama3' must have the keys {KEYS} (optional: {ALWAYS}), got "
            f"missing: low_freq_factor, high_freq_factor, {TRAINED}, unexpected: high{BESIDE}",
        ),
        (
            {"type": "dynamic", "factor": 2.0},
            ValueError,
            f"scaling of type 'dynamic' must have the keys factor, {TRAINED} (optional: {ALWAYS}), "
            f"got missing: {TRAINED}, unexpected: none{BESIDE}",
        ),
        (
            {"rope_type": "default", "mrope_section": [16, 24, 24]},
            ValueError,
            f"scaling of type 'default' must have the keys none (optional: {ALWAYS}), got missing: "
            "none, unexpected: mrope_section",
        ),
        (
            linear(partial_rotary_factor=1.5),
            ValueError,
            "scaling['partial_rotary_factor'] must be at most 1, got 1.5",
        ),
        (linear(partial_rotary_factor=0), ValueError, None),
        (linear(rope_theta="1e4"), TypeError, None),
        (linear(rope_theta=-1), ValueError, None),
        (
            longrope(short_factor=[1.0, 2.0], long_factor=[1.0, 2.0]),
            ValueError,
            "scaling['short_factor'] must have one number for each of 4 pairs of columns, got 2",
        ),
        (PHI | {"long_factor": "12"}, TypeError, None),
        (PHI | {"long_factor": [[1.0] * 4]}, ValueError, None),
        (
            PHI | {"short_factor": [1, 1, 0, 1]},
            ValueError,
            "scaling['short_factor'] must be positive, got 0.0",
        ),
        (PHI | {"long_factor": [np.nan] * 4}, ValueError, None),
        (
            PHI | {TRAINED: 1},
            ValueError,
            f"scaling['{TRAINED}'] must be above 1 for 'longrope', got 1.0",
        ),
        (PHI | {"factor": None}, ValueError, None),
        (linear(factor="4"), TypeError, "scaling['factor'] must be a real number, got str"),
        (linear(factor=True), TypeError, "scaling['factor'] must be a real number, got bool"),
        (linear(factor=None), ValueError, None),
        (
            linear(factor=0.5),
            ValueError,
            "scaling['factor'] must be at least 1 and finite, got 0.5",
        ),
        (linear(factor=np.inf), ValueError, None),
        (linear(factor=np.nan), ValueError, None),
        (
            dynamic(**{TRAINED: 0}),
            ValueError,
            f"scaling['{TRAINED}'] must be positive and finite, got 0.0",
        ),
        (yarn(mscale=-1.0), ValueError, None),
        (yarn(attention_factor=0.0), ValueError, None),
        (yarn(truncate=1), TypeError, "scaling['truncate'] must be True or False, got int"),
        (
            yarn(beta_slow=32),
            ValueError,
            "scaling['beta_fast'] must be above beta_slow, got 32.0 and 32.0",
        ),
        (
            llama3(high_freq_factor=1),
            ValueError,
            "scaling['high_freq_factor'] must be above low_freq_factor, got 1.0 and 1.0",
        ),
    ],
)
def test_errors_of_scaling(scaling, error, message):
    x = np.zeros((3, 8))
    calls = (
        lambda: rotary_frequencies(8, scaling=scaling),
        lambda: positional.rotary_cache(3, 8, scaling=scaling),
        lambda: positional.rotary(x, scaling=scaling),
    )
    for call in calls:
        with pytest.raises(error) as raised:
            call()
        assert message is None or str(raised.value) == message


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: rotary_frequencies(7), ValueError, "rotary_dim must be even, got 7"),
        (
            lambda: rotary_frequencies(),
            TypeError,
            "rotary_dim or head_dim must be an int, got neither",
        ),
        (
            lambda: rotary_frequencies(8, scaling=HALF),
            ValueError,
            "head_dim must be given in place of rotary_dim 8 if scaling has a "
            "partial_rotary_factor, got 0.5",
        ),
        (
            lambda: positional.rotary(np.zeros((3, 8)), rotary_dim=8, scaling=HALF),
            ValueError,
            "rotary_dim must be 4, which is scaling's partial_rotary_factor 0.5 of head_dim 8, "
            "got 8",
        ),
        (
            lambda: rotary_frequencies(head_dim=6, scaling=HALF),
            ValueError,
            "rotary_dim must be even, got 3, 0.5 of head_dim 6",
        ),
        (
            lambda: rotary_frequencies(8, base=500.0, scaling=linear(rope_theta=77.0)),
            ValueError,
            "base must be scaling's rope_theta 77.0 or left out, got 500.0",
        ),
        (lambda: rotary_frequencies(8.0), TypeError, "rotary_dim must be an int, got float"),
        (lambda: rotary_frequencies(8, length=-1), ValueError, "length must be at least 0, got -1"),
        (lambda: rotary_frequencies(8, length=2.0), TypeError, "length must be an int, got float"),
        (
            lambda: rotary_frequencies(8, base=0.5, scaling=yarn()),
            ValueError,
            "base must be above 1 for the scaling 'yarn', got 0.5",
        ),
        (
            lambda: rotary_frequencies(8, base=-1, scaling=linear()),
            ValueError,
            "base must be positive and finite, got -1.0",
        ),
        (
            lambda: rotary_frequencies(2, scaling=dynamic(), length=5000),
            ValueError,
            "rotary_dim must be at least 4 for the scaling 'dynamic', got 2",
        ),
        (
            lambda: positional.rotary(
                np.zeros((3, 8)), scaling=linear(), cache=positional.rotary_cache(3, 8)
            ),
            ValueError,
            "cache already determines the angles: leave scaling out",
        ),
        (
            lambda: positional.rotary_cache(3, inverse_frequencies=[1.0], scaling=linear()),
            ValueError,
            "inverse_frequencies already determines the angles: leave scaling out",
        ),
    ],
)
def test_errors_of_arguments(call, error, message):
    with pytest.raises(error) as raised:
        call()
    assert str(raised.value) == message
