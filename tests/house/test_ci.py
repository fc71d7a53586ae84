"""The end of a run of .ci/run: its tracks, and what it says of skipped steps."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

CI = Path(__file__).parent.parent.parent / ".ci"
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")


def run(tmp_path, package, checks, **environment):
    """Run the end of .ci/run with other tracks."""
    steps = (CI / "steps.sh").read_text(encoding="utf-8")
    ending = (CI / "run").read_text(encoding="utf-8")
    names = ("stop", "step", "skip", "not_here", "finish")
    functions = [
        re.search(rf"^{name}\(\) \{{( .*\}}|\n(.*\n)*?\}})$", steps, re.M)[0] for name in names
    ]
    script = [
        *(
            "set -euo pipefail",
            f"work={tmp_path / 'work'}",
            "mkdir $work",
            *functions,
            "trap stop EXIT",
        ),
        *(f"package_track() {{ {package}; }}", f"checks_track() {{ {checks}; }}"),
        ending[ending.index("# The first track that fails") :],
    ]
    return subprocess.run(
        ["bash", "-c", "\n".join(script)],
        capture_output=True,
        text=True,
        timeout=60,  # seconds, for a run that waits for the other track
        env={"PATH": "/usr/bin:/bin", **environment},
    )


LONG = "echo begun; sleep 600"


@pytest.mark.parametrize("tracks", [("false; echo never", LONG), (LONG, "false; echo never")])
def test_the_first_track_that_fails_ends_the_run(tmp_path, tracks):
    done = run(tmp_path, *tracks)
    assert done.returncode == 1
    assert "failed" in done.stdout
    assert "never" not in done.stdout


def test_a_run_passes_when_both_tracks_have_passed(tmp_path):
    done = run(tmp_path, "echo one", 'echo two; not_here "no GPU"')
    assert done.returncode == 0, done.stderr
    words = re.findall(r"one|two|no GPU|everything passed", done.stdout)
    assert words == ["one", "two", "no GPU", "everything passed"]


def test_a_skipped_step_fails_the_run_unless_it_is_allowed(tmp_path):
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    tracks = 'skip "Clang: no clang++"', "skip qemu"
    done = run(tmp_path / "first", *tracks)
    assert done.returncode == 1
    listed = done.stdout.partition("=== skipped")[2]
    assert {"Clang: no clang++", "qemu"} <= set(listed.splitlines())
    allowed = run(tmp_path / "second", *tracks, REGARD_CI_ALLOW_SKIPS="1")
    assert allowed.returncode == 0
    assert "Clang: no clang++" in allowed.stdout.partition("=== skipped")[2]
