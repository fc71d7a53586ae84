"""The results as text: aligned tables, as wide as the terminal has room."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..layout import GAP, INDENT, paragraph
from ..terminal import Terminal, left, right, width_of
from .cases import CASES, COMPARISONS, Group
from .results import CaseResult, ComparisonResult, Results, Verdict, verdicts

_QUIET = 0.1
_HEADERS = {"NumPy": "NumPy", "PyTorch": "PyTorch", "ONNX Runtime": "ORT"}


@dataclass(frozen=True)
class Column:
    """A header and its cells; where room is short, the columns with the highest `rank` go first."""

    header: str
    cells: Sequence[str]
    rank: int = 0
    is_name: bool = False

    @property
    def width(self) -> int:
        """The columns of the terminal that it takes."""
        return max(width_of(text) for text in (self.header, *self.cells))


def show_list(terminal: Terminal) -> None:
    """Write the names of all cases and comparisons, and what they are."""
    columns = [
        Column("case", [row.name for row in CASES], is_name=True),
        Column("", [row.about for row in CASES], is_name=True),
    ]
    terminal.write(*_table(terminal, columns, _titles([row.group for row in CASES])))
    columns = [
        Column("regard beside itself", [row.name for row in COMPARISONS], is_name=True),
        Column("", [row.about for row in COMPARISONS], is_name=True),
    ]
    terminal.write("", *_table(terminal, columns))


def show(terminal: Terminal, results: Results) -> None:
    """Write everything that a person wants to know about a run.

    Parameters
    ----------
    terminal : Terminal
        Where it goes.
    results : Results
        The run.
    """
    terminal.write(*_head(terminal, results))
    if results.cases:
        columns = list(_case_columns(results, results.cases))
        titles = _titles([row.case.group for row in results.cases])
        terminal.write("", *_table(terminal, columns, titles))
    if results.comparisons:
        columns = list(_comparison_columns(results.comparisons))
        terminal.write("", *_table(terminal, columns))
    notes = list(_notes(terminal, results))
    if notes:
        terminal.write("", *notes)


def _head(terminal: Terminal, results: Results) -> Iterator[str]:
    machine = results.machine
    unit = "thread" if results.threads == 1 else "threads"
    rounds = "round" if results.rounds == 1 else "rounds"
    versions = [
        f"{name} {version}" + (" (ORT)" if name == "ONNX Runtime" else "")
        for name, version in results.versions.items()
        if name != "regard"
    ]
    yield (
        f"{terminal.bold('regard')} {machine['regard']}, target {machine['target']}, "
        f"{results.threads} {unit}, {results.rounds} {rounds}"
    )
    cpus = "1 CPU" if machine["cpus"] == 1 else f"{machine['cpus']} CPUs"
    about = f"{machine['cpu']}, {cpus}, Python {machine['python']}, "
    yield from paragraph(terminal, terminal.text(about + ", ".join(versions)))
    peak, bandwidth = results.limit("peak") / 1e9, results.limit("bandwidth") / 1e9
    limits = f"float32 fma peak {peak:.0f} GFLOP/s, read bandwidth {bandwidth:.1f} GB/s"
    yield from paragraph(terminal, limits)


def _titles(groups: Sequence[Group]) -> dict[int, str]:
    """Give the titles that stand above rows, by the number of the row."""
    firsts = {group.title: number for number, group in reversed(list(enumerate(groups)))}
    return {
        number: f"{groups[number].title}, {groups[number].unit}"
        for number in sorted(firsts.values())
    }


def _case_columns(results: Results, rows: list[CaseResult]) -> Iterator[Column]:
    yield Column("case", [row.name for row in rows], is_name=True)
    yield Column("time", [_time(row) for row in rows], rank=3)
    yield Column("iqr", [_spread(row) for row in rows], rank=2)
    yield Column("regard", [_rate(row, "regard") for row in rows])
    yield Column("limit", [_percent(results.share(row)) for row in rows], rank=1)
    for peer, header in _HEADERS.items():
        if peer in results.versions:
            yield Column(header, [_rate(row, peer) for row in rows], rank=1)
    if len(results.versions) > 1:
        yield Column("vs best", [_against_best(row) for row in rows])


def _comparison_columns(rows: list[ComparisonResult]) -> Iterator[Column]:
    yield Column("regard beside itself", [row.name for row in rows], is_name=True)
    yield Column("ratio", ["-" if row.value is None else f"{row.value:.2f}x" for row in rows])
    yield Column("goal", [f"{_sign(row)} {row.comparison.limit:.2f}" for row in rows])
    yield Column("", [row.comparison.about for row in rows], rank=1, is_name=True)


def _notes(terminal: Terminal, results: Results) -> Iterator[str]:
    left_out = [(row.name, *why) for row in results.cases for why in row.left_out.items()]
    left_out += [(row.name, "regard", row.left_out) for row in results.comparisons if row.left_out]
    for name, engine, reason in left_out:
        yield from paragraph(terminal, f"{name}: {engine} left out, {terminal.text(reason)}")
    for engine, reason in results.missing.items():
        yield from paragraph(terminal, f"{engine}: {terminal.text(reason)}")
    if results.drift > _QUIET:
        note = f"the machine was not quiet: its limits changed by {results.drift:.0%} in the run"
        yield from paragraph(terminal, note)
    found = verdicts(results)
    missed = [verdict for verdict in found if not verdict.is_met]
    if found:
        yield f"{INDENT}{len(found) - len(missed)} of {len(found)} goals met"
    if results.unjudged:
        unjudged = (
            f"not judged: {results.unjudged} against the fastest peer, as no peer is installed"
        )
        yield from paragraph(terminal, f"{unjudged} but NumPy")
    for verdict in missed:
        yield from paragraph(terminal, f"missed: {_verdict(verdict)}")


def _verdict(verdict: Verdict) -> str:
    sign = "at least" if verdict.is_least else "at most"
    return f"{verdict.what} {verdict.reached:.2f}, wanted {sign} {verdict.wanted:.2f}"


def _time(row: CaseResult) -> str:
    if "regard" not in row.samples:
        return "-"
    seconds = row.samples["regard"].seconds
    return f"{seconds * 1e6:.2f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def _spread(row: CaseResult) -> str:
    return _percent(row.samples["regard"].spread if "regard" in row.samples else None)


def _rate(row: CaseResult, engine: str) -> str:
    if engine not in row.samples:
        return "-"
    rate = row.rate(engine)
    return f"{rate:.2f}" if row.case.group.unit == "us" else f"{rate:.1f}"


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{part:.0%}"


def _against_best(row: CaseResult) -> str:
    speed = None if row.best_peer is None else row.speed_against(row.best_peer)
    return "-" if speed is None else f"{speed:.2f}x"


def _sign(row: ComparisonResult) -> str:
    return ">=" if row.comparison.is_speed else "<="


def _table(
    terminal: Terminal, columns: list[Column], titles: Mapping[int, str] | None = None
) -> list[str]:
    while sum(column.width + len(GAP) for column in columns) > terminal.columns:
        last = max(columns, key=lambda column: column.rank)
        if last.rank == 0:
            break
        columns.remove(last)

    def line(cells: Iterable[str]) -> str:
        pieces = [
            (left if column.is_name else right)(cell, column.width)
            for column, cell in zip(columns, cells, strict=True)
        ]
        return (INDENT + GAP.join(pieces)).rstrip()

    lines = [terminal.dim(line(column.header for column in columns))]
    for number, cells in enumerate(zip(*(column.cells for column in columns), strict=True)):
        if titles and number in titles:
            lines.append(terminal.bold(titles[number]))
        lines.append(line(cells))
    return lines
