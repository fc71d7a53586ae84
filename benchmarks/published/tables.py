"""Tables in Markdown, made from published runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.published.run import Run, published
from benchmarks.table.cases import COMPARISONS, Comparison
from regard._bench.results import CaseResult, Results

ENGINES = ("regard", "NumPy", "PyTorch", "ONNX Runtime")


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _head(cells: list[str]) -> list[str]:
    return [_row(cells), "|" + "---|" * len(cells)]


def _title(results: Results) -> str:
    return f"{results.machine['cpu']}, {results.machine['target']}"


def _rate(row: CaseResult, engine: str) -> str:
    if engine not in row.samples:
        return "-"
    digits = 2 if row.case.group.unit == "us" else 1
    return f"{row.rate(engine):.{digits}f}"


def _share(results: Results, row: CaseResult) -> str:
    share = results.share(row)
    return "-" if share is None else f"{share:.0%}"


def _over_best(row: CaseResult) -> str:
    speed = row.speed_over(row.best_peer) if row.best_peer else None
    return "-" if speed is None else f"{speed:.2f}x"


def cases(run: str, groups: str = "") -> Iterator[str]:
    """Yield the table of a run's cases with all engines; `groups` selects some groups of cases."""
    results = published(run).results
    yield from _head(["case", "unit", "regard", "of the limit", *ENGINES[1:], "against the best"])
    for row in results.cases:
        if groups and row.case.group.title.replace(" ", "-") not in groups.split("+"):
            continue
        rates = [_rate(row, engine) for engine in ENGINES]
        share, best = _share(results, row), _over_best(row)
        yield _row([row.name, row.case.group.unit, rates[0], share, *rates[1:], best])


# The cases of the README: small, BERT, GPT-2, Llama, long, and one new token.
BRIEF = (
    "notebook 6x2",
    "8x12x128x64",
    "1x12x1024x64 causal",
    "1x32/8x2048x128 causal",
    "1x8x4096x128",
    "decode 1x32/8x4096x128",
)


def brief(*names: str) -> Iterator[str]:
    """Yield regard's speed in some cases of several runs, relative to the fastest other engine."""
    runs = [published(name).results for name in names]
    yield from _head(["case", *map(_title, runs)])
    for name in BRIEF:
        rows = [next(row for row in run.cases if row.name == name) for run in runs]
        cells = [f"{_rate(row, 'regard')} {row.case.group.unit}, {_over_best(row)}" for row in rows]
        yield _row([name, *cells])


def targets(first: str, second: str) -> Iterator[str]:
    """Yield the cases of two runs on one machine, which differ in regard's target."""
    runs = [published(name).results for name in (first, second)]
    names = [results.machine["target"] for results in runs]
    yield from _head(
        ["case", "unit", names[0], "of the limit", "against the best", names[1], "of the limit"]
    )
    others = {row.name: row for row in runs[1].cases}
    for row in runs[0].cases:
        if row.name in others:
            other = others[row.name]
            one = [_rate(row, "regard"), _share(runs[0], row), _over_best(row)]
            two = [_rate(other, "regard"), _share(runs[1], other)]
            yield _row([row.name, row.case.group.unit, *one, *two])


def comparisons(*names: str) -> Iterator[str]:
    """Yield regard's comparisons with itself in some runs."""
    runs = [published(name) for name in names]
    yield from _head(["case", "measured quantity", *map(_title, (run.results for run in runs))])
    for row in COMPARISONS:
        if any(row.name in run.comparisons for run in runs):
            yield _row([row.name, row.about, *(_ratio(run, row) for run in runs)])


def _ratio(run: Run, row: Comparison) -> str:
    ratio = run.comparisons.get(row.name)
    return "-" if ratio is None else f"{ratio:.{2 if ratio >= 0.01 else 3}f}x"


TABLES: dict[str, Callable[..., Iterator[str]]] = {
    "brief": brief,
    "cases": cases,
    "targets": targets,
    "comparisons": comparisons,
}
