"""Test which kernels exist, which run, and how to force one."""

import json
import os
import platform
import re
from pathlib import Path

import numpy as np
import pytest

import regard
from reference import assert_matches, expected

LIST = Path(__file__).parent.parent.parent / "cpp/kernels/targets/targets.inc"
SCRIPT = """
import hashlib, json
import numpy as np, regard
x = np.random.default_rng(0).standard_normal((2, 50, 24)).astype("f4")
output = regard.scaled_dot_product_attention(x, x, x)
print(json.dumps([regard.active_target(), regard.cpu_targets(),
                  hashlib.sha256(output.tobytes()).hexdigest()]))
"""


def test_targets_are_named_best_first():
    targets = regard.cpu_targets()
    assert isinstance(targets, tuple)
    assert all(type(name) is str and name for name in targets)
    assert len(set(targets)) == len(targets)
    assert targets[-1] == "baseline"


def test_the_best_target_is_active(output_of):
    active, targets, _ = json.loads(output_of(SCRIPT))
    assert active == targets[0]
    assert tuple(targets) == regard.cpu_targets()


def test_a_target_is_forced(target, output_of):
    active, targets, digest = json.loads(output_of(SCRIPT, REGARD_TARGET=target))
    assert active == target
    assert tuple(targets) == regard.cpu_targets()
    # The kernels must change along with the name: the bits here equal the bits of the fixture's
    # target.
    assert json.loads(output_of(SCRIPT + SWITCHED.format(target)).splitlines()[1]) == digest


SWITCHED = """
regard._core.testing.set_target("{}")
output = regard.scaled_dot_product_attention(x, x, x)
print(json.dumps(hashlib.sha256(output.tobytes()).hexdigest()))
"""


def test_every_target_computes(target):
    x = np.random.default_rng(0).standard_normal((2, 50, 24)).astype(np.float32)
    assert_matches(expected(x, x, x), output=regard.scaled_dot_product_attention(x, x, x))
    assert regard.active_target() == target


NAMES = ["x86_v9", "Baseline", "baseline,x86_v3", "neon", "x86_v3", "x86_v4"]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in regard.cpu_targets()])
def test_an_unknown_or_unrunnable_target_raises(name, run_python):
    done = run_python(SCRIPT, REGARD_TARGET=name)
    assert done.returncode == 1, "an exception, not a crash"
    assert not done.stdout
    last = done.stderr.strip().splitlines()[-1]
    for word in ("REGARD_TARGET", name, *regard.cpu_targets()):
        assert word in last
    assert "Error" in last.split(":")[0]


# Features that REGARD_DISABLE_CPU_FEATURES masks, in addition to those that the tests' environment
# masks already.

on_x86 = pytest.mark.skipif(not regard._core.cpu_features(), reason="no CPU features to mask")
MASKED = [
    ("avx512f", {"x86_v3", "baseline"}),
    ("avx512_vnni, avx_vnni", {"x86_v4", "x86_v3", "baseline"}),
    ("avx512_vnni,\tavx_vnni avx512bw", {"x86_v3", "baseline"}),
    ("avx2", {"baseline"}),
    ("bmi  bmi2", {"baseline"}),
]


@on_x86
@pytest.mark.parametrize(("masked", "left"), MASKED)
def test_masked_features(masked, left, output_of):
    script = SCRIPT + "\nregard.show_config()\nprint(json.dumps(regard.show_config(mode='dicts')))"
    masked += " " + os.environ.get("REGARD_DISABLE_CPU_FEATURES", "")
    lines = output_of(script, REGARD_DISABLE_CPU_FEATURES=masked).splitlines()
    active, targets, digest = json.loads(lines[0])
    assert targets == [name for name in regard.cpu_targets() if name in left]
    assert active == targets[0]
    assert json.loads(output_of(SCRIPT, REGARD_TARGET=active))[2] == digest
    names = masked.replace(",", " ").split()
    told = [line.split()[1:-1] for line in lines if line.startswith("  disabled ")]
    assert [set(words) for words in told] == [set(names)]
    features = json.loads(lines[-1])["cpu_features"]
    assert set(features["disabled"]) == set(names)
    assert not set(features["found"]) & set(names)


@on_x86
@pytest.mark.parametrize("target", ["x86_v4", "x86_v3"])
def test_a_target_that_the_masked_cpu_does_not_run(target, run_python):
    environment = {"REGARD_TARGET": target, "REGARD_DISABLE_CPU_FEATURES": "fma"}
    done = run_python("import regard; regard.active_target()", **environment)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(
        "ValueError: REGARD_TARGET must be one of the targets that run on this CPU (baseline), "
        f"got '{target}', which needs "
    )
    assert "fma" in last


def listed_targets():
    """Return the names and features of the targets of this architecture, best first."""
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower())
    architectures = "any", machine or platform.machine()
    rows = re.findall(r'^REGARD_TARGET\((\w+), (\w+), "(.*)"\)', LIST.read_text("utf-8"), re.M)
    return {name: needs.split() for name, of, needs in rows if of in architectures}


REPORTS = """
import json, numpy as np, regard
from regard._cli import main
x = np.ones((1, 4, 8))
print(json.dumps(regard.show_config(mode="dicts")))
regard.show_config()
print(regard.explain(x, x, x))
main(["info"])
"""


# The last: a CPU that runs only the baseline of a build for AVX-512.
@pytest.mark.parametrize("masked", ["", "avx512f"] if regard._core.cpu_features() else [""])
def test_a_better_target_that_was_not_compiled_is_reported(masked, output_of):
    masked += " " + os.environ.get("REGARD_DISABLE_CPU_FEATURES", "")
    first, text = output_of(REPORTS, REGARD_DISABLE_CPU_FEATURES=masked).split("\n", 1)
    config = json.loads(first)
    found = set(config["cpu_features"]["found"])
    best = next(name for name, needs in listed_targets().items() if found.issuperset(needs))
    if best in [row["name"] for row in config["targets"]]:
        assert config["better_target"] is None
        assert config["active_reason"] == "best of this CPU"
        assert "not compiled" not in text
    else:
        assert config["better_target"] == best
        assert config["active_reason"] == "best of the compiled targets"
        assert text.count(f"this CPU supports {best}, which was not compiled: run pip install") == 3


@pytest.mark.parametrize("name", listed_targets())
def test_a_forced_target_that_was_not_compiled_raises_and_says_so(name, run_python):
    config = regard.show_config(mode="dicts")
    is_compiled = name in [row["name"] for row in config["targets"]]
    missing = set(listed_targets()[name]) - set(config["cpu_features"]["found"])
    done = run_python("import regard; regard.active_target()", REGARD_TARGET=name)
    said = f"got '{name}', which was not compiled: build with -Ccmake.define.REGARD_TARGETS=all"
    assert (said in done.stderr) == (not is_compiled and not missing)
    assert done.returncode == (not is_compiled or bool(missing))


@pytest.mark.parametrize(
    ("masked", "said"),
    [
        ("avx9", ", got 'avx9'"),
        ("AVX2", ", got 'AVX2'"),
        ("avx2;fma", ", got 'avx2;fma'"),
        ("sse2", ", got 'sse2', which every target needs"),
    ],
)
@on_x86
@pytest.mark.parametrize("asked", ["active_target()", "cpu_targets()", "softmax([1.0])"])
def test_features_that_cannot_be_masked(masked, said, asked, run_python):
    done = run_python(f"import regard; regard.{asked}", REGARD_DISABLE_CPU_FEATURES=masked)
    assert done.returncode == 1
    possible = " ".join(regard._core.cpu_features())
    assert done.stderr.strip().splitlines()[-1] == (
        "ValueError: REGARD_DISABLE_CPU_FEATURES must name features that can be disabled "
        f"({possible}){said}"
    )


@on_x86
def test_these_tests_start_without_vnni(run_python):
    """Without VNNI no target rounds to int8, and a fixture has no params."""
    tests = Path(__file__).with_name("test_int8.py")
    script = f"""
    import os, pytest, sys
    os.chdir({str(tests.parent.parent.parent)!r})
    sys.exit(pytest.main(["-q", "-n0", "--collect-only", "-p", "no:cacheprovider", {str(tests)!r}]))
    """
    done = run_python(script, REGARD_DISABLE_CPU_FEATURES="avx512_vnni avx_vnni")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_int8.py::test_integers[" in done.stdout


def test_set_target_refuses_what_cannot_run():
    before = regard.active_target()
    with pytest.raises((ValueError, RuntimeError), match="x86_v9"):
        regard._core.testing.set_target("x86_v9")
    assert regard.active_target() == before


def test_set_target_to_none_is_the_best(output_of):
    script = """
    import regard
    regard._core.testing.set_target("baseline")
    print(regard.active_target())
    regard._core.testing.set_target(None)
    print(regard.active_target())
    """
    assert output_of(script).split() == ["baseline", regard.cpu_targets()[0]]


def test_show_config_prints_a_report(target, capsys):
    assert regard.show_config() is None
    report = capsys.readouterr()
    assert not report.err
    for word in (regard.__version__, target, *regard.cpu_targets()):
        assert word in report.out


def test_show_config_as_dicts(target, capsys):
    config = regard.show_config(mode="dicts")
    assert capsys.readouterr() == ("", "")
    assert type(config) is dict
    told = json.dumps(config)
    for word in (regard.__version__, target, *regard.cpu_targets()):
        assert f'"{word}"' in told


def test_show_config_refuses_other_modes():
    with pytest.raises(ValueError, match="mode"):
        regard.show_config(mode="html")
