"""The benchmark numbers in README and the documentation equal the numbers of the published runs."""

import re

import pytest
from benchmarks.published.__main__ import MARKED, PAGES, written
from benchmarks.published.run import FOLDER, published, reduced
from benchmarks.published.tables import BRIEF
from benchmarks.table.cases import CASES, COMPARISONS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_are_those_of_the_runs(page):
    text = page.read_text(encoding="utf-8")
    assert MARKED.search(text)
    assert text == written(text), "python -m benchmarks.published write"
    # A row of a case must be within a marked table.
    names = "|".join(re.escape(case.name) for case in CASES)
    rest = MARKED.sub("", text)
    assert not re.search(rf"^\| ({names}) \| (us|GFLOP/s|GB/s) \|", rest, re.M)


def test_runs_are_reduced_to_quartiles():
    case = CASES[0].name
    samples = {"regard": {"rounds": [[1.0, 2.0], [3.0, 4.0, 5.0]]}}
    document = {
        "date": "2026-11-25",
        "cases": [{"name": case, "samples": samples}],
        "comparisons": [{"name": COMPARISONS[0].name, "ratio": 0.51234}],
    }
    run = reduced(document)
    assert run.cases == {case: {"regard": [2.0, 3.0, 4.0]}}
    assert run.comparisons == {COMPARISONS[0].name: 0.512}


def limits(name):
    results = published(name).results
    return results.limit("fma peak") / 1e9, results.limit("read bandwidth") / 1e9


def shares(*engines):
    """The range of the shares of the peak that engines reach in products from size 512 on."""
    results = published(ZEN_5).results
    found = [
        100 * row.rate(engine) * 1e9 / results.limit("fma peak")
        for row in results.cases
        for engine in engines
        if (size := re.fullmatch(r"matmul (\d+)", row.name)) and int(size[1]) >= 512
    ]
    return min(found), max(found)


def over_the_best(*names):
    """The range of the ratios in the README's table."""
    found = [
        row.speed_over(row.best_peer)
        for name in names
        for row in published(name).results.cases
        if row.name in BRIEF
    ]
    return min(found), max(found)


ZEN_5, ZEN_3 = "amd-zen5-x86_v4", "amd-zen3-x86_v3"
XEON, XEON_3 = "intel-xeon-x86_v4", "intel-xeon-x86_v3"
LIMITS = r"The fma peak is (\d+) GFLOP/s, the read bandwidth (\d+\.\d) GB/s"
SPEEDS = "docs/performance.md"
# A sentence of a page, how often it is there before, and what the runs say of its numbers.
QUOTED = [
    ("README.md", r"It is (\d\.\d+) to (\d\.\d+) times", 0, over_the_best(ZEN_5, XEON, ZEN_3)),
    (SPEEDS, LIMITS, 0, limits(ZEN_3)),
    (SPEEDS, LIMITS, 1, limits(ZEN_5)),
    (
        SPEEDS,
        r"peaks are (\d+) \(x86_v4\) and (\d+) GFLOP/s \(x86_v3\), the read bandwidths "
        r"(\d+\.\d) and (\d+\.\d) GB/s",
        0,
        (limits(XEON)[0], limits(XEON_3)[0], limits(XEON)[1], limits(XEON_3)[1]),
    ),
    (
        SPEEDS,
        r"NumPy and PyTorch reach (\d+) to (\d+)% of the peak from size 512 on",
        0,
        shares("NumPy", "PyTorch"),
    ),
    (SPEEDS, r"products of ONNX Runtime (\d+) to (\d+)%", 0, shares("ONNX Runtime")),
]


@pytest.mark.parametrize(("page", "pattern", "number", "numbers"), QUOTED)
def test_numbers_in_sentences_are_those_of_the_runs(page, pattern, number, numbers):
    text = " ".join((FOLDER.parents[2] / page).read_text(encoding="utf-8").split())
    quoted = re.findall(pattern, text)[number]
    for written_, measured in zip(quoted, numbers, strict=True):
        decimals = len(written_.partition(".")[2])
        assert written_ == f"{measured:.{decimals}f}"
