"""The frequencies of rotary embeddings, by the parameters of a model's configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsFloat

import numpy as np

from regard._arguments.arrays import as_array, is_floating
from regard._arguments.numbers import finite_number, flag, integers, listed, mapping

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Frequencies = NDArray[np.float64]
    Numbers = Mapping[str, Any]

DEFAULT_BASE = 10000.0
BETA = "llama_4_scaling_beta"
_TRAINED = "original_max_position_embeddings"
_LONGEST = "max_position_embeddings"
# The required and the optional keys of each type.
_TYPES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "dynamic": (("factor", _TRAINED), ()),
    "yarn": (
        ("factor", _TRAINED),
        ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    ),
    "longrope": (("short_factor", "long_factor", "factor", _TRAINED), ("attention_factor",)),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", _TRAINED), ()),
    "proportional": ((), ("factor",)),
}
_TYPE_KEYS = ("rope_type", "type")
_FOLLOW_THE_LENGTH = ("dynamic", "longrope")
_OF_THREE = _SECTIONS, _INTERLEAVED = "mrope_section", "mrope_interleaved"
_OF_ANY_TYPE = ("rope_theta", "partial_rotary_factor", _LONGEST, _TRAINED, BETA, *_OF_THREE)
# A factor below 1 would increase frequencies; DeepSeek writes 0 for an unused mscale.
_LEAST = {"factor": 1.0, "mscale": 0.0, "mscale_all_dim": 0.0, BETA: 0.0}


class RopeParameters(NamedTuple):
    """The checked content of ``rope_scaling`` or ``rope_parameters``."""

    rope_type: str
    base: float | None
    rotary_fraction: float
    numbers: Mapping[str, Any]  # parameters of the type's formula

    @property
    def trained_length(self) -> float | None:
        """The length beyond which the frequencies depend on the length, if they do."""
        return self.numbers[_TRAINED] if self.rope_type in _FOLLOW_THE_LENGTH else None

    @property
    def axes(self) -> NDArray[np.int64] | None:
        """Which of three positions rotates each pair, if the configuration has three."""
        if _SECTIONS not in self.numbers:
            return None
        sections = self.numbers[_SECTIONS]
        if not self.numbers.get(_INTERLEAVED, False):
            return np.repeat(np.arange(3), sections)
        axes = np.zeros(sections.sum(), np.int64)
        for axis in (1, 2):
            axes[axis : 3 * sections[axis] : 3] = axis
        return axes

    def query_factor(self, positions: ArrayLike, is_query: bool | None) -> Frequencies | None:
        """Return the factor of queries at their positions, or None if there is none."""
        if BETA not in self.numbers:
            return None
        if is_query is None:
            raise TypeError(
                f"is_query must be True or False if scaling has {BETA}, which multiplies queries "
                "but not keys, got None"
            )
        if not flag("is_query", is_query):
            return None
        factor: Frequencies = 1 + self.numbers[BETA] * np.log1p(
            np.floor(np.maximum(positions, 0) / self.numbers[_TRAINED])
        )
        return factor


def read_rope_parameters(scaling: Mapping[str, Any] | None) -> RopeParameters:
    """Check and complete the mapping of a configuration, or raise TypeError or ValueError.

    A key whose value is None counts as missing. If ``original_max_position_embeddings`` is missing,
    it is ``max_position_embeddings``. If the ``factor`` of yarn or longrope is missing, it is the
    ratio of these two lengths, as in transformers.
    """
    if scaling is None:
        return RopeParameters("default", None, 1.0, {})
    given = {key: value for key, value in mapping("scaling", scaling).items() if value is not None}
    rope_type = _rope_type(given)
    needed, optional = _TYPES[rope_type]
    needed += (_TRAINED,) if BETA in given and _TRAINED not in needed else ()
    numbers = {key: _checked(key, value) for key, value in given.items() if key not in _TYPE_KEYS}
    if _LONGEST in numbers:
        numbers.setdefault(_TRAINED, numbers[_LONGEST])
        if rope_type in ("yarn", "longrope"):
            numbers.setdefault("factor", max(numbers[_LONGEST] / numbers[_TRAINED], 1.0))
    if rope_type == "longrope" and "attention_factor" in numbers:
        numbers.setdefault("factor", 1.0)  # needed only for the attention factor
    missing = [key for key in needed if key not in numbers]
    unexpected = [str(key) for key in numbers if key not in needed + optional + _OF_ANY_TYPE]
    if missing or unexpected:
        raise ValueError(
            f"scaling of type {rope_type!r} must have the keys {listed(needed)} (optional: "
            f"{listed(optional + _OF_ANY_TYPE)}), got missing: {listed(missing)}, unexpected: "
            f"{listed(unexpected)}" + _BESIDE * (_TRAINED in missing)
        )
    if BETA in numbers and _SECTIONS in numbers:
        raise ValueError(f"scaling must have {_SECTIONS} or {BETA}, got both")
    fraction = numbers.get("partial_rotary_factor", 1.0)
    return RopeParameters(rope_type, numbers.get("rope_theta"), fraction, numbers)


_BESIDE = (
    f"; if the configuration contains {_TRAINED} or {_LONGEST} next to rope_scaling, add it: "
    f'scaling={{**config["rope_scaling"], "{_LONGEST}": config["{_LONGEST}"]}}'
)


def _rope_type(given: Mapping[str, Any]) -> str:
    layers = [key for key, value in given.items() if isinstance(value, Mapping)]
    whole = next((key for key in ("rope_parameters", "rope_scaling") if key in layers), None)
    if whole:
        raise ValueError(
            f"scaling must be one mapping of a configuration, got the whole configuration: pass "
            f"scaling=config[{whole!r}]"
        )
    if layers:
        raise ValueError(
            "scaling must be the mapping of one type of layer, got one for each of "
            f"{listed(layers)}: pass scaling=rope_parameters[{layers[0]!r}] for such a layer"
        )
    # Qwen2-VL's files have the type "mrope", which has the frequencies of "default".
    names = [given[key] for key in _TYPE_KEYS if key in given]
    names = ["default" if name == "mrope" else name for name in names]
    if not names and "rope_theta" in given:
        return "default"
    if not names or any(name != names[0] for name in names):
        raise ValueError(f"scaling must have one rope_type, got {dict(given)}")
    if not isinstance(names[0], str) or names[0] not in _TYPES:
        raise ValueError(f"scaling's rope_type must be one of {list(_TYPES)}, got {names[0]!r}")
    return names[0]


def _checked(key: str, value: Any) -> Any:
    name = f"scaling[{key!r}]"
    if key in ("truncate", _INTERLEAVED):
        return flag(name, value)
    if key == _SECTIONS:
        sections = integers(name, value)
        if sections.shape != (3,) or sections.min() < 0:
            raise ValueError(f"{name} must be three numbers of pairs of columns, got {value}")
        return sections
    if key in ("short_factor", "long_factor"):
        return _factors(name, value)
    if key not in _KNOWN:
        return value  # the caller reports it as unexpected
    number = finite_number(name, value, _LEAST.get(key))
    if key == "partial_rotary_factor" and number > 1:
        raise ValueError(f"{name} must be at most 1, got {number}")
    return number


_KNOWN = {*_OF_ANY_TYPE} | {key for keys in _TYPES.values() for part in keys for key in part}


def _factors(name: str, value: Any) -> Frequencies:
    factors = numbers_of_pairs(name, value)
    if not (factors > 0).all():
        raise ValueError(f"{name} must be positive, got {factors.min()}")
    return factors


def geometric(dim: int, base: SupportsFloat) -> Frequencies:
    """Return ``base ** (-2 m / dim)`` for each pair ``m`` of `dim` columns."""
    exponent = 2 * np.arange((dim + 1) // 2) / dim
    frequencies: Frequencies = 1 / np.power(finite_number("base", base), exponent)
    return frequencies


def numbers_of_pairs(name: str, value: ArrayLike) -> Frequencies:
    """Return one finite real number for each pair of columns, or raise TypeError or ValueError."""
    array = as_array(name, value)
    if array.dtype.kind not in "iu" and not is_floating(array.dtype):
        raise TypeError(f"{name} must be real numbers, got {array.dtype}")
    if array.ndim != 1 or array.size == 0:
        raise ValueError(
            f"{name} must be 1-D with one number for each pair of columns, got shape {array.shape}"
        )
    numbers: Frequencies = array.astype(np.float64)
    if not np.isfinite(numbers).all():
        raise ValueError(f"{name} must be finite, got NaN or infinity")
    return numbers


def scaled(
    rope: RopeParameters, rotary_dim: int, base: float, length: int | None
) -> tuple[Frequencies, float]:
    """Return the frequencies of `rotary_dim` columns, and the factor of cosines and sines.

    `length` is the length of the whole sequence, None for a short sequence. `rotary_frequencies`
    documents the formulas.
    """
    numbers = rope.numbers
    plain = geometric(rotary_dim, base)
    if rope.axes is not None and rope.axes.size != plain.size:
        raise ValueError(
            f"scaling[{_SECTIONS!r}] must add up to {plain.size} pairs of columns, got "
            f"{rope.axes.size}"
        )
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
