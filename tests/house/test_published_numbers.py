"""The benchmark numbers in README and the documentation equal the numbers of the published runs."""

import json
import re

import pytest
from benchmarks.published.__main__ import MARKED, PAGES, written
from benchmarks.published.run import FOLDER, published, reduced
from benchmarks.table.cases import CASES, COMPARISONS
from benchmarks.table.instructions import said

RUNS = sorted(path.stem for path in FOLDER.glob("*.json"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_are_those_of_the_runs(page):
    text = page.read_text(encoding="utf-8")
    assert MARKED.search(text)
    assert text == written(text), "python -m benchmarks.published write"


def test_every_run_is_quoted():
    quoted = {
        name
        for page in PAGES
        for match in MARKED.finditer(page.read_text(encoding="utf-8"))
        for name in match[3].split()
    }
    assert set(RUNS) <= quoted


@pytest.mark.parametrize("name", RUNS)
def test_runs_are_of_the_table(name):
    run = published(name)
    assert set(run.cases) <= {case.name for case in CASES}
    assert set(run.comparisons) <= {row.name for row in COMPARISONS}
    assert all(
        0 < first <= median <= third
        for engines in run.cases.values()
        for first, median, third in engines.values()
    )
    results = run.results
    assert results.limit("fma peak") > results.limit("read bandwidth") > 0


def test_no_table_has_numbers_of_its_own():
    """A row of a case must be within a marked table."""
    names = "|".join(re.escape(case.name) for case in CASES)
    for page in PAGES:
        text = MARKED.sub("", page.read_text(encoding="utf-8"))
        assert not re.search(rf"^\| ({names}) \| (us|GFLOP/s|GB/s) \|", text, re.M), page


def test_a_document_is_reduced_to_quartiles():
    case = CASES[0].name
    document = {
        "date": "2026-11-25",
        "cases": [{"name": case, "samples": {"regard": {"rounds": [[1.0, 2.0], [3.0, 4.0, 5.0]]}}}],
        "comparisons": [{"name": COMPARISONS[0].name, "ratio": 0.51234}],
    }
    run = reduced(json.loads(json.dumps(document)))
    assert run.cases == {case: {"regard": [2.0, 3.0, 4.0]}}
    assert run.comparisons == {COMPARISONS[0].name: 0.512}


def test_what_libraries_say_of_their_instructions():
    text = """ATen AVX2
MKL_VERBOSE oneMKL 2024.0 Update 2 Product build 20240605 for Intel(R) 64 architecture \
Intel(R) Architecture processors, Lnx 2.45GHz lp64 gnu_thread
MKL_VERBOSE SGEMM(N,N,64,64,64) 13.83ms CNR:OFF Dyn:1 FastMM:1 TID:0  NThr:2
onednn_verbose,v1,info,cpu,isa:Intel AVX2
"""
    assert said(text) == (
        "ATen AVX2; oneMKL 2024.0 Update 2 for Intel(R) Architecture processors; isa:Intel AVX2"
    )
    assert said("nothing of the kind") == ""
