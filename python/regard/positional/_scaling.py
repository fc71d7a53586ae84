"""Formulas for models that read more positions than their original training length."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.positional._frequencies import geometric

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from regard.positional._rope_parameters import RopeParameters

    Frequencies = NDArray[np.float64]
    Numbers = Mapping[str, Any]

_TRAINED = "original_max_position_embeddings"


def scaled(
    rope: RopeParameters, rotary_dim: int, base: float, length: int | None
) -> tuple[Frequencies, float]:
    """Return the frequencies of `rotary_dim` columns, and the factor of cosines and sines.

    `length` is the length of the whole sequence, None for a short sequence. `rotary_frequencies`
    documents the formulas.
    """
    numbers = rope.numbers
    plain = geometric(rotary_dim, base)
    match rope.rope_type:
        case "linear":
            return plain / numbers["factor"], 1.0
        case "dynamic":
            return geometric(rotary_dim, _grown_base(numbers, rotary_dim, base, length)), 1.0
        case "yarn":
            return _yarn(plain, numbers, base), _yarn_attention(numbers)
        case "longrope":
            return _longrope(plain, numbers, length), _longrope_attention(numbers)
        case "llama3":
            return _llama3(plain, numbers), 1.0
        case "proportional":
            return _proportional(plain, numbers, rope.rotary_fraction), 1.0
        case _:
            return plain, 1.0


def _grown_base(numbers: Numbers, rotary_dim: int, base: float, length: int | None) -> float:
    """Return the base of ``dynamic``, which grows with the length (NTK-aware scaling)."""
    factor, trained = numbers["factor"], numbers[_TRAINED]
    if length is None or length <= trained:
        return base
    if rotary_dim == 2:
        raise ValueError("rotary_dim must be at least 4 for the scaling 'dynamic', got 2")
    growth = factor * length / trained - (factor - 1)
    grown: float = base * growth ** (rotary_dim / (rotary_dim - 2))
    return grown


def _yarn(plain: Frequencies, numbers: Numbers, base: float) -> Frequencies:
    """Scale as in Peng et al. 2024, section 3.2, with the bounds of its implementation."""
    trained, dim = numbers[_TRAINED], 2 * plain.size
    if base <= 1:
        raise ValueError(f"base must be above 1 for the scaling 'yarn', got {base}")

    def pair_of(turns: float) -> float:
        return dim * math.log(trained / (2 * math.pi * turns)) / (2 * math.log(base))

    fast, slow = numbers.get("beta_fast", 32.0), numbers.get("beta_slow", 1.0)
    if fast <= slow:
        raise ValueError(f"scaling['beta_fast'] must be above beta_slow, got {fast} and {slow}")
    first, last = pair_of(fast), pair_of(slow)
    if numbers.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    # The upper bound counts columns, not pairs; models were trained with it.
    first, last = max(first, 0), min(last, dim - 1)
    if first == last:
        last += 0.001
    ramp = np.clip((np.arange(plain.size) - first) / (last - first), 0, 1)
    slowed: Frequencies = plain * (1 - ramp) + plain / numbers["factor"] * ramp
    return slowed


def _longrope(plain: Frequencies, numbers: Numbers, length: int | None) -> Frequencies:
    """Scale each pair by its factor for short or for long sequences (Ding et al. 2024)."""
    is_long = length is not None and length > numbers[_TRAINED]
    name = "long_factor" if is_long else "short_factor"
    factors: Frequencies = numbers[name]
    if factors.size != plain.size:
        raise ValueError(
            f"scaling[{name!r}] must have one number for each of {plain.size} pairs of columns, "
            f"got {factors.size}"
        )
    return plain / factors


def _llama3(plain: Frequencies, numbers: Numbers) -> Frequencies:
    """Scale as Meta's ``apply_scaling`` of Llama 3.1 does."""
    low, high = numbers["low_freq_factor"], numbers["high_freq_factor"]
    if high <= low:
        raise ValueError(
            f"scaling['high_freq_factor'] must be above low_freq_factor, got {high} and {low}"
        )
    turns = numbers[_TRAINED] * plain / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    mixed: Frequencies = plain * kept + plain / numbers["factor"] * (1 - kept)
    return mixed


def _proportional(plain: Frequencies, numbers: Numbers, fraction: float) -> Frequencies:
    """Scale the first pairs, by their fraction, and set the other frequencies to 0."""
    rotated = int(fraction * 2 * plain.size // 2)
    return np.where(np.arange(plain.size) < rotated, plain / numbers.get("factor", 1.0), 0.0)


def _yarn_attention(numbers: Numbers) -> float:
    """Return the factor of Peng et al. 2024, section 3.4, or of DeepSeek for two mscales."""

    def temperature(mscale: float) -> float:
        return 0.1 * mscale * math.log(numbers["factor"]) + 1

    if "attention_factor" in numbers:
        return float(numbers["attention_factor"])
    mscale, of_all = numbers.get("mscale", 0.0), numbers.get("mscale_all_dim", 0.0)
    return temperature(mscale) / temperature(of_all) if mscale and of_all else temperature(1)


def _longrope_attention(numbers: Numbers) -> float:
    """Return the factor of Microsoft's LongRoPE implementation and Phi-3."""
    if "attention_factor" in numbers:
        return float(numbers["attention_factor"])
    trained = numbers[_TRAINED]
    if trained <= 1:
        raise ValueError(f"scaling[{_TRAINED!r}] must be above 1 for 'longrope', got {trained}")
    return math.sqrt(1 + math.log(numbers["factor"]) / math.log(trained))
