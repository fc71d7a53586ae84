"""The results as text."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from regard._bench.problems import Group
from regard._bench.results import CaseResult, Results

INDENT = GAP = "  "
_WIDTH = 80
_HEADERS = {"regard": "regard", "NumPy": "NumPy", "PyTorch": "PyTorch", "ONNX Runtime": "ORT"}
_NOISY = 0.1


def report_of(results: Results) -> Iterator[str]:
    """Yield the lines of a report: the machine, the cases, and notes."""
    yield from head_of(results)
    yield from cases_of(results)
    yield from after_blank(notes_of(results))


def head_of(results: Results) -> Iterator[str]:
    """Yield the lines about the machine, the engines and the limits."""
    machine = results.machine
    versions = [
        f"{name} {version}" + (" (ORT)" if name == "ONNX Runtime" else "")
        for name, version in results.versions.items()
        if name != "regard"
    ]
    threads, rounds = _count(results.threads, "thread"), _count(results.rounds, "round")
    yield f"regard {machine['regard']}, target {machine['target']}, {threads}, {rounds}"
    about = [machine["cpu"], _count(machine["cpus"], "CPU"), f"Python {machine['python']}"]
    yield from wrapped(", ".join(about + versions))
    peak, bandwidth = results.limit("fma peak") / 1e9, results.limit("read bandwidth") / 1e9
    yield from wrapped(
        f"measured limits: float32 fma peak {peak:.0f} GFLOP/s, read bandwidth {bandwidth:.1f} GB/s"
    )


def cases_of(results: Results) -> Iterator[str]:
    """Yield the table of the cases, if there are any."""
    rows = results.cases
    if not rows:
        return
    # Titles are not repeated in names.
    names = [row.name.removeprefix(f"{row.case.group.title} ") for row in rows]
    regard, *others = (
        _column(results, engine, _rate) for engine in _HEADERS if engine in results.versions
    )
    columns = [["case", *names], _column(results, "regard", _time, "time"), regard]
    columns += [_shares(results), *others]
    if others:
        columns.append(_against_best(results))
    yield ""
    yield from table_of(columns, titles_of([row.case.group for row in rows]))


def notes_of(results: Results, failures: Iterable[str] = ()) -> Iterator[str]:
    """Yield notes about failures, engines that were left out, and a busy machine."""
    notes = [
        f"{row.name}: {engine} failed, {reason}"
        for row in results.cases
        for engine, reason in row.failed.items()
    ]
    notes += failures
    left_out: dict[tuple[str, str], str] = {}  # the first reason by engine and keyword
    for row in results.cases:
        for engine, text in row.left_out.items():
            word, reason = text.split(": ", 1)
            note = f"{word}: {engine} was left out, for {row.name} {reason}"
            left_out.setdefault((engine, word), note)
    notes += left_out.values()
    notes += [f"{engine} failed, {reason}" for engine, reason in results.broken.items()]
    if results.missing:
        notes.append(f"not installed: {', '.join(results.missing)}")
    if results.drift > _NOISY:
        notes.append(
            f"the machine was busy: its limits changed by {results.drift:.0%} during the run"
        )
    for note in notes:
        yield from wrapped(note)


def titles_of(groups: Sequence[Group]) -> dict[int, str]:
    """Return the titles before rows, by the number of the row."""
    return {
        number: f"{group.title}, {group.unit}"
        for number, group in enumerate(groups)
        if number == 0 or group != groups[number - 1]
    }


def table_of(
    columns: Sequence[Sequence[str]],
    titles: Mapping[int, str] | None = None,
    *,
    names: Collection[int] = (0,),
) -> Iterator[str]:
    """Yield the lines of a table of columns, each of which begins with its header.

    The columns `names` are aligned to the left, the others to the right. `titles` are lines before
    rows, by the number of the row.
    """
    widths = [max(map(len, column)) for column in columns]
    for number, row in enumerate(zip(*columns, strict=True), -1):
        if titles and number in titles:
            yield titles[number]
        cells = [
            cell.ljust(width) if column in names else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield (INDENT + GAP.join(cells)).rstrip()


def wrapped(text: str) -> list[str]:
    """Return the indented lines of a paragraph."""
    return textwrap.wrap(text, _WIDTH, initial_indent=INDENT, subsequent_indent=INDENT * 2)


def after_blank(lines: Iterable[str]) -> Iterator[str]:
    """Yield an empty line before the lines, if there are any."""
    for number, line in enumerate(lines):
        if number == 0:
            yield ""
        yield line


def _column(
    results: Results, engine: str, number: Callable[[CaseResult, str], str], header: str = ""
) -> list[str]:
    """Return a number for each case, or a keyword for the reason why it is missing."""
    cells = [
        number(row, engine)
        if engine in row.samples
        else "failed"
        if engine in row.failed
        else row.left_out.get(engine, "-").split(":")[0]
        for row in results.cases
    ]
    return [header or _HEADERS[engine], *cells]


def _shares(results: Results) -> list[str]:
    shares = [results.share(row) for row in results.cases]
    return ["limit", *("-" if share is None else f"{share:.0%}" for share in shares)]


def _against_best(results: Results) -> list[str]:
    speeds = [row.speed_over(row.best_peer) for row in results.cases]
    return ["vs best", *("-" if speed is None else f"{speed:.2f}x" for speed in speeds)]


def _time(row: CaseResult, engine: str) -> str:
    seconds = row.samples[engine].seconds
    if seconds < 1e-3:
        return f"{_digits(seconds * 1e6)} us"
    return f"{_digits(seconds * 1e3)} ms" if seconds < 1 else f"{_digits(seconds)} s"


def _rate(row: CaseResult, engine: str) -> str:
    return _digits(row.rate(engine))


def _digits(number: float) -> str:
    """Return a number with three significant digits and at most two decimals."""
    return f"{number:.{2 if number < 10 else 1 if number < 100 else 0}f}"


def _count(number: int, unit: str) -> str:
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"
