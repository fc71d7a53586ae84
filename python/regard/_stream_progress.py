"""How far a stream has come, told to a function or shown as a bar."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Report = Callable[[int, int | None], object]


def reporter(progress: Any) -> Any:
    """Return what shows bars, a function, or None; raise TypeError or ImportError."""
    if progress is None or progress is False:
        return None
    if progress is True:
        try:
            from tqdm import tqdm
        except ImportError as error:
            raise ImportError(
                "attend_stream(progress=True) needs the package tqdm: pip install tqdm, or pass a "
                "function of (keys_done, keys_total)"
            ) from error
        return tqdm
    if not callable(progress):
        raise TypeError(
            "progress must be True, False or a function of (keys_done, keys_total), got "
            f"{type(progress).__name__}"
        )
    return progress


@contextmanager
def reporting(progress: Any, total: int | None) -> Iterator[Report]:
    """Give a function that takes how many keys are done."""
    chosen = reporter(progress)
    if chosen is None:
        yield lambda done, total: None
    elif progress is not True:
        yield chosen
    else:
        with chosen(total=total, unit="key", unit_scale=True) as bar:
            yield lambda done, total: bar.update(done - bar.n)
