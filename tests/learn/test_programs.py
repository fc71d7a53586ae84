"""Every program of docs/learn runs, is short, and stops with an error where its result is wrong."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import regard

LEARN = Path(__file__).parent.parent.parent / "docs/learn"
PROGRAMS = LEARN / "programs"
SHARED = {"measure.py", "compiled.py", "checks.py"}
STEPS = sorted(path.name for path in PROGRAMS.iterdir() if path.suffix in (".py", ".cpp", ".hpp"))

# An error to plant: the program that must find it, the file that has it, what is replaced by what.
PLANTED = [
    ("stages.py", "stages.py", "sum(axis=-1", "sum(axis=0"),
    ("costs.py", "costs.py", "product = 2 *", "product = 3 *"),
    ("stable.py", "stable.py", "np.where(np.isneginf(largest), 0, largest)", "largest"),
    ("stable.py", "stable.py", "np.exp(scores - np", "np.exp(scores - 0 * np"),
    ("online.py", "online.py", "o * rescale + weight", "o + weight"),
    ("online.py", "online.py", "a[1] * share_a + b[1] * share_b", "a[1] + b[1]"),
    ("tiles.py", "tiles.py", "o = o * rescale", "o = o"),
    ("intervals.py", "intervals.py", "keys.stop) > positions", "keys.stop) >= positions"),
    ("intervals.py", "intervals.py", "range(0, end, KEYS)", "range(0, end - KEYS, KEYS)"),
    ("loops.cpp", "loops.cpp", "total / sum", "total"),
    ("registers.cpp", "registers.cpp", "value + d, 1, kDim", "value + d, kDim, 1"),
    ("vectors.cpp", "vectors.cpp", "query[(first + lane) * kDim + d]", "query[first * kDim + d]"),
    ("powers.cpp", "exp2.hpp", "2.40226468906e-1f", "2.3e-1f"),
    ("powers.cpp", "strip.hpp", "1.44269504f /", "1.43f /"),
    ("lanes.cpp", "online.hpp", "s.l[v] *= factor;", ""),
    ("lazy.cpp", "reference.hpp", "rescale(s.output, kDim);", ""),
    ("lazy.cpp", "reference.hpp", "rescale(s.weights, keys);", ""),
    ("threads.cpp", "threads.cpp", "length / kQueries,", "length / kQueries - (threads > 2),"),
    ("causal.cpp", "causal.cpp", ">= at + k + r", "> at + k + r"),
    ("blocks.cpp", "blocks.cpp", "strips - first);", "strips - first - 1);"),
    ("decode.cpp", "decode.cpp", "part *= factor;", "part *= 1;"),
    ("eight_bits.cpp", "eight_bits.cpp", "four, key + (j + r) * kDim", "four, key + j * kDim"),
    ("backward.cpp", "backward.cpp", "* back - g.m[v])", "* back)"),
    ("shipped.py", "shipped.py", "is_causal=is_causal, threads=threads", "threads=threads"),
    ("decode.py", "decode.py", "(query, key, value, threads=", "(query, value, key, threads="),
    ("eight_bits.py", "eight_bits.py", "(k - mean) @ rotation", "k @ rotation"),
    ("gradients.py", "gradients.py", "value[keys].T - mean)", "value[keys].T)"),
    ("linear.py", "linear.py", "from_start[-1] * state", "state"),
]
QUICK = {"online.py"}
SLOW = {"lazy.cpp", "decode.cpp", "eight_bits.cpp", "backward.cpp"}


def marked(cases):
    """Return the cases as parameters, marked by what the program costs."""
    costs = [(QUICK, ()), (SLOW, pytest.mark.slow)]
    return [
        pytest.param(
            *case, marks=next((m for n, m in costs if case[0] in n), pytest.mark.exhaustive)
        )
        for case in cases
    ]


@pytest.fixture
def programs(tmp_path):
    """A copy of the programs, which keeps its own records."""
    return Path(
        shutil.copytree(PROGRAMS, tmp_path / "programs", ignore=shutil.ignore_patterns("measured"))
    )


def run(programs, name, **options):
    arguments = [name] if name.endswith(".py") else ["compiled.py", name]
    if name.endswith(".cpp") and not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("neither g++ nor clang++ is installed")
    return subprocess.run(
        [sys.executable, *arguments], cwd=programs, capture_output=True, text=True, **options
    )


PAGES = {path.name: path.read_text(encoding="utf-8") for path in LEARN.glob("*.md")}


def test_pages_show_results():
    """python docs/write_results.py --programs"""
    shown = [match for text in PAGES.values() for match in RESULT.findall(text)]
    assert sorted(name for name, _ in shown) == sorted([*RUN, "all_steps.py"])
    for name, output in shown:
        assert output.strip(), name
        assert "Traceback" not in output


RESULT = re.compile(r"^<!-- result: ([\w.]+) -->\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN = [name for name in STEPS if name not in SHARED | {"all_steps.py"} and not name.endswith("hpp")]


@pytest.mark.parametrize("name", marked([(name,) for name in RUN]))
def test_programs_run(programs, name):
    done = run(programs, name)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "nan" not in done.stdout or name == "stable.py"


def test_eight_bits_compares_no_speeds_where_there_is_no_instruction(programs):
    """The last target is the oldest, which has none on any CPU."""
    oldest = os.environ | {"REGARD_TARGET": regard.cpu_targets()[-1]}
    done = run(programs, "eight_bits.py", env=oldest)
    assert done.returncode == 0, done.stderr
    *_, last = done.stdout.splitlines()
    assert last.startswith("precision 'int8' has no effect: ")
    assert "speed" not in done.stdout
    assert "cosine" not in done.stdout


def test_an_error_is_planted_in_every_program():
    assert {program for program, *_ in PLANTED} == set(RUN)


@pytest.mark.parametrize(("program", "file", "right", "wrong"), marked(PLANTED))
def test_planted_errors_are_found(programs, program, file, right, wrong):
    path = programs / file
    source = path.read_text(encoding="utf-8")
    assert source.count(right) == 1
    path.write_text(source.replace(right, wrong), encoding="utf-8")
    done = run(programs, program)
    assert done.returncode != 0, done.stdout
    assert not (programs / "measured").exists()  # what is wrong is not in the chart


def test_steps_in_cpp_say_that_there_is_no_compiler(programs, tmp_path):
    environment = {"PATH": str(tmp_path), "PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "compiled.py", "lanes.cpp"],
        cwd=programs,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "lanes.cpp was not run: neither g++ nor clang++ was found, and CXX is not set\n"
    )


@pytest.mark.exhaustive
def test_the_chart_runs_what_is_missing_and_reads_the_rest(programs):
    first = run(programs, "all_steps.py")
    assert first.returncode == 0, first.stderr
    records = {path: path.stat().st_mtime_ns for path in (programs / "measured").iterdir()}
    assert run(programs, "all_steps.py").stdout == first.stdout
    assert {path: path.stat().st_mtime_ns for path in records} == records
    with (programs / "stages.py").open("a") as source:
        source.write("# Changed.\n")
    run(programs, "all_steps.py")
    changed = {path.name for path in records if path.stat().st_mtime_ns != records[path]}
    assert changed == {"stages.json"}
