"""Determine which weights dropout keeps, by random words that depend on a weight's position."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Array = NDArray[Any]
    Words = NDArray[np.uint64]

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85
_WORD = 0xFFFFFFFF
_BITS = np.uint64(32)
_ROUNDS = 10
# Words depend on positions modulo 2**32 and on positions // 4 modulo 2**32.
POSITION_PERIOD = 2**34


def moved_origin(origin: tuple[int, int, int], part: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return `dropout_origin` for a part of a call that begins at an entry, a head and a key."""
    entry, head, position = (
        (int(number) + step) % POSITION_PERIOD for number, step in zip(origin, part, strict=True)
    )
    return entry, head, position


def philox(counter: tuple[Words | np.uint64, ...], seed: int) -> tuple[Words, ...]:
    """Return the four 32-bit words of Philox4x32-10 [1]_ for each counter of four 32-bit words.

    The words of the counter broadcast against each other, and each returned word has the broadcast
    shape. All words are less than 2**32.

    References
    ----------
    .. [1] Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011.
    """
    word = np.uint64(_WORD)
    first, second, third, fourth = counter
    key = seed & _WORD, seed >> 32
    for _ in range(_ROUNDS):
        low, high = _MULTIPLIERS[0] * first, _MULTIPLIERS[1] * third
        first, second = (high >> _BITS) ^ second ^ np.uint64(key[0]), high & word
        third, fourth = (low >> _BITS) ^ fourth ^ np.uint64(key[1]), low & word
        key = key[0] + _WEYL[0] & _WORD, key[1] + _WEYL[1] & _WORD
    return np.broadcast_arrays(first, second, third, fourth)


class Dropout(NamedTuple):
    """The options of dropout."""

    p: float
    seed: int
    entry: int
    """The origin: the number of the first batch entry."""
    head: int
    """The number of the first query head."""
    position: int
    """The position of the first key. The positions of queries are shifted by the same number."""


def dropout_of(options: Mapping[str, Any]) -> Dropout | None:
    """Return the dropout options among checked options, or None if nothing is dropped."""
    p = float(options.get("dropout_p", 0))
    if p == 0:
        return None
    origin = map(operator.index, options.get("dropout_origin", (0, 0, 0)))
    return Dropout(p, operator.index(options["dropout_seed"]), *origin)


def dropout_factors(
    dropout: Dropout,
    *,
    positions: range,
    keys: slice,
    dtype: np.dtype[Any],
) -> Array:
    """Return the dropout factors of weights: 0, or 1 / (1 - p) if a weight is kept.

    Parameters
    ----------
    dropout
        The probability, the seed, the numbers of the batch entry and of the query head, and the
        offset of the positions.
    positions : range
        The positions of the queries, consecutive numbers of any size.
    keys : slice
        The keys, from start to stop.
    dtype
        The type of the result.

    Returns
    -------
    ndarray, shape (queries, keys)
    """
    begin, end = keys.start + dropout.position, keys.stop + dropout.position
    first = begin // 4
    fours = np.arange(first, -(-end // 4), dtype=np.uint64)
    start = np.uint64(positions.start + dropout.position & _WORD)
    rows = (start + np.arange(len(positions), dtype=np.uint64)) & np.uint64(_WORD)
    head_number = np.uint64(dropout.head & _WORD)
    entry_number = np.uint64(dropout.entry & _WORD)
    counter = fours & np.uint64(_WORD), rows[:, None], head_number, entry_number
    limit = math.ceil(math.ldexp(dropout.p, 32))
    kept = np.empty((len(rows), len(fours), 4), bool)
    for i, words in enumerate(philox(counter, dropout.seed)):
        np.greater_equal(words, np.uint64(limit), out=kept[..., i])
    within = slice(begin - 4 * first, end - 4 * first)
    factors: Array = kept.reshape(len(rows), -1)[:, within].astype(dtype)
    factors *= 1 / (1 - dropout.p)
    return factors
