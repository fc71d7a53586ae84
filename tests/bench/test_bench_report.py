"""Test how a run is shown: tables, notes, a picture, JSON."""

import dataclasses
import json
import re

import pytest
from benchmarks.table.cases import CASES, COMPARISONS
from benchmarks.table.report import list_of_cases, table_document_of, table_report_of

from bench_runs import case_result, comparison_result, run_of, table_run_of
from regard._bench.problems import DECODE, parse_curve, parse_shape
from regard._bench.report import curve_of, report_of


def likely_result(case):
    """Return a result at rates that a machine may have, so that the columns have realistic
    widths."""
    seconds = max(case.problem.flops / 2e11, case.problem.bytes / 1.5e10)
    return case_result(
        case, regard=seconds, NumPy=2 * seconds, PyTorch=1.5 * seconds, ORT=2.5 * seconds
    )


EVERY = table_run_of(
    [likely_result(case) for case in CASES],
    [comparison_result(row.name, 1.0, 1.0) for row in COMPARISONS],
    missing=["Other"],
)
CURVE = run_of(
    [
        case_result(one, regard=1e-4, PyTorch=2e-4, ORT=3e-4, NumPy=5e-4)
        for one in parse_curve("1,8,64", [128, 256])
    ]
    + [
        case_result(
            *parse_curve("1,8,64", [512]),
            regard=4e-4,
            ORT=5e-4,
            left_out={"NumPy": "memory: its scores need 9.0 GB"},
            failed={"PyTorch": "WrongResultError: off by 1.0e+00 of the largest element"},
        )
    ]
)


def text_of(run, **options):
    return "\n".join(table_report_of(run, **options))


def test_the_table_is_aligned_and_fits():
    lines = text_of(EVERY).splitlines()
    assert max(map(len, lines[: lines.index("", 6)])) <= 80
    assert max(map(len, lines)) <= 110
    header = next(line for line in lines if line.startswith("  case"))
    for name in ("time", "regard", "limit", "NumPy", "PyTorch", "ORT", "vs best"):
        end = header.index(name) + len(name)
        for case in CASES:
            shown = case.name.removeprefix(f"{case.group.title} ")
            line = next(line for line in lines if line.startswith(f"  {shown} "))
            assert line[end - 1] not in " ", (name, line)
            assert line[end : end + 1] in (" ", ""), (name, line)


def test_a_stranger_reads_nothing_about_goals():
    text = text_of(EVERY)
    assert "measured limits: float32 fma peak 400 GFLOP/s, read bandwidth 20.0 GB/s" in text
    assert re.search(r"^  1x8x512|^  1x12x512x64 ", text, re.MULTILINE)
    assert re.search(r"^  causal 1x12x1024x64 +1\.00x  time relative to the full", text, re.M)
    assert not re.search("goal|missed|wanted", text)
    assert "goals" not in table_document_of(EVERY)


def test_a_developer_reads_the_goals():
    text = text_of(EVERY, with_goals=True)
    assert re.search(r"^  causal 1x12x1024x64 +1\.00x  <= 0\.58  time relative", text, re.M)
    assert re.search(r"^  \d+ of \d+ goals met$", text, re.M)
    words = " ".join(text.split())
    assert (
        "missed: causal 1x12x1024x64: time relative to the full square 1.00, wanted at most"
        in words
    )
    assert "missed: strided" not in words
    alone = table_run_of(EVERY.results.cases[:2], versions={"regard": "1", "NumPy": "2"})
    assert "not judged: 2 goals relative to the fastest other engine, as only NumPy" in " ".join(
        text_of(alone, with_goals=True).split()
    )


def test_a_title_stands_where_the_group_changes():
    shapes = ("1,8,512,64", "1,32/8,1/4096,128", "1,8,512,64", "1,1,6,2")
    run = run_of([case_result(parse_shape(one), regard=1e-3) for one in shapes])
    text = "\n".join(report_of(run))
    assert re.findall(r"^\w.*, [a-zA-Z/]+$", text, re.MULTILINE) == [
        "attention, GFLOP/s",
        "decode, GB/s",
        "attention, GFLOP/s",
        "a small call, us",
    ]


def test_the_notes_say_what_failed_and_what_was_left_out():
    run = table_run_of(
        [
            case_result("matmul 512", failed={"regard": "TypeError: no"}),
            case_result("matmul 1024", regard=1.0, left_out={"NumPy": "time: it would take 9 s"}),
            case_result("matmul 2048", regard=1.0, left_out={"NumPy": "time: it would take 99 s"}),
        ],
        [comparison_result("causal 1x8x4096x64", failed="TypeError: not yet")],
        missing=["PyTorch", "ONNX Runtime"],
        broken={"Other": "ImportError: none"},
    )
    text = text_of(run)
    assert re.search(r"^  512 +failed +failed( +-){5}$", text, re.MULTILINE)
    assert re.search(r"^  1024 .* time ", text, re.MULTILINE)
    assert re.search(r"^  causal 1x8x4096x64 +failed  time relative", text, re.MULTILINE)
    notes = text[text.index("\n\n", text.index("causal")) :].split("\n")
    assert [note for note in notes if note] == [
        "  matmul 512: regard failed, TypeError: no",
        "  causal 1x8x4096x64: regard failed, TypeError: not yet",
        "  time: NumPy was left out, for matmul 1024 it would take 9 s",
        "  Other failed, ImportError: none",
        "  not installed: PyTorch, ONNX Runtime",
    ]


@pytest.mark.parametrize(("after", "is_quiet"), [(361e9, True), (359e9, False)])
def test_a_busy_machine_is_named(after, is_quiet):
    text = "\n".join(report_of(run_of(EVERY.results.cases[:1], peak=[400e9, after])))
    assert ("the machine was busy" in text) != is_quiet


def test_the_list_names_every_case():
    text = "\n".join(list_of_cases())
    for row in (*CASES, *COMPARISONS):
        assert re.search(rf"^  {re.escape(row.name)}\b.*{re.escape(row.about)}$", text, re.M)


def test_a_curve_is_two_tables():
    text = "\n".join(curve_of(CURVE))
    times, rates = text.split("GFLOP/s, and")
    assert re.search(r"^  length +regard +NumPy +PyTorch +ORT +vs best$", times, re.MULTILINE)
    assert re.search(r"^ +128 +100 us +500 us +200 us +300 us +2\.00x$", times, re.MULTILINE)
    assert re.search(r"^ +512 +400 us +memory +failed +500 us +1\.25x$", times, re.MULTILINE)
    gflops = 4 * 8 * 128 * 128 * 64 / 1e-4 / 1e9
    assert re.search(rf"^ +128 +{gflops:.0f} .* {gflops / 400:.0%}$", rates, re.MULTILINE)
    assert "memory: NumPy was left out, for 1x8x512x64 its scores need 9.0 GB" in rates


def test_json_holds_every_number():
    document = json.loads(json.dumps(table_document_of(EVERY, with_goals=True), allow_nan=False))
    assert list(document) == [
        *(field.name for field in dataclasses.fields(EVERY.results)),
        "instructions",
        "comparisons",
        "goals",
    ]
    assert list(EVERY.results.document()) == list(document)[:-3]
    product = next(case for case in document["cases"] if case["name"] == "matmul 512")
    assert product["problem"] == {"rows": 512, "depth": 512, "columns": 512, "batch": 0}
    assert product["flops"] == 2 * 512**3
    assert (product["unit"], product["limit"], product["best_peer"]) == (
        "GFLOP/s",
        "fma peak",
        "PyTorch",
    )
    samples = product["samples"]["NumPy"]
    assert samples["rounds"] == [[samples["seconds"]]]
    assert samples["rate"] == pytest.approx(product["flops"] / samples["seconds"] / 1e9)
    assert samples["regard_speed"] == 2.0
    assert product["share"] == pytest.approx(product["samples"]["regard"]["rate"] / 400)
    assert document["comparisons"][0]["ratio"] == 1.0
    assert {goal["is_met"] for goal in document["goals"]} == {True, False}


# The picture


@pytest.fixture
def plot():
    pytest.importorskip("matplotlib")
    from regard._bench import plot

    return plot


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file_format", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
@pytest.mark.parametrize(("content", "run"), [("draw_bars", EVERY.results), ("draw_curve", CURVE)])
def test_a_picture_in_every_format(plot, content, run, file_format, start):
    picture = plot.pen()(getattr(plot, content), run, file_format)
    assert picture.startswith(start)
    assert 5_000 < len(picture) < 200_000


def texts_of(figure):
    from matplotlib.text import Text

    return [one.get_text() for one in figure.findobj(Text)]


def test_bars_say_what_the_percentages_are_of(plot):
    from matplotlib.figure import Figure

    texts = texts_of(plot.draw_bars(Figure, EVERY.results))
    assert "GFLOP/s; %: regard's part of the measured fma peak, 400 GFLOP/s" in texts
    assert any("%: regard's part of the measured read bandwidth, 20.0 GB/s" in one for one in texts)
    decode = run_of([row for row in EVERY.results.cases if row.case.group == DECODE])
    assert not any("fma peak" in one for one in texts_of(plot.draw_bars(Figure, decode)))


def test_a_curve_is_drawn_as_far_as_it_was_measured(plot):
    from matplotlib.figure import Figure

    figure = plot.draw_curve(Figure, CURVE)
    times, _ = figure.axes
    drawn = {line.get_label(): list(line.get_xdata()) for line in times.get_lines()}
    assert drawn == {
        "regard": [128, 256, 512],
        "PyTorch": [128, 256],
        "ONNX Runtime": [128, 256, 512],
        "NumPy": [128, 256],
    }
    assert "measured fma peak, 400 GFLOP/s" in texts_of(figure)


@pytest.mark.parametrize("content", ["draw_bars", "draw_curve"])
def test_a_picture_of_failures_alone(plot, content):
    (case,) = parse_curve("1,8,64", [512])
    run = run_of([case_result(case, failed={"regard": "TypeError: no"})])
    assert plot.pen()(getattr(plot, content), run, "png").startswith(b"\x89PNG")
