"""Read the rotary parameters of a model from its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from regard._arguments.numbers import finite_number, flag, listed, mapping
from regard.positional._frequencies import numbers_of_pairs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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
_OF_ANY_TYPE = ("rope_theta", "partial_rotary_factor", _LONGEST, _TRAINED)
# A factor below 1 would increase frequencies; DeepSeek writes 0 for an unused mscale.
_LEAST = {"factor": 1.0, "mscale": 0.0, "mscale_all_dim": 0.0}


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
    names = [given[key] for key in _TYPE_KEYS if key in given]
    if not names and "rope_theta" in given:
        return "default"
    if not names or any(name != names[0] for name in names):
        raise ValueError(f"scaling must have one rope_type, got {dict(given)}")
    if not isinstance(names[0], str) or names[0] not in _TYPES:
        raise ValueError(f"scaling's rope_type must be one of {list(_TYPES)}, got {names[0]!r}")
    return names[0]


def _checked(key: str, value: Any) -> Any:
    name = f"scaling[{key!r}]"
    if key == "truncate":
        return flag(name, value)
    if key in ("short_factor", "long_factor"):
        return _factors(name, value)
    if key not in _KNOWN:
        return value  # the caller reports it as unexpected
    number = finite_number(name, value, _LEAST.get(key))
    if key == "partial_rotary_factor" and number > 1:
        raise ValueError(f"{name} must be at most 1, got {number}")
    return number


_KNOWN = {*_OF_ANY_TYPE} | {key for keys in _TYPES.values() for part in keys for key in part}


def _factors(name: str, value: Any) -> NDArray[np.float64]:
    factors = numbers_of_pairs(name, value)
    if not (factors > 0).all():
        raise ValueError(f"{name} must be positive, got {factors.min()}")
    return factors
