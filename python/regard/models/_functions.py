"""The functions between the attention of a language model and its next token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsFloat, SupportsIndex

import numpy as np
from numpy.random import default_rng

from regard._arguments.arrays import as_native, compute_type, result_type, shown, stored
from regard._arguments.numbers import count, finite_number

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    FloatArray = NDArray[Any]


def silu(x: ArrayLike) -> FloatArray:
    r"""Multiply numbers by their sigmoid (experimental).

    .. math:: y = \frac{x}{1 + e^{-x}}

    from Elfwing, Uchibe and Doya 2018, "Sigmoid-weighted linear units for neural network function
    approximation in reinforcement learning", equation 7.

    Parameters
    ----------
    x : array_like
        Real numbers. float16 and bfloat16 are computed in float32.

    Returns
    -------
    ndarray
        Has the shape and type of `x`. No exponential overflows.

    Examples
    --------
    >>> import regard
    >>> regard.models.silu([-1.0, 0.0, 1.0]).round(4)
    array([-0.2689,  0.    ,  0.7311])
    """
    given = stored("x", x)
    wide = as_native(given, compute_type(given.dtype))
    small = np.exp(-np.abs(wide))  # e^-x or e^x, whichever does not overflow
    with np.errstate(invalid="ignore"):  # -inf * 0, whose limit is 0
        product = np.asarray(wide * np.where(wide < 0, small, 1))
    np.copyto(product, 0, where=wide == -np.inf)
    result: FloatArray = product / (1 + small)
    return result.astype(given.dtype, copy=False)


def swiglu(gate: ArrayLike, up: ArrayLike) -> FloatArray:
    r"""Multiply numbers by the SiLU of others, as feed-forward layers do (experimental).

    .. math:: y = \operatorname{silu}(g) \, u

    from Shazeer 2020, "GLU Variants Improve Transformer", equation 6.

    Parameters
    ----------
    gate, up : array_like
        Real numbers of the same shape: the products of the input with two weights.

    Returns
    -------
    ndarray
        Has the common type of both.

    Raises
    ------
    ValueError
        If the shapes differ.

    Examples
    --------
    >>> import regard
    >>> regard.models.swiglu([1.0, -1.0], [2.0, 2.0]).round(4)
    array([ 1.4621, -0.5379])
    """
    gates, ups = stored("gate", gate), stored("up", up)
    if gates.shape != ups.shape:
        raise ValueError(
            f"gate and up must have the same shape, got shapes {gates.shape} and {ups.shape}"
        )
    dtype = result_type((gates.dtype, ups.dtype))
    wide = compute_type(dtype)
    result: FloatArray = silu(gates.astype(wide)) * ups.astype(wide)
    return result.astype(dtype, copy=False)


def sample(
    logits: ArrayLike,
    temperature: SupportsFloat = 1.0,
    *,
    top_k: SupportsIndex | None = None,
    top_p: SupportsFloat | None = None,
    rng: Any = None,
) -> Any:
    """Draw the next token of each row of logits (experimental).

    Parameters
    ----------
    logits : array_like, shape (..., vocabulary)
        -inf excludes a token.
    temperature : float, default 1.0
        Divides the logits. 0 picks the most likely token, or the first of several.
    top_k : int, optional
        Draw from this many of the most likely tokens; ties with the last of them are kept.
    top_p : float, optional
        Draw from the fewest most likely tokens whose probabilities, after `top_k`, add up to this
        number, at most 1 (Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration").
    rng : None, int or numpy.random.Generator, optional
        As for `numpy.random.default_rng`. One number is drawn for each row, and none if
        `temperature` is 0.

    Returns
    -------
    int, or ndarray of int64, shape (...)
        The number of a token for each row.

    Raises
    ------
    ValueError
        If a row has a NaN, +inf or no finite logit, or a number is out of range.

    Examples
    --------
    >>> import regard
    >>> logits = [[2.0, 1.0, 0.0, -1.0], [0.0, 0.0, 3.0, 0.0]]
    >>> regard.models.sample(logits, temperature=0)
    array([0, 2])
    >>> regard.models.sample(logits[0], 0.8, top_k=3, top_p=0.9, rng=0)
    0
    """
    heat = finite_number("temperature", temperature, minimum=0)
    scores = stored("logits", logits).astype(np.float64)
    if scores.ndim == 0 or scores.shape[-1] == 0:
        raise ValueError(f"logits must be (..., vocabulary), got shape {scores.shape}")
    best = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    if not np.isfinite(best).all():
        worst = best[~np.isfinite(best)][0]
        raise ValueError(f"logits must have a finite maximum in each row, got {worst}")
    most = None if top_k is None else count("top_k", top_k, minimum=1)
    share = None if top_p is None else finite_number("top_p", top_p)
    if share is not None and share > 1:
        raise ValueError(f"top_p must be at most 1, got {share}")
    stream = generator(rng)
    if heat == 0:
        drawn = scores.argmax(axis=-1)
    else:
        with np.errstate(over="ignore"):
            chances = np.exp((scores - best) / heat)
        rows = chances.reshape(-1, chances.shape[-1])
        numbers = stream.random(len(rows))
        picked = [_pick(row, most, share, n) for row, n in zip(rows, numbers, strict=True)]
        drawn = np.array(picked, np.int64).reshape(scores.shape[:-1])
    return int(drawn) if drawn.ndim == 0 else drawn


def generator(rng: Any) -> np.random.Generator:
    """Return a generator of random numbers, or raise TypeError or ValueError."""
    try:
        return default_rng(rng)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"rng must be None, an int of at least 0 or a numpy.random.Generator, got {shown(rng)}"
        ) from None


def _pick(chances: FloatArray, most: int | None, share: float | None, number: float) -> int:
    """Return the token at `number`, from 0 to 1, of the remaining probabilities."""
    tokens = np.arange(len(chances))
    if most is not None and most < len(chances):
        tokens = np.flatnonzero(chances >= np.partition(chances, -most)[-most])
    if share is not None:
        tokens = tokens[np.argsort(-chances[tokens], kind="stable")]
        below = np.cumsum(chances[tokens])
        # A token stays if the tokens before it do not reach the share.
        tokens = tokens[: 1 + np.count_nonzero(below[:-1] < share * below[-1])]
    below = np.cumsum(chances[tokens])
    return int(tokens[np.searchsorted(below, number * below[-1], side="right")])
