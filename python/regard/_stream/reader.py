"""A thread that reads the next chunk while one is computed."""

from __future__ import annotations

import contextvars
import os
import threading
from typing import TYPE_CHECKING, Any

from regard._stream.chunks import Chunk, Layout

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from types import TracebackType

    Items = Generator[Layout | Chunk, None, None]

# After Ctrl-C, how long to wait for a read that does not end.
_PATIENCE = 0.1


class ReadAhead:
    """Run a generator of chunks in a thread, one chunk ahead of who takes them.

    It is a context manager: the thread ends with the block, and closes the generator. Only when an
    interrupt ends the block while the thread is in a read that takes long, it ends after that read.

    Parameters
    ----------
    start : callable
        Takes a function that tells whether to stop, and returns the generator of a layout and
        chunks.
    may_refill : bool
        Whether memory of chunks that are lent may be written to when the next one is asked for.
    """

    def __init__(self, start: Callable[[Callable[[], bool]], Items], may_refill: bool) -> None:
        from queue import SimpleQueue  # here, as `import regard` is to load little

        self._stop = threading.Event()
        self._items = start(self._stop.is_set)
        self._may_refill = may_refill
        self._requests: SimpleQueue[bool] = SimpleQueue()
        self._answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self._closing_error: BaseException | None = None
        self._process = os.getpid()
        # What numpy.errstate and the like say here holds for the iterable too.
        run = contextvars.copy_context().run
        self._thread = threading.Thread(
            target=run, args=(self._work,), name="regard.attend_stream", daemon=True
        )

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._stop.set()
        self._requests.put(False)
        is_interrupt = kind is not None and not issubclass(kind, Exception)
        if self._thread.ident is not None:  # an interrupt may come before the thread does
            self._thread.join(_PATIENCE if is_interrupt else None)
        if self._closing_error is not None and error is None:
            raise self._closing_error
        if self._closing_error is not None and error is not None:
            error.add_note(f"Closing chunks raised {self._closing_error!r}")

    def _work(self) -> None:
        try:
            while self._requests.get():
                self._answers.put((next(self._items, None), None))
        except BaseException as error:
            self._answers.put((None, error))
        try:
            self._items.close()
        except BaseException as error:
            self._closing_error = error

    def _take(self) -> Any:
        if os.getpid() != self._process:
            raise RuntimeError("attend_stream cannot go on in a forked process: call it there")
        item, error = self._answers.get()
        if error is not None:
            try:
                raise error
            finally:
                del error  # or it would keep itself, and chunks, through its traceback
        return item

    def layout(self) -> Layout:
        """Return the layout of the chunks, after the first of them has come."""
        self._requests.put(True)
        self._thread.start()
        layout: Layout = self._take()
        return layout

    def chunks(self) -> Iterator[Chunk]:
        """Yield the chunks, while the next one is read.

        A generator may fill the same memory again and again. The first two chunks that lie in
        memory of somebody else show that: the second is asked for after the first was computed.
        Raises ValueError where a chunk shows only later that it was read too early.
        """
        before: Chunk | None = None  # if it lies in memory of somebody else
        are_apart = None if self._may_refill else True
        ahead = False
        self._requests.put(True)
        while (chunk := self._take()) is not None:
            if before is not None and chunk.is_lent and self._may_refill:
                overlaps = chunk.overlaps(before)
                if overlaps and ahead:
                    raise ValueError(
                        f"chunk {chunk.number} must not lie in the memory of chunk "
                        f"{before.number}, which was still being computed: fill two buffers in "
                        "turn, or the same one from the first chunk on"
                    )
                are_apart = not overlaps
            before = chunk if chunk.is_lent else None
            ahead = bool(are_apart) or not chunk.is_lent
            if ahead:
                self._requests.put(True)
            yield chunk
            if not ahead:
                self._requests.put(True)
