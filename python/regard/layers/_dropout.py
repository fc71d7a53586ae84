"""Dropout of attention weights in layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsFloat, SupportsIndex

from regard._arguments.numbers import count, real_number

if TYPE_CHECKING:
    from regard.layers._training import Trainable

_MOST_SEED = 2**64 - 1


def dropout_probability(dropout: SupportsFloat) -> float:
    """Return a probability less than 1, or raise TypeError or ValueError."""
    probability = real_number("dropout", dropout)
    if not 0 <= probability < 1:
        raise ValueError(f"dropout must be at least 0 and less than 1, got {probability}")
    return probability


def dropout_options(
    layer: Trainable, probability: float, seed: SupportsIndex | None
) -> dict[str, Any]:
    """Return the dropout options of an attention call, or no options if it drops nothing."""
    number = None if seed is None else count("dropout_seed", seed, maximum=_MOST_SEED)
    if not layer.training or probability == 0:
        return {}
    if number is None:
        raise TypeError(
            f"dropout_seed must be an int in train() mode for a layer with dropout={probability}, "
            "got None: the seed determines which weights are dropped, so pass another one in each "
            "call"
        )
    return {"dropout_p": probability, "dropout_seed": number}
