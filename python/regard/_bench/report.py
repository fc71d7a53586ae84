"""The results as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from regard._bench.cases import Group
from regard._bench.problems import Attention
from regard._bench.results import CaseResult, Results
from regard._bench.text import Column, after_blank, table_of, wrapped

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
    if results.cases:
        yield ""
        titles = titles_of([row.case.group for row in results.cases])
        yield from table_of(list(_case_columns(results)), titles)


def notes_of(results: Results, failures: Iterable[str] = ()) -> Iterator[str]:
    """Yield notes about failures, engines that were left out, and a busy machine."""
    for row in results.cases:
        for engine, reason in row.failed.items():
            yield from wrapped(f"{row.name}: {engine} failed, {reason}")
    for failure in failures:
        yield from wrapped(failure)
    for (engine, word), (name, reason) in _first_left_out(results.cases).items():
        yield from wrapped(f"{word}: {engine} was left out, for {name} {reason}")
    for engine, reason in results.broken.items():
        yield from wrapped(f"{engine} failed, {reason}")
    if results.missing:
        yield from wrapped(f"not installed: {', '.join(results.missing)}")
    if results.drift > _NOISY:
        yield from wrapped(
            f"the machine was busy: its limits changed by {results.drift:.0%} during the run"
        )


def curve_of(results: Results) -> Iterator[str]:
    """Yield the lines of a report over lengths: the times of all engines, then their GFLOP/s."""
    yield from head_of(results)
    problems = [row.case.problem for row in results.cases]
    lengths = [f"{one.kv_len}" for one in problems if isinstance(one, Attention)]
    engines = [name for name in _HEADERS if name in results.versions]
    first, last = results.cases[0].name, results.cases[-1].name
    yield ""
    yield from wrapped(f"{first} to {last}: time of a call")
    times = [
        Column(_HEADERS[name], [_cell(row, name, _time) for row in results.cases])
        for name in engines
    ]
    best = [_against_best(row) for row in results.cases]
    yield from table_of([Column("length", lengths), *times, Column("vs best", best)])
    yield ""
    yield from wrapped("GFLOP/s, and the part of the fma peak that regard reaches")
    rates = [
        Column(_HEADERS[name], [_cell(row, name, _rate) for row in results.cases])
        for name in engines
    ]
    shares = [_percent(results.share(row)) for row in results.cases]
    yield from table_of([Column("length", lengths), *rates, Column("limit", shares)])
    yield from after_blank(notes_of(results))


def _count(number: int, unit: str) -> str:
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"


def titles_of(groups: Sequence[Group]) -> dict[int, str]:
    """Return the titles before rows, by the number of the row."""
    return {
        number: f"{group.title}, {group.unit}"
        for number, group in enumerate(groups)
        if number == 0 or group != groups[number - 1]
    }


def _case_columns(results: Results) -> Iterator[Column]:
    rows = results.cases
    # Titles are not repeated in names.
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


def _first_left_out(rows: Iterable[CaseResult]) -> dict[tuple[str, str], tuple[str, str]]:
    """Return the first case and the reason, by engine and keyword."""
    first: dict[tuple[str, str], tuple[str, str]] = {}
    for row in rows:
        for engine, text in row.left_out.items():
            word, reason = text.split(": ", 1)
            first.setdefault((engine, word), (row.name, reason))
    return first


def _cell(row: CaseResult, engine: str, number: Callable[[CaseResult, str], str]) -> str:
    """Return a number, or a keyword for the reason why it is missing."""
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
    """Return a number with three significant digits and at most two decimals."""
    return f"{number:.{2 if number < 10 else 1 if number < 100 else 0}f}"


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{part:.0%}"


def _against_best(row: CaseResult) -> str:
    speed = None if row.best_peer is None else row.speed_over(row.best_peer)
    return "-" if speed is None else f"{speed:.2f}x"
