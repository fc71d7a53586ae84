"""Rotary frequencies of models that were stretched to longer sequences."""

import math

import numpy as np
import pytest

import regard
from reference import assert_same_bits
from regard import positional

rotary_frequencies = positional.rotary_frequencies
TRAINED = "original_max_position_embeddings"
LONGEST = "max_position_embeddings"
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


def longrope(**changes):
    """A factor for each of as many pairs as `of_dim` says."""
    numbers = {"short_factor": 1.0, "long_factor": 2.0, "factor": 32.0, TRAINED: 4096}
    return {"rope_type": "longrope"} | numbers | changes


def proportional(**changes):
    return {
        "rope_type": "proportional",
        "rope_theta": 77.0,
        "partial_rotary_factor": 0.25,
    } | changes


def of_dim(scaling, rotary_dim):
    """The scaling with lists of factors for so wide a head, rising along the pairs."""
    pairs = rotary_dim // 2
    return {
        key: [value + m / pairs for m in range(pairs)] if key in FACTORS else value
        for key, value in scaling.items()
    }


FACTORS = ("short_factor", "long_factor")


def by_hand(dim, base, scaling, length=None):
    """Pair by pair in Python's floats, in the words of the papers: wavelengths and rotations."""
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
    "yarn, ratio": (yarn(factor=None, **{LONGEST: 16384}), None),
    "yarn, length beside": ({"type": "yarn", "factor": 4.0, LONGEST: 4096}, None),
    "dynamic, length beside": ({"type": "dynamic", "factor": 2.0, LONGEST: 2048}, 9000),
    "longrope, short": (longrope(), 4096),
    "longrope, no length": (longrope(), None),
    "longrope, long": (longrope(), 4097),
    "longrope, ratio": (longrope(factor=None, **{LONGEST: 131072}), 9000),
    "longrope, own factor": (longrope(factor=None, attention_factor=1.25), 9000),
    "longrope, never longer": (longrope(factor=None, **{LONGEST: 4096}), 9000),
    "proportional": (proportional(), None),
    "proportional, slowed": (proportional(factor=8.0), None),
    "default, v5": ({"rope_type": "default", "rope_theta": 77.0}, None),
    "no type, v5": ({"rope_theta": 77.0}, None),
    "linear, v5": (linear(rope_theta=77.0, partial_rotary_factor=1.0), None),
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
    "yarn, ratio": 0.1 * math.log(4) + 1,
    "yarn, length beside": 0.1 * math.log(4) + 1,
    "longrope, short": math.sqrt(1 + 5 / 12),
    "longrope, no length": math.sqrt(1 + 5 / 12),
    "longrope, long": math.sqrt(1 + 5 / 12),
    "longrope, ratio": math.sqrt(1 + 5 / 12),
    "longrope, own factor": 1.25,
}


@pytest.mark.parametrize("base", [20.0, 10000.0, 500000])
@pytest.mark.parametrize("rotary_dim", [4, 32, 64, 128])
@pytest.mark.parametrize("name", CASES)
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
    # The exponent's rounding is times log(base) < 14 in the power; the ramps of llama3 and yarn
    # multiply what their own bounds are off by at most about the same again.
    exact = by_hand(rotary_dim, base, scaling, length)
    np.testing.assert_allclose(frequencies, exact, rtol=64 * EPS)
    assert factor == pytest.approx(ATTENTION.get(name, 1.0), rel=4 * EPS)


HALF = {"rope_type": "default", "rope_theta": 77.0, "partial_rotary_factor": 0.5}


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


PHI = of_dim(longrope(), 8)
ALWAYS = f"rope_theta, partial_rotary_factor, {LONGEST}, {TRAINED}"
BESIDE = (
    f"; where the configuration has {TRAINED} or {LONGEST} beside rope_scaling, add it: "
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
            "head_dim must be given in place of rotary_dim 8 where scaling has a "
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
            "rotary_dim must be even, got 3",
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
