"""Report the progress of a long call to a function or as a bar."""

from __future__ import annotations

from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Progress = bool | Callable[[int, int], object] | None
    Report = Callable[[int, int | None], object]


def check_progress(progress: Any, caller: str) -> None:
    """Raise TypeError or ImportError if `progress` cannot be used to report progress."""
    if progress is True:
        _bars(caller)
    elif progress is not None and progress is not False and not callable(progress):
        raise TypeError(
            "progress must be True, False or a function of (done, total), got "
            f"{type(progress).__name__}"
        )


@contextmanager
def reporting(progress: Any, total: int | None, unit: str, caller: str) -> Iterator[Report | None]:
    """Yield a function of the numbers of completed and of all units, or None for no reports."""
    if progress is None or progress is False:
        yield None
    elif progress is not True:
        yield progress
    elif (bars := _bars(caller)).__name__ == "tqdm":
        with bars.tqdm(total=total, unit=unit, unit_scale=True) as bar:
            yield lambda done, total: bar.update(done - bar.n)
    else:
        with bars.Progress() as lines:
            task = lines.add_task(unit, total=total)
            yield lambda done, total: lines.update(task, completed=done)


class Progressed:
    """The progress of several calls as that of one call with `total` units."""

    def __init__(self, total: int, report: Report | None) -> None:
        self._total, self._begun, self._report = total, 0, report

    def begin(self, units: int) -> Report | None:
        """Return the report function of the next call, which has this number of units."""
        report, total, before = self._report, self._total, self._begun
        self._begun += units
        return report and (lambda done, _: report(before + done, total))

    def add(self, units: int) -> None:
        """Report that a call with this number of units is completed."""
        report = self.begin(units)
        if report is not None:
            report(units, units)


def _bars(caller: str) -> Any:
    """Import tqdm, or rich if tqdm is missing."""
    for module in ("tqdm", "rich.progress"):
        try:
            return import_module(module)
        except ModuleNotFoundError:
            continue
    raise ImportError(
        f"{caller}(progress=True) needs the tqdm or rich package: pip install tqdm, or pass a "
        "function of (done, total)"
    )
