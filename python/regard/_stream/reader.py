"""Read the next chunk in a thread while the current one is computed."""

from __future__ import annotations

import _thread
import contextvars
import os
import sys
import threading
import weakref
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from regard._stream.chunks import Chunk, ChunkLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from types import TracebackType

    Items = Generator[ChunkLayout | Chunk, None, None]
    Answer = tuple[Any, BaseException | None]
    End = None | weakref.ref[Any]

# The number of seconds to wait for a read after Ctrl-C.
_PATIENCE = 0.1
_NO_MEMORY = "no memory for the thread that reads chunks"


class _Flag:
    """A flag that one thread sets and another thread calls.

    Setting a `threading.Event` takes several steps, between which Ctrl-C may occur.
    """

    is_set = False

    def __call__(self) -> bool:
        return self.is_set


class _Reading:
    """The work of the thread: to answer every request with an item, until it is told to end.

    The last answer is None.
    """

    def __init__(self, start: Callable[[Callable[[], bool]], Items]) -> None:
        self.stop = _Flag()
        self.requests: SimpleQueue[bool] = SimpleQueue()
        self.answers: SimpleQueue[Answer | End] = SimpleQueue()
        self.closing_error: BaseException | None = None
        self._items = start(self.stop)

    def work(self) -> None:
        """Answer requests, in the thread."""
        # As in threading.Thread, for debuggers and coverage tools.
        if trace := threading.gettrace():
            sys.settrace(trace)
        if profile := threading.getprofile():
            sys.setprofile(profile)
        try:
            while self.requests.get():
                self.answers.put((next(self._items, None), None))
        except BaseException as error:
            self.answers.put((None, error))
        try:
            self._items.close()
        except BaseException as error:
            self.closing_error = error
        self.answers.put(None)


class ReadAhead:
    """Run a generator of chunks in a thread, one chunk ahead of the consumer.

    It is a context manager: the thread ends with the block, and closes the generator. If an
    interrupt ends the block during a long read, the thread ends only after that read.

    The thread is not a `threading.Thread`, whose `start` waits forever for a thread that has no
    memory to start. Only the thread refers to the function that it runs, so a weak reference to the
    function shows if the thread dies before its last answer.

    Parameters
    ----------
    start : callable
        A function that accepts a function which returns whether to stop, and that returns the
        generator of a layout and chunks.
    may_refill : bool
        Whether the memory of lent chunks may be overwritten when the next one is requested.
    """

    def __init__(self, start: Callable[[Callable[[], bool]], Items], may_refill: bool) -> None:
        self._reading = _Reading(start)
        self._may_refill = may_refill
        self._process = os.getpid()
        self._has_ended = True  # or has not started
        # Context such as numpy.errstate also applies to the iterable.
        self._run: Any = partial(contextvars.copy_context().run, self._reading.work)
        self._lives = weakref.ref(self._run, self._reading.answers.put)

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._tell_to_end()
        is_interrupt = kind is not None and not issubclass(kind, Exception)
        while not self._has_ended and os.getpid() == self._process:  # a child has no such thread
            if self._answer() is None and is_interrupt:
                break
        closing_error = self._reading.closing_error
        if closing_error is not None and error is None:
            raise closing_error
        if closing_error is not None and error is not None:
            error.add_note(f"Closing chunks raised {closing_error!r}")

    def __del__(self) -> None:
        # Ctrl-C may have occurred before the first line of __exit__.
        if hasattr(self, "_run"):
            self._tell_to_end()

    def _tell_to_end(self) -> None:
        self._reading.stop.is_set = True
        self._reading.requests.put(False)
        self._run = None

    def _answer(self) -> Answer | None:
        """Wait briefly for an item, and record the end of the thread."""
        answers = self._reading.answers
        try:
            answer = answers.get(timeout=_PATIENCE)
        except Empty:
            # Without memory, the thread may be unable to report its end.
            self._has_ended = self._lives() is None and answers.empty()
            return None
        self._has_ended = not isinstance(answer, tuple)
        return answer if isinstance(answer, tuple) else None

    def _take(self) -> Any:
        if os.getpid() != self._process:
            raise RuntimeError(
                "attend_stream cannot continue in a forked process: call it again there"
            )
        while (answer := self._answer()) is None:
            if self._has_ended:
                raise MemoryError(_NO_MEMORY)
        item, error = answer
        if error is not None:
            try:
                raise error
            finally:
                del answer, error  # otherwise its traceback would keep it and chunks alive
        return item

    def layout(self) -> ChunkLayout:
        """Return the layout of the chunks, after the first chunk has arrived."""
        self._reading.requests.put(True)
        try:
            _thread.start_new_thread(self._run, ())
            self._has_ended = False
        except (MemoryError, RuntimeError) as error:
            if "shutdown" in str(error):
                raise
            raise MemoryError(_NO_MEMORY) from error
        finally:
            self._run = None
        layout: ChunkLayout = self._take()
        return layout

    def chunks(self) -> Iterator[Chunk]:
        """Yield each chunk while the next one is read.

        A generator may reuse the same memory for every chunk. The first two chunks in the
        generator's own memory reveal this, because the second is requested after the first was
        computed. Raises ValueError if a later chunk shows that it was read too early.
        """
        before: Chunk | None = None  # if it is in the generator's own memory
        are_apart = None if self._may_refill else True
        ahead = False
        requests = self._reading.requests
        requests.put(True)
        while (chunk := self._take()) is not None:
            if before is not None and chunk.is_lent and self._may_refill:
                overlaps = chunk.overlaps(before)
                if overlaps and ahead:
                    raise ValueError(
                        f"chunk {chunk.number} must not share memory with chunk "
                        f"{before.number}, which was still being computed: alternate between "
                        "two buffers, or reuse one buffer from the first chunk on"
                    )
                are_apart = not overlaps
            before = chunk if chunk.is_lent else None
            ahead = bool(are_apart) or not chunk.is_lent
            if ahead:
                requests.put(True)
            yield chunk
            if not ahead:
                requests.put(True)
