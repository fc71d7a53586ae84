"""One call of `attend_stream`: checks, reading ahead, computation and results."""

from __future__ import annotations

import contextvars
import os
import sys
import threading
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from regard import _core
from regard._arguments.arrays import (
    as_array,
    as_stored_arrays,
    check_out,
    compute_type,
    converted,
    refuse_overlap,
    result_type,
)
from regard._arguments.foreign import with_arrays
from regard._arguments.numbers import integers, offsets
from regard._arguments.option_table import OPTIONS, Subject
from regard._arguments.options import BackwardOptions, names_of
from regard._arguments.positions import Positions
from regard._attention.check import check_call, moved_origin
from regard._attention.merge import merge_attention_states
from regard._runtime.progress import reporting
from regard._stream.chunks import Chunk, UnreadChunk, produce, source_of
from regard._stream.masks import StreamMask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from numpy.typing import ArrayLike, NDArray

    from regard._arguments.arrays import Array, DType

    State = tuple[Array, Array]

_NAMES = names_of(BackwardOptions)
# The options that do not depend on the position of a chunk. Sinks are merged at the end.
_OF_EACH_CHUNK = tuple(
    name for name in _NAMES if OPTIONS[name].subject is not Subject.VISIBILITY and name != "sinks"
)
# Each merge rounds, and the error of a chain of n merges is about sqrt(n) roundings. With groups of
# 16, a state of 65536 chunks results from 64 merges, and at most 4 groups are open.
_GROUP = 16
# Seconds after which a call that waits for a chunk notices an interrupt.
_SIGNAL_INTERVAL = 0.2


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

        self._chunks, self._total = source_of(chunks)
        self._positions = _positions(options, self._query.shape[-2], self._total)
        self._mask = StreamMask(mask, self._total)
        self._check_overlap("query", stored)
        for array in self._mask.arrays():
            self._check_overlap("mask", array)

    def run(self, progress: Any) -> State:
        """Compute output and lse."""
        order = _MergeOrder(partial(merge_attention_states, threads=self._options.get("threads")))
        produced = partial(produce, self._chunks, self._positions, self._mask, self._check_overlap)
        with _read_ahead(produced, self._chunks) as chunks:
            shape, dtype = self._result(next(chunks))
            end = self._mask.narrowed(self._positions.visible())[1]
            total = end if isinstance(end, int) else None
            with reporting(progress, total, "key", "attend_stream") as report:
                for chunk in chunks:
                    order.add(chunk.number, self._attend(chunk))
                    if report:
                        report(chunk.stop if total is None else min(chunk.stop, total), total)
                    del chunk  # before the chunk after the next is read
        state = order.finish() or (np.zeros(shape), np.full(shape[:-1], -np.inf))
        return self._rounded(self._with_sinks(state, order.merge), dtype)

    def _result(self, first: UnreadChunk) -> tuple[tuple[int, ...], DType]:
        """Return the output's shape and type, after checking everything else."""
        total = self._total or 0  # 0 also if it is not known
        key, value = first.stand_ins(total)
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
        """Return the state of one chunk, in float64."""
        options = self._options_of(chunk.start, chunk.stop)
        options |= {"return_lse": True, "_wide_lse": True}
        try:
            state: State = _core.attention(self._query, chunk.key, chunk.value, chunk.mask, options)
        except (TypeError, ValueError) as error:
            raise type(error)(f"chunk {chunk.number}: {error}") from None
        return state[0].astype(np.float64), state[1].astype(np.float64)

    def _with_sinks(self, state: State, merge: Callable[..., State]) -> State:
        if self._sinks is None:
            return state
        output, lse = state
        sinks = np.asarray(self._sinks).astype(np.float64).reshape(-1)
        if lse.ndim > 1:
            sinks = sinks[:, None]  # for one head if arrays have no heads axis
        nothing = np.zeros((*(1,) * sinks.ndim, output.shape[-1]))
        return merge([output, nothing], [lse, sinks])

    def _rounded(self, state: State, dtype: DType) -> State:
        output, lse = state
        with np.errstate(all="ignore"):  # the kernels do not report overflow either
            result = output.astype(dtype) if self._out is None else self._out
            if self._out is not None:
                np.copyto(result, output, casting="same_kind")
            return result, lse.astype(compute_type(dtype))

    def _check_overlap(self, name: str, array: Array) -> None:
        refuse_overlap("out", self._out, name, array)


def _is_of_any_keys(name: str, value: Any) -> bool:
    """Return whether an option can be checked without keys, whose batch axes are not known."""
    option = OPTIONS[name]
    if "batch" not in option.axes or value is None:
        return True
    is_position = option.subject is Subject.VISIBILITY
    return not is_position and as_array(name, value).ndim < len(option.axes)


def _positions(options: Mapping[str, Any], q_len: int, total: int | None) -> Positions:
    """Check the options that concern positions, of which `window` has been checked, and read them.

    `total` is the number of keys, if known.
    """
    lengths = _counts("key_lengths", options.get("key_lengths"), total)
    padding = _counts("left_padding", options.get("left_padding"), total)
    end = total if lengths is None else lengths
    offset = options.get("query_offset", 0)
    if isinstance(offset, str) and offset == "end" and end is None:
        raise ValueError(
            "query_offset='end' needs key_lengths here: the number of keys is not known until the "
            "last chunk arrives"
        )
    offset = offsets(offset, np.asarray(0 if end is None else end) - q_len)
    limits = {"key_lengths": lengths, "left_padding": padding, "query_offset": offset}
    return Positions.of({**options, **limits}, q_len, total)


def _counts(name: str, value: ArrayLike | None, total: int | None) -> NDArray[np.int64] | None:
    """Return numbers of keys, from 0 to `total` if `total` is known."""
    if value is None:
        return None
    array = integers(name, value).astype(np.int64)
    least, most = int(array.min(initial=0)), int(array.max(initial=0))
    if least < 0 or (total is not None and most > total):
        wanted = "at least 0" if total is None else f"from 0 to {total}"
        raise ValueError(f"{name} must be {wanted}, got {least if least < 0 else most}")
    return array


class _Thread:
    """A thread that calls functions one after another, in the context of the thread that made it.

    `concurrent.futures` does this too, but imports `logging`, whose import in one thread breaks the
    locks of a process that another thread forks at that moment.

    The thread ends when its owner, this object, is destroyed. An interrupt may come before the call
    that ends it, or within, and only a callback that runs no Python code cannot be interrupted.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Any] = SimpleQueue()
        owner = weakref.ref(self, self._calls.put)
        # Context such as numpy.errstate also applies to the iterable.
        work = contextvars.copy_context().run
        # The process need not wait for a long read after an interrupt.
        self._thread = threading.Thread(
            target=work, args=(_work, self._calls, owner), name="attend_stream", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError as error:
            if "shutdown" in str(error):
                raise
            raise MemoryError("no memory for the thread that reads chunks") from error

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
        """Call a function in the thread. Return a function that waits for its result."""
        answer: SimpleQueue[Any] = SimpleQueue()
        self._calls.put((function, arguments, answer))

        def result() -> Any:
            # A signal that arrives just before a lock is taken does not end the wait for it.
            while True:
                try:
                    value, error = answer.get(timeout=_SIGNAL_INTERVAL)
                    break
                except Empty:
                    pass
            if error is None:
                return value
            try:
                raise error
            finally:
                del error  # its traceback, which refers to chunks, must not refer to it

        return result

    def end(self, wait: bool) -> None:
        """End the thread after the calls that it was given."""
        self._calls.put(None)
        while wait and self._thread.is_alive():
            self._thread.join(_SIGNAL_INTERVAL)


class _Caller:
    """The calling thread in place of another one. Pyodide has none, so nothing is read ahead."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
        """Return a function that makes the call."""
        return partial(function, *arguments)

    def end(self, wait: bool) -> None:
        """Do nothing: no call is waiting."""


def _work(calls: SimpleQueue[Any], owner: weakref.ref[_Thread]) -> None:
    """Make the calls of an owner until there is None, or the reference to an owner that is gone."""
    while (call := calls.get()) is not None and call is not owner:
        function, arguments, answer = call
        try:
            answer.put((function(*arguments), None))
        except BaseException as error:
            answer.put((None, error))
        del call, function, arguments, answer


@contextmanager
def _read_ahead(
    produced: Callable[[Callable[[], bool]], Generator[Any, None, None]], source: Iterator[Any]
) -> Iterator[Iterator[Any]]:
    """Yield an iterator over a generator that runs in a thread, one item ahead.

    If `source` is a generator too, it is closed in that thread at the end. After an interrupt, this
    is not waited for: a long read ends later.
    """
    stop, process = threading.Event(), os.getpid()
    items = produced(stop.is_set)
    thread = _Caller() if sys.platform == "emscripten" else _Thread()

    def ahead() -> Iterator[Any]:
        yield thread.submit(next, items)()
        result = thread.submit(next, items, None)
        while (item := result()) is not None:
            result = thread.submit(next, items, None)
            yield item
            del item
            if os.getpid() != process:
                raise RuntimeError(
                    "attend_stream cannot continue in a forked process: call it again there"
                )

    def end(wait: bool) -> None:
        stop.set()
        close = source.close if isinstance(source, Generator) else stop.is_set
        closing = thread.submit(close)
        thread.end(wait)
        if wait:
            closing()

    try:
        yield ahead()
    except BaseException as error:
        if os.getpid() == process:  # a child has no such thread
            try:
                end(wait=not isinstance(error, KeyboardInterrupt))
            except Exception as closing:
                error.add_note(f"Closing chunks raised {closing!r}")
        raise
    end(wait=True)


class _MergeOrder:
    """Merging of successive states in groups of 16 states, of 16 groups, and so on.

    The groups of a state depend only on its number. Omitting a state in which all rows are fully
    masked changes no bit.
    """

    def __init__(self, merge: Callable[..., State]) -> None:
        self.merge = merge
        self._open: dict[int, tuple[int, State]] = {}

    def add(self, number: int, state: State, level: int = 0) -> None:
        """Add the state of the chunk, or of the group, with this number. Numbers must increase."""
        group, held = number // _GROUP, self._open.pop(level, None)
        if held is not None and held[0] == group:
            state = self.merge(*zip(held[1], state, strict=True))
        elif held is not None:
            self.add(*held, level + 1)
        self._open[level] = group, state

    def finish(self) -> State | None:
        """Return the state of all chunks together, or None if no state was added."""
        level = 0
        while len(self._open) > 1:
            if level in self._open:
                self.add(*self._open.pop(level), level + 1)
            level += 1
        return next((state for _, state in self._open.values()), None)
