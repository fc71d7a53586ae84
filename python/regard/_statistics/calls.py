"""The calls whose weights are described: query, key and lse, and the layers of a recording."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import as_lse, as_stored_arrays
from regard._recording.given import check_equal, recorded_layers
from regard._recording.layer import RecordedLayer, call_of
from regard._runtime.progress import check_progress, report_after, reporting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import ArrayLike, NDArray

    from regard._arguments.options import WeightOptions
    from regard._attention.check import CheckedCall
    from regard._recording.recording import Recording

    Array = NDArray[Any]


def pair_of(query: ArrayLike, key: ArrayLike, axes: int, wanted: str) -> tuple[Array, Array]:
    """Return the arrays of a call, or raise if one has fewer than `axes` axes."""
    query, key = as_stored_arrays(query=query, key=key)
    for name, array in (("query", query), ("key", key)):
        if array.ndim < axes:
            raise ValueError(f"{name} must have {wanted}, got shape {array.shape}")
    return query, key


def compute_lse(
    attention: Callable[..., Any],
    arrays: tuple[Array, Array],
    starts: tuple[ArrayLike, ...],
    mask: Any,
    options: WeightOptions,
    lse: ArrayLike | None,
) -> Array:
    """Return the lse of a call, computed by the forward call with values without columns."""
    if lse is None:
        query, key = arrays
        words = {**options, "return_lse": True, "_wide_lse": True}
        _, computed = attention(query, key, key[..., :0], *starts, mask, words)
        return np.asarray(computed)
    given = as_lse(lse)
    if given.ndim == 0:
        raise ValueError("lse must be an array of numbers, one for each query, got shape ()")
    return given


class LayerResults:
    """The layers of a recording, and how to join their results."""

    def __init__(
        self, recording: Recording | RecordedLayer, options: Mapping[str, Any], **others: Any
    ) -> None:
        self.layers = recorded_layers(recording, options, **others)
        check_equal(self.layers, _sizes_of, "sizes")
        self._is_one = isinstance(recording, RecordedLayer)
        self._options = options

    def compute(
        self,
        function: Callable[[RecordedLayer, tuple[Any, Any, Any, Any], Any], Any],
        name: str,
        progress: Any,
        rows_of: Callable[[CheckedCall], int],
    ) -> list[Any]:
        """Call a function with each layer, its arguments and a function that reports its progress.

        The arguments are query, key, mask, and the layer's options with options of the call such as
        threads.
        """
        check_progress(progress, name)
        calls = [call_of(layer) for layer in self.layers]
        rows = [rows_of(call) for call in calls]
        results = []
        with reporting(progress, sum(rows), "query", name) as report:
            for number, (layer, call) in enumerate(zip(self.layers, calls, strict=True)):
                options = {**call.options, **self._options}
                arguments = call.query, call.key, call.masks.argument, options
                own = report_after(report, sum(rows[:number]), sum(rows))
                results.append(function(layer, arguments, own))
        return results

    def join(self, arrays: list[Array]) -> Array:
        """Return one array with a first axis for the layers, or the array of the single layer."""
        return arrays[0] if self._is_one else np.stack(arrays)


def _sizes_of(layer: RecordedLayer) -> str:
    sizes = call_of(layer).sizes
    batch = f"batch axes {sizes.batch}, " if sizes.batch else ""
    return f"{batch}{sizes.heads} heads, q_len {sizes.q_len}, kv_len {sizes.kv_len}"
