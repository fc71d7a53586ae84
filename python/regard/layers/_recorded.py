"""Recordings of layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._recording.layer import RecordedLayer
from regard._recording.recording import Recording
from regard.layers._held import held_mask, held_options

if TYPE_CHECKING:
    from regard.layers._linear import FloatArray


def recording_of(
    layer: Any, query: FloatArray, key: FloatArray, mask: Any, options: dict[str, Any]
) -> Recording:
    """Return the recording of one layer, with copies of the caller's and the layer's arrays."""
    name = type(layer).__name__
    RecordedLayer(name, query, key, mask, **options)  # copies are made of checked arguments
    arrays = np.ascontiguousarray(query), np.ascontiguousarray(key)
    return Recording([RecordedLayer(name, *arrays, held_mask(mask), **held_options(options))])
