"""Test cases given as shapes in text."""

import pytest

from regard._bench.problems import (
    CALL,
    DECODE,
    FORWARD,
    Attention,
    parse_curve,
    parse_lengths,
    parse_shape,
)
from regard._cli.bench import TYPICAL


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
        (parse_shape, "9999,9999,9999,9999", r"needs \d+\.\d GB, and \d+\.\d GB are free"),
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


def test_the_typical_cases_are_of_every_group():
    cases = [parse_shape(text, is_causal=is_causal) for text, is_causal in TYPICAL]
    assert {case.group for case in cases} == {CALL, FORWARD, DECODE}
