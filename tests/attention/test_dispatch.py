"""Which kernels exist, which run, and how one is forced."""

import json

import numpy as np
import pytest

import regard
from reference import assert_matches, expected

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
    # The name must come with the kernels: same bits as those of the fixture's target here.
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
