"""What comes into a layer that projects: queries, keys and values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard.layers._linear import vectors
from regard.layers._projections import INPUTS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike

    from regard.layers._linear import FloatArray


def inputs_of(
    query: ArrayLike,
    key: ArrayLike | None,
    value: ArrayLike | None,
    sizes: tuple[int, int, int],
    dtype: np.dtype[Any],
) -> list[FloatArray]:
    """Return the three inputs; the same array where they are the same."""
    if key is None and value is not None:
        raise ValueError("value needs key, got value alone")
    key = query if key is None else key
    value = key if value is None else value
    sources = [vectors("query", query, sizes[0], dtype)]
    for i, (x, before) in enumerate(((key, query), (value, key)), start=1):
        is_same = x is before and sizes[i] == sizes[i - 1]
        sources.append(sources[-1] if is_same else vectors(INPUTS[i], x, sizes[i], dtype))
    return sources
