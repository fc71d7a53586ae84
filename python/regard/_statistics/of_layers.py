"""Compute something for each layer of a recording, and join the results."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._recording.given import check_equal, recorded_layers
from regard._recording.layer import RecordedLayer, call_of
from regard._runtime.progress import check_progress, reporting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from regard._attention.check import CheckedCall
    from regard._recording.recording import Recording

    Array = NDArray[Any]


class LayerResults:
    """The layers of a recording, and how to join their results."""

    def __init__(
        self, recording: Recording | RecordedLayer, options: Mapping[str, Any], **others: Any
    ) -> None:
        self.layers = recorded_layers(recording, options, **others)
        check_equal(self.layers, _sizes_of, "sizes")
        self._is_one = isinstance(recording, RecordedLayer)
        self._options = options

    def key_tokens(self) -> Array | None:
        """Return the key tokens of the first layer if all layers have key tokens."""
        tokens = [layer.key_tokens for layer in self.layers]
        return None if any(each is None for each in tokens) else tokens[0]

    def options_of(self, call: CheckedCall) -> dict[str, Any]:
        """Return the options of a layer, and options of the call such as threads."""
        return {**call.options, **self._options}

    def compute(
        self,
        function: Callable[[RecordedLayer, CheckedCall, Any], Any],
        name: str,
        progress: Any,
        rows_of: Callable[[CheckedCall], int],
    ) -> list[Any]:
        """Call a function with each layer, its call and a function that reports its progress."""
        check_progress(progress, name)
        calls = [call_of(layer) for layer in self.layers]
        rows = [rows_of(call) for call in calls]
        results = []
        with _adding(progress, sum(rows), name) as report_after:
            for number, (layer, call) in enumerate(zip(self.layers, calls, strict=True)):
                results.append(function(layer, call, report_after(sum(rows[:number]))))
        return results

    def join(self, arrays: list[Array]) -> Array:
        """Return one array with a first axis for the layers, or the array of the single layer."""
        return arrays[0] if self._is_one else np.stack(arrays)


@contextmanager
def _adding(progress: Any, total: int, name: str) -> Iterator[Callable[[int], Any]]:
    """Yield a function that returns the report function after a number of completed queries."""
    with reporting(progress, total, "query", name) as report:
        if report is None:
            yield lambda before: None
        else:
            yield lambda before: lambda done, _: report(before + done, total)


def _sizes_of(layer: RecordedLayer) -> str:
    sizes = call_of(layer).sizes
    batch = f"batch axes {sizes.batch}, " if sizes.batch else ""
    return f"{batch}{sizes.heads} heads, q_len {sizes.q_len}, kv_len {sizes.kv_len}"
