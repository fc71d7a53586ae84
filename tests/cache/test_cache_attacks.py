"""Send real signals and kills at random moments: see `attack_caches.py`, which can run for
longer."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

AMOUNTS = [
    pytest.param(200, 60, id="short"),
    pytest.param(5000, 2000, id="long", marks=pytest.mark.exhaustive),
]


@pytest.mark.parametrize(("signals", "kills"), AMOUNTS)
def test_nothing_is_lost(signals, kills):
    script = Path(__file__).with_name("attack_caches.py")
    command = [sys.executable, script, "--signals", str(signals), "--kills", str(kills)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    stopped, killed = re.search(
        r"(\d+) calls stopped .* (\d+) processes .* no fault", done.stdout
    ).groups()
    assert int(stopped) > 0
    assert int(killed) >= kills
