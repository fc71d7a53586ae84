"""Which kernels exist, which run, and how to force one."""

import hashlib
import json
import os
import platform
import re
from pathlib import Path

import numpy as np
import pytest

import regard
from error_limits import assert_matches, expected

LIST = Path(__file__).parent.parent.parent / "cpp/kernels/targets/targets.inc"
TARGETS = regard.cpu_targets()
SCRIPT = """
import hashlib, json
import numpy as np, regard
x = np.random.default_rng(0).standard_normal((2, 50, 24)).astype("f4")
output = regard.scaled_dot_product_attention(x, x, x)
print(json.dumps([regard.active_target(), regard.cpu_targets(),
                  hashlib.sha256(output.tobytes()).hexdigest()]))
"""


def digest_on(target):
    """Return what the script prints for a target that this process has set."""
    regard._core.testing.set_target(target)
    x = np.random.default_rng(0).standard_normal((2, 50, 24)).astype(np.float32)
    output = regard.scaled_dot_product_attention(x, x, x)
    regard._core.testing.set_target(None)
    assert_matches(expected(x, x, x), output=output)
    return hashlib.sha256(output.tobytes()).hexdigest()


@pytest.mark.parametrize("name", [None, *TARGETS])
def test_the_best_target_is_active_or_the_one_that_is_forced(name, output_of):
    """The kernels change along with the name: they have the bits of a target set in a process."""
    environment = {} if name is None else {"REGARD_TARGET": name}
    active, targets, digest = json.loads(output_of(SCRIPT, **environment))
    assert active == (name or TARGETS[0])
    assert TARGETS[-1] == "baseline"
    assert tuple(targets) == TARGETS
    assert digest == digest_on(active)


def listed_targets():
    """Return the names and features of the targets of this architecture, best first."""
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower())
    architectures = "any", machine or platform.machine()
    rows = re.findall(r'^REGARD_TARGET\((\w+), (\w+), "(.*)"\)', LIST.read_text("utf-8"), re.M)
    return {name: needs.split() for name, of, needs in rows if of in architectures}


@pytest.mark.parametrize("name", [*listed_targets(), "x86_v9", "baseline,x86_v3"])
def test_a_target_that_was_not_compiled_or_does_not_run_raises_and_says_so(name, run_python):
    config = regard.show_config(mode="dicts")
    found = set(config["cpu_features"]["found"])
    is_compiled = name in [row["name"] for row in config["targets"]]
    could_run = name in listed_targets() and found.issuperset(listed_targets()[name])
    done = run_python("import regard; regard.active_target()", REGARD_TARGET=name)
    assert done.returncode == (name not in TARGETS), "an exception, not a crash"
    said = f"got '{name}', which was not compiled: build with -Ccmake.define.REGARD_TARGETS=all"
    assert (said in done.stderr) == (could_run and not is_compiled)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1]
        assert last.startswith("ValueError: REGARD_TARGET")
        assert all(word in last for word in (name, *TARGETS))


# Features that REGARD_DISABLE_CPU_FEATURES masks, in addition to those that the tests' environment
# masks already.

on_x86 = pytest.mark.skipif(not regard._core.cpu_features(), reason="no CPU features to mask")
MASKED = [
    ("avx512f", {"x86_v3", "baseline"}),
    ("avx512_vnni,\tavx_vnni avx512bw", {"x86_v3", "baseline"}),
    ("bmi  bmi2", {"baseline"}),
]


@on_x86
@pytest.mark.parametrize(("masked", "left"), MASKED)
def test_masked_features(masked, left, output_of):
    script = SCRIPT + "\nregard.show_config()\nprint(json.dumps(regard.show_config(mode='dicts')))"
    masked += " " + os.environ.get("REGARD_DISABLE_CPU_FEATURES", "")
    lines = output_of(script, REGARD_DISABLE_CPU_FEATURES=masked).splitlines()
    active, targets, digest = json.loads(lines[0])
    assert targets == [name for name in TARGETS if name in left]
    assert active == targets[0]
    assert digest == digest_on(active)
    names = set(masked.replace(",", " ").split())
    told = [line.split()[1:-1] for line in lines if line.startswith("  disabled ")]
    assert [set(words) for words in told] == [names]
    features = json.loads(lines[-1])["cpu_features"]
    assert set(features["disabled"]) == names
    assert not set(features["found"]) & names


@on_x86
@pytest.mark.parametrize("masked", ["AVX2", "avx2;fma"])
def test_features_that_cannot_be_masked(masked, run_python):
    script = "import regard; regard.softmax([1.0])"
    done = run_python(script, REGARD_DISABLE_CPU_FEATURES=masked)
    possible = " ".join(regard._core.cpu_features())
    assert "ValueError: REGARD_DISABLE_CPU_FEATURES must name features" in done.stderr
    assert f"({possible}), got '{masked}'" in done.stderr


@on_x86
def test_a_target_that_the_masked_cpu_does_not_run(run_python):
    environment = {"REGARD_TARGET": "x86_v3", "REGARD_DISABLE_CPU_FEATURES": "fma"}
    done = run_python("import regard; regard.active_target()", **environment)
    assert done.returncode == 1
    assert re.search(r"\(baseline\), got 'x86_v3', which needs .*\bfma\b", done.stderr)


# What is told about targets

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
