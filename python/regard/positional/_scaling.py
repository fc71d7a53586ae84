"""Frequencies of models that read more positions than they were first trained on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsFloat, SupportsIndex

import numpy as np

from regard._arguments import count, flag, real_number
from regard._translations import translates_keywords
from regard.positional._frequencies import DEFAULT_BASE, even, geometric

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Frequencies = NDArray[np.float64]


class _Plain(NamedTuple):
    """What a scaling starts from."""

    rotary_dim: int
    base: float
    length: int | None

    def frequencies(self) -> Frequencies:
        return geometric(self.rotary_dim, self.base)


class _Kind(NamedTuple):
    needed: tuple[str, ...]
    optional: tuple[str, ...]
    compute: Callable[[_Plain, Mapping[str, Any]], tuple[Frequencies, float]]


@translates_keywords
def rotary_frequencies(
    rotary_dim: SupportsIndex,
    *,
    base: SupportsFloat = DEFAULT_BASE,
    scaling: Mapping[str, Any] | None = None,
    length: SupportsIndex | None = None,
) -> tuple[Frequencies, float]:
    r"""Work out how fast each pair of columns turns in a rotary embedding.

    Without `scaling`, pair ``m`` turns by ``f[m] = base ** (-2 m / rotary_dim)`` from one position
    to the next. The scalings slow pairs down, so that positions beyond those of the training look
    like positions within it. With ``s`` for ``factor`` and ``L`` for
    ``original_max_position_embeddings``:

    ``linear`` [1]_
        Every pair turns ``s`` times slower: ``f / s``.
    ``dynamic`` [2]_
        For a sequence of `length` beyond ``L`` the base grows to ``base * (s * length / L - (s -
        1)) ** (rotary_dim / (rotary_dim - 2))``; up to ``L`` nothing changes.
    ``yarn`` [3]_
        Pairs that turn often within ``L`` positions stay, those that turn seldom are slowed by
        ``s``, and a ramp joins them: ``f * (1 - ramp) + f / s * ramp``. The pair that turns ``r``
        times within ``L`` is ``rotary_dim * log(L / (2 pi r)) / (2 log(base))``; the ramp goes from
        0 at that of ``beta_fast`` (32), rounded down, to 1 at that of ``beta_slow`` (1), rounded up
        (unrounded with ``truncate=False``). Scores become sharper through an attention factor
        ``0.1 log(s) + 1``. With ``mscale`` and ``mscale_all_dim`` (DeepSeek) it is
        ``(0.1 mscale log(s) + 1) / (0.1 mscale_all_dim log(s) + 1)``; ``attention_factor`` gives
        the number itself.
    ``llama3`` [4]_
        Pairs with a wavelength ``2 pi / f`` above ``L / low_freq_factor`` are slowed by ``s``,
        those below ``L / high_freq_factor`` stay, and between them ``f / s`` and ``f`` are mixed
        linearly in ``L f / (2 pi)``.

    Parameters
    ----------
    rotary_dim : int
        How many columns are rotated: even.
    base : float, optional
        The number whose powers the pairs turn by: ``rope_theta`` in the configuration of a model.
    scaling : mapping, optional
        As ``rope_scaling`` stands in the configuration of a model [5]_: ``rope_type`` (or
        ``type``) is one of the names above or ``default``, and beside it stand the numbers which
        that type needs. Optional ones that are None count as left out.
    length : int, optional
        The length of the whole sequence, for ``dynamic``; without it, a short one.

    Returns
    -------
    inverse_frequencies : numpy.ndarray
        Shape ``(rotary_dim / 2,)``, float64.
    attention_factor : float
        What cosines and sines are multiplied by: scores change by its square. 1 except for
        ``yarn``.

    Raises
    ------
    TypeError
        If an argument or a number of `scaling` has the wrong type.
    ValueError
        If `rotary_dim` is odd or less than 2, the type is unknown, keys are missing or unexpected,
        or a number is out of range.

    See Also
    --------
    rotary, rotary_cache : take the same `base` and `scaling`.

    References
    ----------
    .. [1] Chen et al., "Extending Context Window of Large Language Models via Positional
       Interpolation", 2023. https://arxiv.org/abs/2306.15595
    .. [2] NTK-aware scaling with a base that follows the length; described in [3]_, section 3.3 and
       appendix B.1.
    .. [3] Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models", ICLR
       2024, sections 3.2 and 3.4. https://arxiv.org/abs/2309.00071
    .. [4] Meta, ``apply_scaling`` of Llama 3.1.
       https://github.com/meta-llama/llama-models/blob/main/models/llama3/model.py
    .. [5] https://huggingface.co/docs/transformers/internal/rope_utils

    Examples
    --------
    >>> import regard
    >>> frequencies, factor = regard.positional.rotary_frequencies(8)
    >>> frequencies, factor
    (array([1.   , 0.1  , 0.01 , 0.001]), 1.0)
    >>> llama = {
    ...     "rope_type": "llama3",
    ...     "factor": 8.0,
    ...     "low_freq_factor": 1.0,
    ...     "high_freq_factor": 4.0,
    ...     "original_max_position_embeddings": 1024,
    ... }
    >>> regard.positional.rotary_frequencies(8, scaling=llama)[0].round(6)
    array([1.000e+00, 1.000e-01, 3.087e-03, 1.250e-04])
    """
    plain = _Plain(
        even(rotary_dim),
        real_number("base", base),
        None if length is None else count("length", length),
    )
    if scaling is None:
        return plain.frequencies(), 1.0
    kind, numbers = _checked(scaling)
    return kind.compute(plain, numbers)


def length_matters(scaling: Mapping[str, Any] | None) -> bool:
    """Say whether the frequencies depend on the length of the sequence."""
    return scaling is not None and _name(scaling) == "dynamic"


def _linear(plain: _Plain, numbers: Mapping[str, Any]) -> tuple[Frequencies, float]:
    return plain.frequencies() / numbers["factor"], 1.0


def _dynamic(plain: _Plain, numbers: Mapping[str, Any]) -> tuple[Frequencies, float]:
    factor, trained = numbers["factor"], numbers["original_max_position_embeddings"]
    if plain.length is None or plain.length <= trained:
        return plain.frequencies(), 1.0
    if plain.rotary_dim == 2:
        raise ValueError("rotary_dim must be at least 4 for the scaling 'dynamic', got 2")
    growth = factor * plain.length / trained - (factor - 1)
    base = plain.base * growth ** (plain.rotary_dim / (plain.rotary_dim - 2))
    return plain._replace(base=base).frequencies(), 1.0


def _yarn(plain: _Plain, numbers: Mapping[str, Any]) -> tuple[Frequencies, float]:
    factor, trained = numbers["factor"], numbers["original_max_position_embeddings"]
    if plain.base <= 1:
        raise ValueError(f"base must be above 1 for the scaling 'yarn', got {plain.base}")

    def pair_of(turns: float) -> float:
        wavelength = trained / (2 * math.pi * turns)
        return plain.rotary_dim * math.log(wavelength) / (2 * math.log(plain.base))

    fast, slow = numbers.get("beta_fast", 32.0), numbers.get("beta_slow", 1.0)
    if fast <= slow:
        raise ValueError(f"scaling['beta_fast'] must be above beta_slow, got {fast} and {slow}")
    first, last = pair_of(fast), pair_of(slow)
    if numbers.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    # The upper bound is in columns, not in pairs; models were trained with it.
    first, last = max(first, 0), min(last, plain.rotary_dim - 1)
    if first == last:
        last += 0.001
    ramp = np.clip((np.arange(plain.rotary_dim // 2) - first) / (last - first), 0, 1)
    frequencies = plain.frequencies()
    return frequencies * (1 - ramp) + frequencies / factor * ramp, _attention_factor(numbers)


def _attention_factor(numbers: Mapping[str, Any]) -> float:
    if "attention_factor" in numbers:
        return float(numbers["attention_factor"])

    def temperature(mscale: float) -> float:
        return 0.1 * mscale * math.log(numbers["factor"]) + 1

    mscale, of_all = numbers.get("mscale", 0.0), numbers.get("mscale_all_dim", 0.0)
    return temperature(mscale) / temperature(of_all) if mscale and of_all else temperature(1)


def _llama3(plain: _Plain, numbers: Mapping[str, Any]) -> tuple[Frequencies, float]:
    low, high = numbers["low_freq_factor"], numbers["high_freq_factor"]
    if high <= low:
        raise ValueError(
            f"scaling['high_freq_factor'] must be above low_freq_factor, got {high} and {low}"
        )
    frequencies = plain.frequencies()
    turns = numbers["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return frequencies * kept + frequencies / numbers["factor"] * (1 - kept), 1.0


_TRAINED = "original_max_position_embeddings"
_KINDS = {
    "default": _Kind((), (), lambda plain, numbers: (plain.frequencies(), 1.0)),
    "linear": _Kind(("factor",), (), _linear),
    "dynamic": _Kind(("factor", _TRAINED), (), _dynamic),
    "yarn": _Kind(
        ("factor", _TRAINED),
        ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
        _yarn,
    ),
    "llama3": _Kind(("factor", "low_freq_factor", "high_freq_factor", _TRAINED), (), _llama3),
}
# Below 1 a factor would speed pairs up, and these two may be 0, which is "not given" to DeepSeek.
_LEAST = {"factor": 1.0, "mscale": 0.0, "mscale_all_dim": 0.0}


def _name(scaling: Mapping[str, Any]) -> str:
    if not isinstance(scaling, Mapping):
        raise TypeError(f"scaling must be a mapping, got {type(scaling).__name__}")
    names = [scaling[key] for key in ("rope_type", "type") if key in scaling]
    if not names or any(name != names[0] for name in names):
        raise ValueError(f"scaling must have one rope_type, got {dict(scaling)}")
    if not isinstance(names[0], str) or names[0] not in _KINDS:
        raise ValueError(f"scaling's rope_type must be one of {list(_KINDS)}, got {names[0]!r}")
    return names[0]


def _checked(scaling: Mapping[str, Any]) -> tuple[_Kind, dict[str, Any]]:
    name = _name(scaling)
    kind = _KINDS[name]
    given = {
        key: value
        for key, value in scaling.items()
        if key not in ("rope_type", "type") and not (key in kind.optional and value is None)
    }
    missing = [key for key in kind.needed if key not in given]
    unexpected = [str(key) for key in given if key not in kind.needed + kind.optional]
    if missing or unexpected:
        raise ValueError(
            f"scaling of type {name!r} must have the keys {_listed(kind.needed)} (optional: "
            f"{_listed(kind.optional)}), got missing: {_listed(missing)}, unexpected: "
            f"{_listed(unexpected)}" + _ELSEWHERE * bool({*unexpected} & {*_ARGUMENTS})
        )
    return kind, {key: _number(key, value) for key, value in given.items()}


_ARGUMENTS = ("rope_theta", "partial_rotary_factor")
_ELSEWHERE = "; rope_theta is the argument base, and partial_rotary_factor sets rotary_dim"


def _number(key: str, value: Any) -> float | bool:
    if key == "truncate":
        return flag("scaling['truncate']", value)
    number = real_number(f"scaling[{key!r}]", value)
    if not (math.isfinite(number) and number >= _LEAST.get(key, 0.0)) or (
        number == 0 and key not in _LEAST
    ):
        wanted = f"at least {_LEAST[key]}" if key in _LEAST else "positive"
        raise ValueError(f"scaling[{key!r}] must be {wanted} and finite, got {number}")
    return number


def _listed(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join(names) or "none"
