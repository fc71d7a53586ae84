"""One call of `attend_stream`: checks, computation and results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard import _core
from regard._arguments.arrays import (
    as_array,
    as_stored_arrays,
    check_out,
    compute_type,
    converted,
    result_type,
    shares_memory,
)
from regard._arguments.foreign import with_arrays
from regard._arguments.option_table import OPTIONS, Subject
from regard._arguments.options import BackwardOptions, names_of
from regard._attention.check import check_call
from regard._random.philox import moved_origin
from regard._runtime.progress import reporting
from regard._stream.chunks import Chunk, ChunkLayout, produce, source_of
from regard._stream.masks import StreamMask
from regard._stream.order import MergeOrder, merged
from regard._stream.positions import positions_of
from regard._stream.reader import ReadAhead

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[Any]
    DType = np.dtype[Any]
    State = tuple[Array, Array]

_NAMES = names_of(BackwardOptions)
# The options that do not depend on the position of a chunk. Sinks are merged at the end.
_OF_EACH_CHUNK = tuple(
    name for name in _NAMES if OPTIONS[name].subject is not Subject.VISIBILITY and name != "sinks"
)


def _is_of_any_keys(name: str, value: Any) -> bool:
    """Return whether an option can be checked without keys, whose batch axes are not known."""
    option = OPTIONS[name]
    if "batch" not in option.axes or value is None:
        return True
    is_position = option.subject is Subject.VISIBILITY
    return not is_position and as_array(name, value).ndim < len(option.axes)


class StreamCall:
    """The arguments of a call, checked as far as possible before a chunk arrives."""

    def __init__(
        self, query: ArrayLike, chunks: Iterable[Any], mask: Any, options: Mapping[str, Any]
    ) -> None:
        (stored,) = as_stored_arrays(query=query)
        self._query_type = stored.dtype
        # States are not rounded to 16 bits; only the result is rounded, once.
        self._query = converted(stored, np.float32) if stored.dtype.itemsize == 2 else stored
        options = with_arrays(options)
        given = {name: options[name] for name in _NAMES if name in options}
        known = {name: each for name, each in given.items() if _is_of_any_keys(name, each)}
        # Keys may have a wider type than the query. The score function then has this wider type.
        key_type = getattr(known.get("score_function"), "dtype", self._query.dtype)
        no_keys = np.zeros((0, *self._query.shape[-1:]), key_type)
        check_call(self._query, no_keys, no_keys, None, known)
        self._options = {name: options[name] for name in _OF_EACH_CHUNK if name in options}
        self._sinks = options.get("sinks")
        self._out = options.get("out")
        if self._out is not None and not isinstance(self._out, np.ndarray):
            raise TypeError(f"out must be an array, got {type(self._out).__name__}")

        self._source = source_of(chunks)
        self._positions = positions_of(options, self._query.shape[-2], self._source.kv_len)
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
            end = self._mask.narrowed(self._positions.visible())[1]
            total = end if isinstance(end, int) else None
            with reporting(progress, total, "key", "attend_stream") as report:
                for chunk in reader.chunks():
                    order.add(chunk.number, *self._attend(chunk))
                    if report:
                        report(chunk.stop if total is None else min(chunk.stop, total), total)
                    del chunk  # before the chunk after the next is read
        state = order.finish() or (np.zeros(shape), np.full(shape[:-1], -np.inf))
        return self._rounded(self._with_sinks(state), dtype)

    def _result(self, layout: ChunkLayout) -> tuple[tuple[int, ...], DType]:
        """Return the output's shape and type, after checking everything else."""
        total = self._source.kv_len or 0  # 0 also if it is not known
        key, value = layout.stand_ins(total)
        mask = self._mask.stand_ins(total).argument
        call = check_call(self._query, key, value, mask, self._options_of(0, total))
        shape = (*call.rows, call.sizes.value_dim)
        dtype = result_type((self._query_type, key.dtype, value.dtype))
        if self._out is not None:
            check_out("out", self._out, dtype, shape)
        return shape, dtype

    def _options_of(self, start: int, stop: int) -> dict[str, Any]:
        """Return the options for some keys, with positions relative to the first key."""
        positions = self._positions.chunk((0, self._positions.q_len), (start, stop))
        options = self._options | positions.options()
        if options.get("dropout_p") or options.get("score_function"):
            origin = options.get("dropout_origin", (0, 0, 0))
            options["dropout_origin"] = moved_origin(origin, (0, 0, start))
        return options

    def _attend(self, chunk: Chunk) -> State:
        """Return the state of one chunk, in the precision of its computation."""
        if chunk.is_lent:
            self._forbid_overlap(f"chunk {chunk.number}", chunk.key, chunk.value)
        options = self._options_of(chunk.start, chunk.stop)
        options |= {"return_lse": True, "_wide_lse": True}
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
            sinks = sinks[:, None]  # for one head if arrays have no heads axis
        nothing = np.zeros((*(1,) * sinks.ndim, output.shape[-1]))
        return merged(state, (nothing, sinks), self._options.get("threads"))

    def _rounded(self, state: State, dtype: DType) -> State:
        output, lse = state
        with np.errstate(all="ignore"):  # the kernels do not report overflow either
            result = output.astype(dtype) if self._out is None else self._out
            if self._out is not None:
                np.copyto(result, output, casting="same_kind")
            return result, lse.astype(compute_type(dtype))

    def _forbid_overlap(self, name: str, *arrays: Array) -> None:
        if self._out is not None and any(shares_memory(self._out, each) for each in arrays):
            raise ValueError(
                f"out must not overlap {name}: inputs are not changed; pass another array"
            )
