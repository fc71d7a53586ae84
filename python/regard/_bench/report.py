"""The results as text: aligned tables, and notes on what was left out."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from regard._bench.cases import CASES, COMPARISONS, Group
from regard._bench.goals import RATIOS, goals_of, unjudged
from regard._bench.problems import Attention
from regard._bench.results import CaseResult, ComparisonResult, Results

INDENT = GAP = "  "
WIDTH = 80
_HEADERS = {"regard": "regard", "NumPy": "NumPy", "PyTorch": "PyTorch", "ONNX Runtime": "ORT"}
_NOISY = 0.1


@dataclass(frozen=True)
class Column:
    """A header and its cells, numbers to the right and names to the left."""

    header: str
    cells: Sequence[str]
    is_name: bool = False


def list_of_cases() -> Iterator[str]:
    """Write the names of all cases and comparisons, and what they are."""
    columns = [
        Column("case", [row.name for row in CASES], is_name=True),
        Column("", [row.about for row in CASES], is_name=True),
    ]
    yield from _table(columns, _titles([row.group for row in CASES]))
    yield ""
    yield from _table(
        [
            Column("regard against itself", [row.name for row in COMPARISONS], is_name=True),
            Column("", [row.about for row in COMPARISONS], is_name=True),
        ]
    )


def report_of(results: Results, *, with_goals: bool = False) -> Iterator[str]:
    """Write a run on the table: the machine, the cases, the comparisons, and notes."""
    yield from _head(results)
    if results.cases:
        yield ""
        titles = _titles([row.case.group for row in results.cases])
        yield from _table(list(_case_columns(results)), titles)
    if results.comparisons:
        yield ""
        yield from _table(list(_comparison_columns(results.comparisons, with_goals)))
    yield from _after_blank(_notes(results))
    if with_goals:
        yield from _after_blank(_goals(results))


def curve_of(results: Results) -> Iterator[str]:
    """Write a run over lengths: the time of each engine, then its GFLOP/s."""
    yield from _head(results)
    problems = [row.case.problem for row in results.cases]
    lengths = [f"{one.kv_len}" for one in problems if isinstance(one, Attention)]
    engines = [name for name in _HEADERS if name in results.versions]
    first, last = results.cases[0].name, results.cases[-1].name
    yield ""
    yield from _wrapped(f"{first} to {last}: time of a call")
    times = [
        Column(_HEADERS[name], [_cell(row, name, _time) for row in results.cases])
        for name in engines
    ]
    best = [_against_best(row) for row in results.cases]
    yield from _table([Column("length", lengths), *times, Column("vs best", best)])
    yield ""
    yield from _wrapped("GFLOP/s, and the part of the fma peak that regard reaches")
    rates = [
        Column(_HEADERS[name], [_cell(row, name, _rate) for row in results.cases])
        for name in engines
    ]
    shares = [_percent(results.share(row)) for row in results.cases]
    yield from _table([Column("length", lengths), *rates, Column("limit", shares)])
    yield from _after_blank(_notes(results))


def _head(results: Results) -> Iterator[str]:
    machine = results.machine
    versions = [
        f"{name} {version}" + (" (ORT)" if name == "ONNX Runtime" else "")
        for name, version in results.versions.items()
        if name != "regard"
    ]
    threads, rounds = _count(results.threads, "thread"), _count(results.rounds, "round")
    yield f"regard {machine['regard']}, target {machine['target']}, {threads}, {rounds}"
    about = [machine["cpu"], _count(machine["cpus"], "CPU"), f"Python {machine['python']}"]
    yield from _wrapped(", ".join(about + versions))
    peak, bandwidth = results.limit("fma peak") / 1e9, results.limit("read bandwidth") / 1e9
    yield from _wrapped(
        f"measured limits: float32 fma peak {peak:.0f} GFLOP/s, read bandwidth {bandwidth:.1f} GB/s"
    )


def _count(number: int, unit: str) -> str:
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"


def _titles(groups: Sequence[Group]) -> dict[int, str]:
    """Return the titles that stand above rows, by the number of the row."""
    return {
        number: f"{group.title}, {group.unit}"
        for number, group in enumerate(groups)
        if number == 0 or group != groups[number - 1]
    }


def _case_columns(results: Results) -> Iterator[Column]:
    rows = results.cases
    # The title above the rows says what they have in common.
    names = [row.name.removeprefix(f"{row.case.group.title} ") for row in rows]
    yield Column("case", names, is_name=True)
    yield Column("time", [_cell(row, "regard", _time) for row in rows])
    for engine, header in _HEADERS.items():
        if engine in results.versions:
            yield Column(header, [_cell(row, engine, _rate) for row in rows])
        if engine == "regard":
            yield Column("limit", [_percent(results.share(row)) for row in rows])
    if len(results.versions) > 1:
        yield Column("vs best", [_against_best(row) for row in rows])


def _comparison_columns(rows: list[ComparisonResult], with_goals: bool) -> Iterator[Column]:
    yield Column("regard against itself", [row.name for row in rows], is_name=True)
    yield Column("ratio", ["failed" if row.ratio is None else f"{row.ratio:.2f}x" for row in rows])
    if with_goals:
        yield Column("goal", [f"{_sign(row)} {RATIOS[row.name]:.2f}" for row in rows])
    yield Column("", [row.comparison.about for row in rows], is_name=True)


def _sign(row: ComparisonResult) -> str:
    return ">=" if row.comparison.is_speed else "<="


def _notes(results: Results) -> Iterator[str]:
    for row in results.cases:
        for engine, reason in row.failed.items():
            yield from _wrapped(f"{row.name}: {engine} failed, {reason}")
    for comparison in results.comparisons:
        if comparison.failed:
            yield from _wrapped(f"{comparison.name}: regard failed, {comparison.failed}")
    for (engine, word), (name, reason) in _first_left_out(results.cases).items():
        yield from _wrapped(f"{word}: {engine} was left out, for {name} {reason}")
    for engine, reason in results.broken.items():
        yield from _wrapped(f"{engine} failed, {reason}")
    if results.missing:
        yield from _wrapped(f"not installed: {', '.join(results.missing)}")
    if results.drift > _NOISY:
        yield from _wrapped(
            f"the machine was busy: its limits changed by {results.drift:.0%} during the run"
        )


def _first_left_out(rows: Iterable[CaseResult]) -> dict[tuple[str, str], tuple[str, str]]:
    """Return the first case and the reason, by engine and the word for the reason."""
    first: dict[tuple[str, str], tuple[str, str]] = {}
    for row in rows:
        for engine, text in row.left_out.items():
            word, reason = text.split(": ", 1)
            first.setdefault((engine, word), (row.name, reason))
    return first


def _goals(results: Results) -> Iterator[str]:
    goals = goals_of(results)
    missed = [goal for goal in goals if not goal.is_met]
    if goals:
        yield f"{INDENT}{len(goals) - len(missed)} of {len(goals)} goals met"
    if count := unjudged(results):
        yield from _wrapped(
            f"not judged: {count} goals relative to the fastest other engine, "
            "as only NumPy is installed"
        )
    for goal in missed:
        sign = "at least" if goal.is_least else "at most"
        yield from _wrapped(
            f"missed: {goal.what} {goal.reached:.2f}, wanted {sign} {goal.wanted:.2f}"
        )


def _cell(row: CaseResult, engine: str, number: Callable[[CaseResult, str], str]) -> str:
    """Write a number, or a word for why there is none."""
    if engine in row.samples:
        return number(row, engine)
    return "failed" if engine in row.failed else row.left_out.get(engine, "-").split(":")[0]


def _time(row: CaseResult, engine: str) -> str:
    seconds = row.samples[engine].seconds
    if seconds < 1e-3:
        return f"{_digits(seconds * 1e6)} us"
    return f"{_digits(seconds * 1e3)} ms" if seconds < 1 else f"{_digits(seconds)} s"


def _rate(row: CaseResult, engine: str) -> str:
    return _digits(row.rate(engine))


def _digits(number: float) -> str:
    """Write three significant digits, of which two at most are decimals."""
    return f"{number:.{2 if number < 10 else 1 if number < 100 else 0}f}"


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{part:.0%}"


def _against_best(row: CaseResult) -> str:
    speed = None if row.best_peer is None else row.speed_over(row.best_peer)
    return "-" if speed is None else f"{speed:.2f}x"


def _table(columns: list[Column], titles: Mapping[int, str] | None = None) -> Iterator[str]:
    widths = [max(map(len, (column.header, *column.cells))) for column in columns]

    def line(cells: Iterable[str]) -> str:
        pieces = [
            cell.ljust(width) if column.is_name else cell.rjust(width)
            for column, width, cell in zip(columns, widths, cells, strict=True)
        ]
        return (INDENT + GAP.join(pieces)).rstrip()

    yield line(column.header for column in columns)
    for number, cells in enumerate(zip(*(column.cells for column in columns), strict=True)):
        if titles and number in titles:
            yield titles[number]
        yield line(cells)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT * 2)


def _after_blank(lines: Iterable[str]) -> Iterator[str]:
    """Put an empty line before the lines, if there are any."""
    for number, line in enumerate(lines):
        if number == 0:
            yield ""
        yield line
