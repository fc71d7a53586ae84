"""Check where packed sequences start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.numbers import integers

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def token_counts(
    starts: ArrayLike, name: str, tokens: int, sequences: int | None = None
) -> NDArray[np.int64]:
    """Return the number of tokens of each packed sequence, or raise TypeError or ValueError.

    `name` is the array with the `tokens`. There are `sequences`, or any number of them.
    """
    wanted = "an integer array of shape " + (
        "(sequences + 1,)" if sequences is None else f"({sequences + 1},), batch + 1"
    )
    numbers = integers("starts", starts, wanted)
    fits = numbers.ndim == 1 and numbers.size > 0
    if not fits or (sequences is not None and len(numbers) != sequences + 1):
        raise ValueError(f"starts must be {wanted}, got shape {numbers.shape}")
    if numbers[0] != 0:
        raise ValueError(f"starts must begin with 0, got {numbers[0]}")
    if numbers[-1] != tokens:
        raise ValueError(
            f"starts must end with the number of tokens in {name}, {tokens}, got {numbers[-1]}"
        )
    numbers = numbers.astype(np.int64)
    counts: NDArray[Any] = numbers[1:] - numbers[:-1]
    if counts.min(initial=0) < 0:
        at = int(np.argmax(counts < 0)) + 1
        raise ValueError(
            f"starts must not decrease, got {numbers[at]} after {numbers[at - 1]} at index {at}"
        )
    return counts
