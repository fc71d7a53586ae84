"""Rotary frequencies of models that were stretched to longer sequences."""

import math

import numpy as np
import pytest

from reference import assert_same_bits
from regard import positional

rotary_frequencies = positional.rotary_frequencies
TRAINED = "original_max_position_embeddings"
EPS = np.finfo(float).eps


def yarn(**changes):
    return {"rope_type": "yarn", "factor": 4.0, TRAINED: 4096} | changes


def llama3(**changes):
    numbers = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, TRAINED: 8192}
    return {"rope_type": "llama3"} | numbers | changes


def dynamic(**changes):
    return {"rope_type": "dynamic", "factor": 2.0, TRAINED: 2048} | changes


def linear(**changes):
    return {"rope_type": "linear", "factor": 4.0} | changes


def by_hand(dim, base, scaling, length=None):
    """Pair by pair in Python's floats, in the words of the papers: wavelengths and rotations."""
    kind = scaling.get("rope_type", scaling.get("type"))
    s, trained = scaling.get("factor"), scaling.get(TRAINED)
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
        result.append(theta)
    return np.array(result)


CASES = {
    "default": ({"rope_type": "default"}, None),
    "older name": ({"type": "linear", "factor": 2.0}, None),
    "both names": ({"type": "linear", "rope_type": "linear", "factor": 2}, None),
    "linear": (linear(), None),
    "linear by 1": (linear(factor=1), 3),
    "dynamic, short": (dynamic(), 2048),
    "dynamic, no length": (dynamic(), None),
    "dynamic, one over": (dynamic(), 2049),
    "dynamic, long": (dynamic(factor=3.5), 30000),
    "yarn": (yarn(), None),
    "yarn, long": (yarn(factor=40.0), 99999),
    "yarn, betas": (yarn(beta_fast=16, beta_slow=2.0), None),
    "yarn, wide": (yarn(beta_fast=400), None),
    "yarn, wider": (yarn(beta_fast=2000), None),
    "yarn, no truncation": (yarn(truncate=False), None),
    "yarn, None": (yarn(attention_factor=None, beta_fast=None, mscale=None, truncate=None), None),
    "yarn, DeepSeek": (yarn(factor=40, mscale=1.0, mscale_all_dim=0.8), None),
    "yarn, mscale alone": (yarn(mscale=0.707), None),
    "yarn, own factor": (yarn(attention_factor=0.75), None),
    "llama3": (llama3(), None),
    "llama3.2": (llama3(factor=32.0), 131072),
    "llama3, little": (llama3(**{TRAINED: 64}, factor=2.0), None),
}
ATTENTION = {
    "yarn": 0.1 * math.log(4) + 1,
    "yarn, long": 0.1 * math.log(40) + 1,
    "yarn, betas": 0.1 * math.log(4) + 1,
    "yarn, wide": 0.1 * math.log(4) + 1,
    "yarn, wider": 0.1 * math.log(4) + 1,
    "yarn, no truncation": 0.1 * math.log(4) + 1,
    "yarn, None": 0.1 * math.log(4) + 1,
    "yarn, DeepSeek": (0.1 * math.log(40) + 1) / (0.08 * math.log(40) + 1),
    "yarn, mscale alone": 0.1 * math.log(4) + 1,
    "yarn, own factor": 0.75,
}


@pytest.mark.parametrize("base", [20.0, 10000.0, 500000])
@pytest.mark.parametrize("rotary_dim", [4, 32, 64, 128])
@pytest.mark.parametrize("name", CASES)
def test_frequencies_are_the_formula(name, rotary_dim, base):
    scaling, length = CASES[name]
    before = dict(scaling)
    frequencies, factor = rotary_frequencies(rotary_dim, base=base, scaling=scaling, length=length)
    assert scaling == before
    assert frequencies.dtype == np.float64
    assert frequencies.shape == (rotary_dim // 2,)
    # The exponent's rounding is times log(base) < 14 in the power; the ramps of llama3 and yarn
    # multiply what their own bounds are off by at most about the same again.
    exact = by_hand(rotary_dim, base, scaling, length)
    np.testing.assert_allclose(frequencies, exact, rtol=64 * EPS)
    assert factor == pytest.approx(ATTENTION.get(name, 1.0), rel=4 * EPS)


def test_known_numbers():
    """Llama 3.1's first, last and middle pairs: kept, slowed 8 times, and between."""
    frequencies, _ = rotary_frequencies(128, base=500000.0, scaling=llama3())
    plain, one = rotary_frequencies(128, base=500000.0)
    assert one == 1.0
    kept, slowed = frequencies == plain, np.isclose(frequencies * 8, plain, rtol=4 * EPS)
    # 8192 / wavelength is 4 at pair 28.2 and 1 at pair 34.98.
    assert kept.nonzero()[0].tolist() == list(range(29))
    assert slowed.nonzero()[0].tolist() == list(range(35, 64))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_rotary_and_its_cache_take_scalings(name, interleaved):
    scaling, length = CASES[name]
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
            {"rope_type": "longrope"},
            ValueError,
            "scaling's rope_type must be one of ['default', 'linear', 'dynamic', 'yarn', "
            "'llama3'], got 'longrope'",
        ),
        ({"rope_type": ["yarn"]}, ValueError, None),
        (
            {"rope_type": "llama3", "factor": 8.0, "high": 3},
            ValueError,
            f"scaling of type 'llama3' must have the keys {KEYS} (optional: none), got missing: "
            f"low_freq_factor, high_freq_factor, {TRAINED}, unexpected: high",
        ),
        (
            linear(rope_theta=10000.0),
            ValueError,
            "scaling of type 'linear' must have the keys factor (optional: none), got missing: "
            "none, unexpected: rope_theta; rope_theta is the argument base, and "
            "partial_rotary_factor sets rotary_dim",
        ),
        (linear(factor="4"), TypeError, "scaling['factor'] must be a real number, got str"),
        (linear(factor=True), TypeError, "scaling['factor'] must be a real number, got bool"),
        (linear(factor=None), TypeError, None),
        (
            linear(factor=0.5),
            ValueError,
            "scaling['factor'] must be at least 1.0 and finite, got 0.5",
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
        (lambda: rotary_frequencies(8.0), TypeError, "rotary_dim must be an int, got float"),
        (lambda: rotary_frequencies(8, length=-1), ValueError, "length must be at least 0, got -1"),
        (lambda: rotary_frequencies(8, length=2.0), TypeError, "length must be an int, got float"),
        (
            lambda: rotary_frequencies(8, base=0, scaling=yarn()),
            ValueError,
            "base must be above 1 for the scaling 'yarn', got 0.0",
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
            "cache already says how far each pair turns: leave scaling out",
        ),
        (
            lambda: positional.rotary_cache(3, inverse_frequencies=[1.0], scaling=linear()),
            ValueError,
            "inverse_frequencies already says how far each pair turns: leave scaling out",
        ),
    ],
)
def test_errors_of_arguments(call, error, message):
    with pytest.raises(error) as raised:
        call()
    assert str(raised.value) == message
