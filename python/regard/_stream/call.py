"""One call of `attend_stream`: what is checked, computed and returned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard import _core
from regard._arguments.arrays import (
    as_stored_arrays,
    compute_type,
    repeats_an_element,
    result_type,
    shares_memory,
)
from regard._runtime.progress import reporting
from regard._stream.chunks import Chunk, Layout, produce, source_of
from regard._stream.masks import StreamMask
from regard._stream.order import MergeOrder, merged
from regard._stream.positions import Positions
from regard._stream.reader import ReadAhead

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[Any]
    DType = np.dtype[Any]
    State = tuple[Array, Array]

# The options that mean the same whatever the keys are, so that they are checked before any comes.
_OF_ANY_KEYS = (
    *("is_causal", "window", "scale", "softcap", "sinks"),
    *("dropout_p", "dropout_seed", "dropout_origin", "threads"),
)


class StreamCall:
    """The arguments of a call, as far as they can be checked before a chunk comes."""

    def __init__(
        self, query: ArrayLike, chunks: Iterable[Any], mask: Any, options: Mapping[str, Any]
    ) -> None:
        (stored,) = as_stored_arrays(query=query)
        self._query_type = stored.dtype
        # So that states are not rounded to 16 bits: the result is, once.
        self._query = stored.astype(np.float32) if stored.dtype.itemsize == 2 else stored
        self._options = {name: options[name] for name in _OF_ANY_KEYS if name in options}
        no_keys = np.zeros((0, *self._query.shape[-1:]), self._query.dtype)
        _core.attention(self._query, no_keys, no_keys, None, self._options)  # raises what is wrong
        self._sinks = self._options.pop("sinks", None)
        self._options["alibi_slopes"] = options.get("alibi_slopes")
        self._out = options.get("out")
        if self._out is not None and not isinstance(self._out, np.ndarray):
            raise TypeError(f"out must be an array, got {type(self._out).__name__}")

        self._source = source_of(chunks)
        self._positions = Positions(options, self._query.shape[-2], self._source.kv_len)
        self._mask = StreamMask(mask, self._source.kv_len)
        self._forbid_overlap("query", stored)
        self._forbid_overlap("mask", *self._mask.arrays())

    def run(self, progress: Any) -> State:
        """Compute output and lse."""
        order = MergeOrder(self._options.get("threads"))
        with ReadAhead(
            lambda should_stop: produce(
                self._source.chunks, self._positions, self._mask, should_stop
            ),
            may_refill=self._source.may_refill,
        ) as reader:
            shape, dtype = self._result(reader.layout())
            end = self._positions.visible()[1]
            total = end if isinstance(end, int) else None
            with reporting(progress, total, "key", "attend_stream") as report:
                for chunk in reader.chunks():
                    order.add(chunk.number, *self._attend(chunk))
                    if report:
                        report(chunk.stop if total is None else min(chunk.stop, total), total)
                    del chunk  # before the next but one is read
        state = order.finish() or (np.zeros(shape), np.full(shape[:-1], -np.inf))
        return self._rounded(self._with_sinks(state), dtype)

    def _result(self, layout: Layout) -> tuple[tuple[int, ...], DType]:
        """Return the output's shape and type, after all else has been checked."""
        key, value = layout.without_keys()
        options = self._options | self._positions.options_of(0, 0) | {"return_lse": True}
        mask = self._mask.without_keys()
        output, _ = _core.attention(self._query, key, value, mask, options)
        dtype = result_type((self._query_type, key.dtype, value.dtype))
        out = self._out
        if out is not None and out.dtype != dtype:
            raise TypeError(f"out must be an array of {dtype}, got an array of {out.dtype}")
        if out is not None and out.shape != output.shape:
            raise ValueError(f"out must have shape {output.shape}, got {out.shape}")
        if out is not None and not out.flags.writeable:
            raise ValueError("out must be writeable, got a read-only array")
        if out is not None and repeats_an_element(out.shape, out.strides, out.itemsize):
            raise ValueError(
                f"out must have a separate element for every result, got strides {out.strides}"
            )
        return output.shape, dtype

    def _attend(self, chunk: Chunk) -> State:
        """Return the state of one chunk, in the precision that it is computed in."""
        if chunk.is_lent:
            self._forbid_overlap(f"chunk {chunk.number}", chunk.key, chunk.value)
        positions = self._positions.options_of(chunk.start, chunk.stop - chunk.start)
        options = self._options | positions | {"return_lse": True}
        try:
            state: State = _core.attention(self._query, chunk.key, chunk.value, chunk.mask, options)
        except (TypeError, ValueError) as error:
            raise type(error)(f"chunk {chunk.number}: {error}") from None
        return state

    def _with_sinks(self, state: State) -> State:
        if self._sinks is None:
            return state
        output, lse = state
        sinks = np.asarray(self._sinks).astype(np.float64).reshape(-1)
        if lse.ndim > 1:
            sinks = sinks[:, None]  # of one head where arrays have no axis of heads
        nothing = np.zeros((*(1,) * sinks.ndim, output.shape[-1]))
        return merged(state, (nothing, sinks), self._options.get("threads"))

    def _rounded(self, state: State, dtype: DType) -> State:
        output, lse = state
        with np.errstate(all="ignore"):  # the kernels say nothing of overflow either
            result = output.astype(dtype) if self._out is None else self._out
            if self._out is not None:
                np.copyto(result, output, casting="same_kind")
            return result, lse.astype(compute_type(dtype))

    def _forbid_overlap(self, name: str, *arrays: Array) -> None:
        if self._out is not None and any(shares_memory(self._out, each) for each in arrays):
            raise ValueError(
                f"out must not overlap {name}: inputs are not changed; pass another array"
            )
