"""Test rotary frequencies of models that were extended to longer sequences."""

import math

import numpy as np
import pytest

import regard
from reference import assert_same_bits
from regard import positional
from rope_cases import (
    FACTORS,
    HALF,
    LONGEST,
    TRAINED,
    dynamic,
    linear,
    llama3,
    longrope,
    of_dim,
    proportional,
    yarn,
)

rotary_frequencies = positional.rotary_frequencies
EPS = np.finfo(float).eps


def by_hand(dim, base, scaling, length=None):
    """Compute each pair in Python's floats from wavelengths and rotations, as the papers do."""
    kind = scaling.get("rope_type", scaling.get("type"))
    trained = scaling.get(TRAINED, scaling.get(LONGEST))
    s = scaling.get("factor")
    if s is None:
        s = scaling[LONGEST] / trained if kind in ("yarn", "longrope") and LONGEST in scaling else 1
    base = scaling.get("rope_theta", base)
    if kind == "dynamic" and length is not None and length > trained:
        base *= ((s * length / trained) - (s - 1)) ** (dim / (dim - 2))
    result = []
    for m in range(dim // 2):
        wavelength = 2 * math.pi * base ** (2 * m / dim)
        theta = 2 * math.pi / wavelength
        if kind == "linear":
            theta /= s
        elif kind == "llama3":
            longest = trained / scaling["low_freq_factor"]
            shortest = trained / scaling["high_freq_factor"]
            if wavelength > longest:
                theta /= s
            elif wavelength >= shortest:
                span = scaling["high_freq_factor"] - scaling["low_freq_factor"]
                smooth = (trained / wavelength - scaling["low_freq_factor"]) / span
                theta = (1 - smooth) * theta / s + smooth * theta
        elif kind == "yarn":
            bounds = []
            for turns in (scaling.get("beta_fast") or 32, scaling.get("beta_slow") or 1):
                # The m with trained / wavelength(m) = turns.
                bounds.append(dim / 2 * math.log(trained / (2 * math.pi * turns), base))
            if scaling.get("truncate") in (None, True):
                bounds = [math.floor(bounds[0]), math.ceil(bounds[1])]
            low, high = max(bounds[0], 0), min(bounds[1], dim - 1)
            gamma = min(max((m - low) / (high - low if high != low else 0.001), 0), 1)
            theta = (1 - gamma) * theta + gamma * theta / s
        elif kind == "longrope":
            theta /= scaling[FACTORS[length is not None and length > trained]][m]
        elif kind == "proportional":
            theta = theta / s if m < scaling["partial_rotary_factor"] * dim // 2 else 0
        result.append(theta)
    return np.array(result)


CASES = {
    "default": ({"rope_type": "default"}, None),
    "both names": ({"type": "linear", "rope_type": "linear", "factor": 2}, None),
    "linear": (linear(), None),
    "dynamic, no length": (dynamic(), None),
    "dynamic, one over": (dynamic(), 2049),
    "dynamic, long": (dynamic(factor=3.5), 30000),
    "yarn": (yarn(), None),
    "yarn, betas": (yarn(beta_fast=16, beta_slow=2.0), None),
    "yarn, no truncation": (yarn(truncate=False), None),
    "yarn, None": (yarn(attention_factor=None, beta_fast=None, mscale=None, truncate=None), None),
    "yarn, DeepSeek": (yarn(factor=40, mscale=1.0, mscale_all_dim=0.8), None),
    "yarn, one mscale": (yarn(mscale=0.7), None),
    "yarn, own factor": (yarn(attention_factor=0.75), None),
    "yarn, ratio": (yarn(factor=None, **{LONGEST: 16384}), None),
    "yarn, length beside": ({"type": "yarn", "factor": 4.0, LONGEST: 4096}, None),
    "longrope, short": (longrope(), 4096),
    "longrope, long": (longrope(), 4097),
    "longrope, ratio": (longrope(factor=None, **{LONGEST: 131072}), 9000),
    "longrope, own factor": (longrope(factor=None, attention_factor=1.25), 9000),
    "proportional, slowed": (proportional(factor=8.0), None),
    "no type, v5": ({"rope_theta": 77.0}, None),
    "llama3": (llama3(), None),
    "llama3, little": (llama3(**{TRAINED: 64}, factor=2.0), None),
}
# The factors of cosines and sines that are not 1, or 0.1 ln 4 + 1 for yarn with factor 4.
ATTENTION = {
    "yarn, DeepSeek": (0.1 * math.log(40) + 1) / (0.08 * math.log(40) + 1),
    "yarn, own factor": 0.75,
    "longrope, own factor": 1.25,
}


def attention_of(name):
    kind = name.partition(",")[0]
    usual = {"yarn": 0.1 * math.log(4) + 1, "longrope": math.sqrt(1 + 5 / 12)}
    return ATTENTION.get(name, usual.get(kind, 1.0))


@pytest.mark.parametrize("rotary_dim", [4, 128])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("base", [20.0, 500000])
def test_frequencies_are_the_formula(name, rotary_dim, base):
    scaling, length = CASES[name]
    scaling = of_dim(scaling, rotary_dim)
    before = dict(scaling)
    options = {"scaling": scaling, "length": length}
    if "rope_theta" not in scaling:
        options["base"] = base
    frequencies, factor = rotary_frequencies(rotary_dim, **options)
    assert scaling == before
    assert frequencies.dtype == np.float64
    assert frequencies.shape == (rotary_dim // 2,)
    # The power multiplies the exponent's rounding by log(base) < 14. The ramps of llama3 and yarn
    # add at most about the same again, from the rounding of their bounds.
    exact = by_hand(rotary_dim, base, scaling, length)
    np.testing.assert_allclose(frequencies, exact, rtol=64 * EPS)
    assert factor == pytest.approx(attention_of(name), rel=4 * EPS)


def test_a_part_of_the_head_is_rotated_as_the_configuration_says():
    x = np.random.default_rng(0).standard_normal((2, 7, 8))
    wanted = positional.rotary(x, base=77.0, rotary_dim=4)
    assert_same_bits(positional.rotary(x, scaling=HALF), wanted)
    assert_same_bits(positional.rotary(x, rotary_dim=4, scaling=HALF), wanted)
    cache = positional.rotary_cache(7, head_dim=8, scaling=HALF)
    assert_same_bits(positional.rotary(x, cache=cache), wanted)
    for given in ({"head_dim": 8}, {"rotary_dim": 4, "head_dim": 8}):
        assert_same_bits(
            rotary_frequencies(**given, scaling=HALF)[0], rotary_frequencies(4, base=77.0)[0]
        )
    layer = regard.MultiHeadAttention(16, 2, rotary={"scaling": HALF}, rng=0)
    same = regard.MultiHeadAttention(16, 2, rotary={"base": 77.0, "rotary_dim": 4}, rng=0)
    tokens = np.random.default_rng(1).standard_normal((5, 16))
    assert_same_bits(layer(tokens), same(tokens))


@pytest.mark.parametrize("scaling", [dynamic(**{TRAINED: 16}), longrope(**{TRAINED: 16})])
def test_a_length_that_is_given_holds_the_frequencies(scaling):
    scaling = of_dim(scaling, 8)
    frequencies, factor = rotary_frequencies(8, scaling=scaling, length=40)
    for positions in (3, 40):
        cos, sin = positional.rotary_cache(positions, 8, scaling=scaling, length=40)
        angles = np.arange(positions)[:, None] * frequencies
        assert_same_bits(cos, np.cos(angles) * factor)
        assert_same_bits(sin, np.sin(angles) * factor)
        x = np.random.default_rng(0).standard_normal((2, positions, 8))
        assert_same_bits(
            positional.rotary(x, scaling=scaling, length=40), positional.rotary(x, cache=(cos, sin))
        )


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_rotary_and_its_cache_take_scalings(name, interleaved):
    scaling, length = CASES[name]
    scaling = of_dim(scaling, 8)
    length = 40 if length is None else length
    x = np.random.default_rng(0).standard_normal((2, 7, 12))
    positions = np.arange(length - 7, length)
    frequencies, factor = rotary_frequencies(8, base=77.0, scaling=scaling, length=length)
    options = {"base": 77.0, "rotary_dim": 8, "interleaved": interleaved}
    actual = positional.rotary(x, positions, scaling=scaling, **options)
    plain = positional.rotary(
        x, positions, inverse_frequencies=frequencies, interleaved=interleaved
    )
    np.testing.assert_allclose(actual[..., :8], factor * plain[..., :8], rtol=0, atol=16 * EPS)
    assert_same_bits(actual[..., 8:], x[..., 8:])
    cache = positional.rotary_cache(positions, 8, base=77.0, scaling=scaling)
    assert_same_bits(positional.rotary(x, cache=cache, interleaved=interleaved), actual)
    assert_same_bits(cache[0], np.cos(positions[:, None] * frequencies) * factor)


def test_dynamic_follows_the_largest_position_of_the_call():
    scaling = dynamic(**{TRAINED: 16})
    plain = positional.rotary_cache(16, 8)
    for actual, wanted in zip(positional.rotary_cache(16, 8, scaling=scaling), plain, strict=True):
        assert_same_bits(actual, wanted)
    frequencies, _ = rotary_frequencies(8, scaling=scaling, length=20)
    for positions in ([19, 3], [[19], [3]], [0, 19], np.array([19, 3], np.uint64)):
        cos, _ = positional.rotary_cache(positions, 8, scaling=scaling)
        assert_same_bits(cos, np.cos(np.array(positions)[..., None] * frequencies))
    for positions in (0, np.zeros(0, int), [-3, -1]):
        assert positional.rotary_cache(positions, 8, scaling=scaling)[0].shape[-1] == 4
