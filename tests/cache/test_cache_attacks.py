"""Send real signals and kills at random moments: see `attack_caches.py`, which can run for
longer."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import inside_cache

AMOUNTS = [
    pytest.param(64, 32, id="short"),
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


THREADS = (
    f"SUPPORT = {str(Path(inside_cache.__file__).parent)!r}"
    """
import random, sys, threading
import numpy as np, regard
sys.path.insert(0, SUPPORT)
from inside_cache import assert_owners_are_right
sys.setswitchinterval(1e-6)
caches = regard.KVCaches(2, 4, 1, 4, page_size=16, keep_last=[None, 20])
forks, failures = [], []

def append(rng):
    rows = np.ones((2, caches.batch, 1, rng.randrange(30), 4), "f4")
    caches[rng.randrange(2)].append(*rows)

changes = [
    append,
    lambda rng: caches.reorder([*range(caches.batch), *[-1] * rng.randrange(3)]),
    lambda rng: caches.drop(rng.randrange(caches.batch)),
    lambda rng: caches.truncate(caches.lengths // 2),
    lambda rng: caches.rollback(),
    lambda rng: caches.keep(0, [caches._pages.length_before(0)]),
    lambda rng: forks.append(caches.fork()),
    lambda rng: caches.adopt(forks[-1]),
]

def change(seed):
    rng = random.Random(seed)
    for _ in range(1000):
        try:
            rng.choice(changes)(rng)
        except (ValueError, IndexError):
            pass  # the state has changed, or does not allow the call
        except BaseException as error:
            failures.append(error)
            raise

threads = [threading.Thread(target=change, args=(seed,)) for seed in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not failures
caches.rollback()
for fork in forks: fork.rollback()
assert_owners_are_right([caches, *forks])
print("over")
"""
)


def test_threads_that_change_one_cache(output_of):
    """A call fails if another thread has changed the entries meanwhile. Memory stays intact."""
    assert output_of(THREADS) == "over"
