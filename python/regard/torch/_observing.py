"""Show the calls of the attention function to an observer, such as a recorder.

An observer sees the calls of the thread in which it was set. If no thread has an observer, a call
only checks an empty dictionary.
"""

from __future__ import annotations

from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor


class Observer(Protocol):
    """Sees calls before they are computed."""

    def see(
        self,
        tensors: tuple[Tensor, ...],
        masks: tuple[Any, Tensor | None],
        options: dict[str, Any],
    ) -> None:
        """See a call: tensors, the bool or sparse and the float mask, and options not None.

        The tensors are query, key and value, followed by the starts of packed sequences.

        The options contain tensors as they were given. An exception ends the call.
        """


OBSERVERS: dict[int, Observer] = {}  # by thread


@contextmanager
def observed_by(observer: Observer | None) -> Iterator[None]:
    """Set the observer of this thread, or no observer, in place of the current observer."""
    thread = get_ident()
    before = OBSERVERS.pop(thread, None)
    if observer is not None:
        OBSERVERS[thread] = observer
    try:
        yield
    finally:
        OBSERVERS.pop(thread, None)
        if before is not None:
            OBSERVERS[thread] = before


def is_observed() -> bool:
    """Return whether the calls of this thread are observed."""
    return bool(OBSERVERS) and get_ident() in OBSERVERS


def show_call(
    tensors: tuple[Tensor, ...], masks: tuple[Any, Tensor | None], options: dict[str, Any]
) -> None:
    """Show a call to the observer of this thread, if it has one."""
    observer = OBSERVERS.get(get_ident())
    if observer is not None:
        observer.see(tensors, masks, options)
