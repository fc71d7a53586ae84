"""The benchmark numbers in README and the documentation equal the numbers of the published runs."""

import re

import pytest
from benchmarks.published.__main__ import MARKED, PAGES, written
from benchmarks.published.run import FOLDER, published
from benchmarks.published.tables import BRIEF
from benchmarks.table.cases import CASES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_are_those_of_the_runs(page):
    text = page.read_text(encoding="utf-8")
    assert MARKED.search(text)
    assert text == written(text), "python -m benchmarks.published write"
    # A row of a case must be within a marked table.
    names = "|".join(re.escape(case.name) for case in CASES)
    rest = MARKED.sub("", text)
    assert not re.search(rf"^\| ({names}) \| (us|GFLOP/s|GB/s) \|", rest, re.M)


def test_the_readmes_comparison_is_that_of_the_runs():
    ratios = [
        row.speed_over(row.best_peer)
        for name in ("amd-zen4-x86_v4", "intel-xeon-x86_v4", "amd-zen3-x86_v3")
        for row in published(name).results.cases
        if row.name in BRIEF
    ]
    text = (FOLDER.parents[2] / "README.md").read_text(encoding="utf-8")
    quoted = re.search(r"It\s+is\s+(\d\.\d+)\s+to\s+(\d\.\d+)\s+times", text).groups()
    for written_, measured in zip(quoted, (min(ratios), max(ratios)), strict=True):
        assert written_ == f"{measured:.{len(written_.partition('.')[2])}f}"
