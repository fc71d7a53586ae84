"""The table of cases, and shapes that a user gives."""

import dataclasses
import re

import pytest

from regard._bench.cases import CALL, CASES, COMPARISONS, DECODE, FORWARD, select
from regard._bench.goals import RATIOS, SECONDS
from regard._bench.problems import Attention
from regard._bench.shapes import parse_curve, parse_lengths, parse_shape


def test_names_are_unique():
    names = [row.name for row in (*CASES, *COMPARISONS)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("case", [case for case in CASES if case.group is FORWARD])
def test_a_name_says_how_many_operations(case):
    batch, heads, kv_heads, length, dim, causal = re.fullmatch(
        r"(\d+)x(\d+)(?:/(\d+))?x(\d+)x(\d+)( causal)?", case.name
    ).groups()
    problem = case.problem
    # A dot product takes a multiplication and an addition a dimension, and each of the two products
    # has one a pair.
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
    query, key, value, _ = dataclasses.replace(case.problem, kv_len=2).make_inputs()
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
        (["1x12x1024x64 causal"], False, ["1x12x1024x64 causal"]),  # a whole name: it and no other
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


@pytest.mark.parametrize(
    ("text", "is_causal", "name", "group", "problem"),
    [
        ("1,8,512,64", False, "1x8x512x64", FORWARD, Attention(1, 8, 8, 512, 512, 64, 64)),
        (
            "2,8/2,512,64/32",
            True,
            "2x8/2x512x64/32 causal",
            FORWARD,
            Attention(2, 8, 2, 512, 512, 64, 32, is_causal=True),
        ),
        ("1,4,300/500,64", False, "1x4x300/500x64", FORWARD, Attention(1, 4, 4, 300, 500, 64, 64)),
        (
            "1,32/8,1/4096,128",
            False,
            "1x32/8x1/4096x128",
            DECODE,
            Attention(1, 32, 8, 1, 4096, 128, 128),
        ),
        (
            "1,32/8,1/128,128",
            False,
            "1x32/8x1/128x128",
            CALL,
            Attention(1, 32, 8, 1, 128, 128, 128, is_resident=True),
        ),
        ("1,1,6,2", False, "1x1x6x2", CALL, Attention(1, 1, 1, 6, 6, 2, 2)),
    ],
)
def test_a_shape(text, is_causal, name, group, problem):
    case = parse_shape(text, is_causal=is_causal)
    assert (case.name, case.group, case.problem) == (name, group, problem)


def test_a_curve():
    cases = parse_curve("1,32/8,128", [128, 256], is_causal=True)
    assert [case.name for case in cases] == ["1x32/8x128x128 causal", "1x32/8x256x128 causal"]
    assert {case.group for case in cases} == {FORWARD}
    assert parse_lengths("128:1000") == [128, 256, 512]
    assert parse_lengths("7:7") == [7]


def curve_of_four(text):
    return parse_curve(text, [4])


SIZES = r"sizes must be whole numbers from 1 to 2147483648, got "


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (parse_shape, "", r"must be batch,heads\[/kv_heads\],length\[/kv_len\],head_dim"),
        (parse_shape, "1,8,512", r"must be batch,heads.* such as 1,32/8,1/4096,128, got '1,8,512'"),
        (parse_shape, "1,8,512,64,1", "must be batch,heads"),
        (parse_shape, "1,8,0,64", SIZES + "'1,8,0,64'"),
        (parse_shape, "1,8,-5,64", SIZES),
        (parse_shape, "1,8,1/2/3,64", SIZES),
        (parse_shape, "1,8/,4,64", SIZES),
        (parse_shape, "1,8,many,64", SIZES),
        (parse_shape, "1,8,4294967296,64", SIZES),
        (parse_shape, "2/1,8,4,64", "batch must be one size, got '2/1,8,4,64'"),
        (parse_shape, "1,8/3,4,64", "heads must be a multiple of kv_heads, got 8 and 3"),
        (parse_shape, "1,2/8,4,64", "heads must be a multiple of kv_heads, got 2 and 8"),
        (parse_shape, "9999,9999,9999,9999", r"takes \d+\.\d GB, and \d+\.\d GB are free"),
        (curve_of_four, "1,8,512,64", "must be batch,heads.*such as 1,32/8"),
        (parse_lengths, "128", "must be FIRST:LAST, such as 128:4096, got '128'"),
        (parse_lengths, "128:64", "must not end before it starts"),
        (parse_lengths, "a:b", SIZES),
        (parse_lengths, ":8", SIZES),
    ],
)
def test_what_is_not_a_shape(parse, text, message):
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_a_causal_shape_is_square():
    with pytest.raises(ValueError, match="must have as many queries as keys to be causal"):
        parse_shape("1,8,1/4096,64", is_causal=True)
