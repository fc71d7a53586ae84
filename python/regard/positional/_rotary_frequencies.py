"""Compute frequencies, cosines and sines of rotary embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsFloat, SupportsIndex

import numpy as np

from regard._arguments.arrays import floating
from regard._arguments.keywords import refuses_unknown
from regard._arguments.numbers import count, finite_number, integers, real_number
from regard.positional._scaling import (
    BETA,
    DEFAULT_BASE,
    RopeParameters,
    numbers_of_pairs,
    read_rope_parameters,
    scaled,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, DTypeLike, NDArray


@refuses_unknown
def rotary_frequencies(
    rotary_dim: SupportsIndex | None = None,
    *,
    head_dim: SupportsIndex | None = None,
    base: SupportsFloat | None = None,
    scaling: Mapping[str, Any] | None = None,
    length: SupportsIndex | None = None,
) -> tuple[NDArray[np.float64], float]:
    r"""Compute the frequency of each pair of columns in a rotary embedding.

    Without `scaling`, pair ``m`` turns by ``f[m] = base ** (-2 m / rotary_dim)`` from one position
    to the next. The scalings lower the frequencies, so that positions beyond the training length
    look like training positions. With ``s`` for ``factor`` and ``L`` for
    ``original_max_position_embeddings``:

    ``linear`` [1]_
        Every pair turns ``s`` times slower: ``f / s``.
    ``dynamic`` [2]_
        If `length` is greater than ``L``, the base grows to ``base * (s * length / L - (s -
        1)) ** (rotary_dim / (rotary_dim - 2))``; up to ``L`` nothing changes.
    ``yarn`` [3]_
        Pairs that turn often within ``L`` positions keep their frequency, pairs that turn seldom
        are slowed by ``s``, and a ramp joins them: ``f * (1 - ramp) + f / s * ramp``. The pair that
        turns ``r`` times within ``L`` is ``rotary_dim * log(L / (2 pi r)) / (2 log(base))``. The
        ramp rises from 0 at the pair of ``beta_fast`` turns (32), rounded down, to 1 at the pair of
        ``beta_slow`` turns (1), rounded up (neither is rounded with ``truncate=False``). An
        attention factor ``0.1 log(s) + 1`` sharpens the scores. With ``mscale`` and
        ``mscale_all_dim`` (DeepSeek), it is ``(0.1 mscale log(s) + 1) / (0.1 mscale_all_dim log(s)
        + 1)``; ``attention_factor`` replaces it.
    ``longrope`` [4]_
        Each pair has a separate factor: ``f / short_factor``, or ``f / long_factor`` if `length` is
        greater than ``L``. In both cases the attention factor is ``sqrt(1 + log(s) / log(L))``;
        ``attention_factor`` replaces it.
    ``llama3`` [5]_
        Pairs with a wavelength ``2 pi / f`` above ``L / low_freq_factor`` are slowed by ``s``,
        pairs below ``L / high_freq_factor`` keep their frequency, and between them ``f / s`` and
        ``f`` are interpolated linearly in ``L f / (2 pi)``.
    ``proportional`` (Gemma 4)
        The first pairs of the head, a share of ``partial_rotary_factor``, turn by ``f / s`` (``s``
        is 1 by default). The other pairs do not turn: their frequency is 0.

    Two keys of any type do not change the frequencies, but `rotary` and `rotary_cache` follow them:

    ``mrope_section`` (Qwen2-VL [7]_)
        Each token has three positions, in time, down and across, and each pair turns by one of
        them. The numbers of these pairs are in this order, one part after another; with
        ``mrope_interleaved`` (Qwen3-VL), the three alternate until the pairs of the last two are
        used up, and the remaining pairs turn by time. In layers, all pairs turn by the position
        in the text: its three positions are equal.
    ``llama_4_scaling_beta`` (Ministral 3)
        Queries at position ``p``, but not keys, are multiplied by ``1 + beta * log(1 + floor(p /
        L))``, in their cosines and sines; all columns must be rotated.

    Parameters
    ----------
    rotary_dim : int, optional
        Number of columns that are rotated; must be even.
    head_dim : int, optional
        Number of columns of a head, in place of `rotary_dim`: ``int(head_dim *
        partial_rotary_factor)`` columns are rotated, or all if `scaling` has no such factor.
    base : float, optional
        The number whose powers are the frequencies. Default: the ``rope_theta`` of `scaling`, or
        10000.
    scaling : mapping, optional
        ``rope_scaling`` or ``rope_parameters`` from the configuration of a model [6]_:
        ``rope_type`` (or ``type``) is one of the names above or ``default``. The mapping also
        contains the numbers that the type requires, ``rope_theta`` and ``partial_rotary_factor``. A
        key whose value is None counts as missing. Some configurations store
        ``original_max_position_embeddings`` or ``max_position_embeddings`` outside this mapping:
        add these keys to it. If ``original_max_position_embeddings`` is missing, it is
        ``max_position_embeddings``. If the ``factor`` of ``yarn`` or ``longrope`` is missing, it is
        the ratio of ``max_position_embeddings`` to ``original_max_position_embeddings``.
    length : int, optional
        The length of the whole sequence, for ``dynamic`` and ``longrope``. By default, it is at
        most ``L``.

    Returns
    -------
    inverse_frequencies : numpy.ndarray
        Shape ``(rotary_dim / 2,)``, float64.
    attention_factor : float
        The factor of cosines and sines, whose square multiplies the scores. 1 except for ``yarn``
        and ``longrope``.

    Raises
    ------
    TypeError
        If an argument or a number of `scaling` has the wrong type, or neither `rotary_dim` nor
        `head_dim` is given.
    ValueError
        If `rotary_dim` is odd or less than 2, or disagrees with ``partial_rotary_factor``; if the
        type is unknown, keys are missing or unexpected, a number is out of range, or `base`
        disagrees with ``rope_theta``; if `scaling` contains one mapping for each type of layer
        (Gemma 3): pass the mapping of the layer.

    See Also
    --------
    rotary, rotary_cache : accept the same `base` and `scaling`.

    References
    ----------
    .. [1] Chen et al., "Extending Context Window of Large Language Models via Positional
       Interpolation", 2023. https://arxiv.org/abs/2306.15595
    .. [2] NTK-aware scaling with a base that depends on the length; described in [3]_, section 3.3
       and appendix B.1.
    .. [3] Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models", ICLR
       2024, sections 3.2 and 3.4. https://arxiv.org/abs/2309.00071
    .. [4] Ding et al., "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens", ICML 2024,
       https://arxiv.org/abs/2402.13753, as implemented in https://github.com/microsoft/LongRoPE
    .. [5] Meta, ``apply_scaling`` of Llama 3.1.
       https://github.com/meta-llama/llama-models/blob/main/models/llama3/model.py
    .. [6] https://huggingface.co/docs/transformers/internal/rope_utils
    .. [7] Wang et al., "Qwen2-VL: Enhancing Vision-Language Model's Perception of the World at Any
       Resolution", 2024, section 2.1. https://arxiv.org/abs/2409.12191

    Examples
    --------
    >>> import regard
    >>> frequencies, factor = regard.positional.rotary_frequencies(8)
    >>> frequencies, factor
    (array([1.   , 0.1  , 0.01 , 0.001]), 1.0)
    >>> llama = {
    ...     "rope_type": "llama3",
    ...     "rope_theta": 500000.0,
    ...     "factor": 8.0,
    ...     "low_freq_factor": 1.0,
    ...     "high_freq_factor": 4.0,
    ...     "original_max_position_embeddings": 8192,
    ... }
    >>> regard.positional.rotary_frequencies(head_dim=8, scaling=llama)[0].round(8)
    array([1.000000e+00, 3.760603e-02, 5.248500e-04, 6.650000e-06])
    """
    rope = read_rope_parameters(scaling)
    columns = _columns(rotary_dim, head_dim, rope)
    if BETA in rope.numbers and head_dim is not None and columns < count("head_dim", head_dim):
        raise ValueError(
            f"rotary_dim must be head_dim if scaling has {BETA}, which multiplies all columns of "
            f"queries, got {columns} and {head_dim}"
        )
    return scaled(
        rope, columns, _base(base, rope), None if length is None else count("length", length)
    )


def _columns(
    rotary_dim: SupportsIndex | None, head_dim: SupportsIndex | None, rope: RopeParameters
) -> int:
    """Return the number of columns that have a frequency."""
    # With "proportional", all columns of the head have a frequency, which may be 0.
    fraction = 1.0 if rope.rope_type == "proportional" else rope.rotary_fraction
    if head_dim is None:
        if rotary_dim is None:
            raise TypeError("rotary_dim or head_dim must be an int, got neither")
        if fraction != 1:
            raise ValueError(
                f"head_dim must be given in place of rotary_dim {rotary_dim} if scaling has a "
                f"partial_rotary_factor, got {fraction}"
            )
        return even(rotary_dim)
    of_head = int(count("head_dim", head_dim) * fraction)
    if rotary_dim is None:
        whole = ", the head_dim: rotate fewer columns with rotary_dim="
        return even(of_head, whole if fraction == 1 else f", {fraction} of head_dim {head_dim}")
    if fraction != 1 and even(rotary_dim) != of_head:
        raise ValueError(
            f"rotary_dim must be {of_head}, which is scaling's partial_rotary_factor {fraction} of "
            f"head_dim {head_dim}, got {rotary_dim}"
        )
    return even(rotary_dim)


def _base(base: SupportsFloat | None, rope: RopeParameters) -> float:
    if base is None:
        return DEFAULT_BASE if rope.base is None else rope.base
    number = finite_number("base", base)
    if rope.base is not None and rope.base != number:
        raise ValueError(f"base must be scaling's rope_theta {rope.base} or left out, got {number}")
    return number


def even(rotary_dim: SupportsIndex, source: str = "") -> int:
    """Return an even number of columns, or raise TypeError or ValueError.

    `source` names the origin of the number if it was not passed as `rotary_dim`.
    """
    dim = count("rotary_dim", rotary_dim, minimum=2)
    if dim % 2:
        raise ValueError(f"rotary_dim must be even, got {dim}{source}")
    return dim


@refuses_unknown
def rotary_cache(
    positions: ArrayLike,
    rotary_dim: SupportsIndex | None = None,
    *,
    head_dim: SupportsIndex | None = None,
    base: SupportsFloat | None = None,
    inverse_frequencies: ArrayLike | None = None,
    scaling: Mapping[str, Any] | None = None,
    length: SupportsIndex | None = None,
    is_query: bool | None = None,
    dtype: DTypeLike = np.float64,
) -> tuple[NDArray[np.floating[Any]], NDArray[np.floating[Any]]]:
    """Compute the cosines and sines of a rotary embedding once, for many calls of `rotary`.

    Parameters
    ----------
    positions : int or array_like of int
        A number ``n`` means the positions ``0 .. n - 1``; an array contains the positions
        themselves. If `scaling` has ``mrope_section``, an array has the shape ``(3, ...)``, and a
        number means three equal positions, as in text.
    rotary_dim, head_dim, base, scaling : optional
        As in `rotary_frequencies`. Cosines and sines are multiplied by the attention factor.
    inverse_frequencies : array_like of float, shape (rotary_dim / 2,), optional
        The angle by which each pair turns from one position to the next, in place of `head_dim`,
        `base` and `scaling`.
    length : int, optional
        The length of the whole sequence, for the scalings ``dynamic`` and ``longrope``. By default,
        the sequence ends at the largest position.
    is_query : bool, optional
        Whether the cosines and sines are those of queries, which are multiplied by the factor of
        ``llama_4_scaling_beta``. Required if `scaling` has this key.
    dtype : dtype, optional
        A floating-point dtype. The angles are computed in float64 for every dtype.

    Returns
    -------
    cos, sin : numpy.ndarray
        Shape ``(n, rotary_dim / 2)``, or ``(*positions.shape, rotary_dim / 2)``, in `dtype`;
        without the first axis of three positions.

    Raises
    ------
    TypeError
        If a position or `rotary_dim` is not an integer, or a number is not real; if none of
        `rotary_dim`, `head_dim` and `inverse_frequencies` is given; if `is_query` is required.
    ValueError
        If `rotary_dim` is odd or less than 2, or disagrees with `inverse_frequencies`; if `base` is
        not positive and finite; if `head_dim`, `base` or `scaling` is given together with
        `inverse_frequencies`; if `scaling` is wrong.

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> cos, sin = regard.positional.rotary_cache(4096, 64, dtype=np.float32)
    >>> cos.shape
    (4096, 32)
    >>> key = np.ones((2, 8, 10, 64), np.float32)
    >>> regard.positional.rotary(key, np.arange(90, 100), cache=(cos, sin)).shape
    (2, 8, 10, 64)
    """
    rope = read_rope_parameters(scaling)
    rows, axes = integers("positions", positions), rope.axes
    if rows.ndim == 0:
        rows, axes = np.arange(count("positions", rows.item())), None
    if axes is not None and len(rows) != 3:
        raise ValueError(
            "positions must be (3, ..., length) if scaling has mrope_section, got shape "
            f"{rows.shape}"
        )
    factor: Any = 1.0
    if inverse_frequencies is not None:
        refuse_with_cache("inverse_frequencies", base=base, scaling=scaling, head_dim=head_dim)
        frequencies = numbers_of_pairs("inverse_frequencies", inverse_frequencies)
        check_rotary_dim(rotary_dim, frequencies.size, "inverse_frequencies")
    elif rotary_dim is None and head_dim is None:
        raise TypeError(
            "rotary_dim or head_dim must be an int, or inverse_frequencies given, got none of them"
        )
    else:
        if length is None and rope.trained_length is not None:
            length = max(int(rows.max()) + 1, 0) if rows.size else 0
        frequencies, factor = rotary_frequencies(
            rotary_dim, head_dim=head_dim, base=base, scaling=scaling, length=length
        )
    of_query = rope.query_factor(rows, is_query)
    factor = factor if of_query is None else factor * of_query[..., None]
    angle = (rows[..., None] if axes is None else np.moveaxis(rows[axes], 0, -1)) * frequencies
    to = floating("dtype", dtype)
    return (np.cos(angle) * factor).astype(to), (np.sin(angle) * factor).astype(to)


def check_rotary_dim(rotary_dim: SupportsIndex | None, pairs: int, source: str) -> None:
    """Raise ValueError if the number of columns is not twice the number of pairs of `source`."""
    if rotary_dim is not None and even(rotary_dim) != 2 * pairs:
        raise ValueError(
            f"rotary_dim must be twice the pairs of {source}, got {rotary_dim} and {pairs} pairs"
        )


def refuse_with_cache(name: str, *, base: SupportsFloat | None, **others: object) -> None:
    """Raise ValueError if an argument is given that `name` excludes."""
    if base is not None:
        real_number("base", base)
    for other, value in {"base": base, **others}.items():
        if value is not None:
            raise ValueError(f"{name} already determines the angles: leave {other} out")
