"""Test the table of cases."""

import dataclasses
import re

import pytest
from benchmarks.table.cases import CASES, COMPARISONS, select
from benchmarks.table.goals import RATIOS, SECONDS
from benchmarks.table.measuring import TOLERANCES

from regard._bench.problems import DECODE, FORWARD


def test_names_are_unique():
    names = [row.name for row in (*CASES, *COMPARISONS)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("row", COMPARISONS)
def test_results_of_every_type_are_checked(row):
    for problem in (row.problem, row.reference):
        for name in ("precision", "storage"):
            assert getattr(problem, name, None) in (None, *TOLERANCES)


@pytest.mark.parametrize("case", [case for case in CASES if case.group is FORWARD])
def test_a_name_says_how_many_operations(case):
    batch, heads, kv_heads, length, dim, causal = re.fullmatch(
        r"(\d+)x(\d+)(?:/(\d+))?x(\d+)x(\d+)( causal)?", case.name
    ).groups()
    problem = case.problem
    # A dot product needs one multiplication and one addition per dimension, and each of the two
    # products has one dot product per pair.
    pairs = int(length) * int(length) / (2 if causal else 1)
    operations = int(batch) * int(heads) * pairs * (int(dim) + int(dim)) * 2
    assert problem.flops == operations
    assert problem.kv_heads == int(kv_heads or heads)
    assert problem.is_causal == bool(causal)


@pytest.mark.parametrize("case", [case for case in CASES if case.group is DECODE])
def test_a_name_says_how_many_bytes(case):
    batch, heads, kv_heads, length, dim = map(
        int, re.fullmatch(r"decode (\d+)x(\d+)/(\d+)x(\d+)x(\d+)", case.name).groups()
    )
    query, key, value = dataclasses.replace(case.problem, kv_len=2).make_inputs()
    assert case.problem.bytes == (key.nbytes + value.nbytes) // 2 * length
    assert query.shape == (batch, heads, 1, dim)
    assert key.shape == (batch, kv_heads, 2, dim)


@pytest.mark.parametrize(
    ("names", "quick", "expected"),
    [
        (["notebook 6x2"], False, ["notebook 6x2"]),
        (["1X8X64"], False, ["1x8x64x64"]),
        (["1x8x8192x64", "NOTE"], False, ["notebook 6x2", "1x8x8192x64"]),
        (["window"], True, ["window 256 1x4x65536x64"]),
        (["1x12x1024x64 causal"], False, ["1x12x1024x64 causal"]),  # a whole name: only this case
        ([], False, [row.name for row in (*CASES, *COMPARISONS) if "4 GB" not in row.name]),
        (["4 GB"], False, ["mapped file 4 GB 1x8/8x524288"]),
        ([], True, [row.name for row in (*CASES, *COMPARISONS) if row.is_quick]),
    ],
)
def test_select(names, quick, expected):
    cases, comparisons = select(names, quick=quick)
    assert [row.name for row in (*cases, *comparisons)] == expected


def test_every_comparison_has_a_goal_and_every_goal_a_row():
    assert list(RATIOS) == [row.name for row in COMPARISONS]
    assert SECONDS.keys() <= {case.name for case in CASES}
