"""Attack caches with real timer signals and with SIGKILL at random moments.

python tests/cache/attack_caches.py --signals 5000 --kills 2000 [--seed 0]

The attacks go through every kind of cache. After a signal, the cache is as before or after the
call, and later calls are right, including calls of its forks. After a death while a cache is saved,
the file has the content before or after. A neighbor's file is never touched. The first fault ends
the run.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from math import ceil
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from cache_kinds import CHANGES, KINDS, make, own_tokens
from cache_model import assert_alike, told

LONGEST = 600e-6  # seconds until a signal; most changes take less
CHANGES_OF_ONE = 12


class Interrupt(BaseException):
    pass


def changes(seed):
    """Yield changes forever. An undo takes back the last append, if nothing else came after it."""
    chance, before = random.Random(seed), None
    while True:
        name = chance.choice(list(CHANGES))
        if name == "keep":  # of the tokens appended by `make`
            continue
        if name == "undo":
            if before is not None:
                yield lambda each, before=before: each.truncate(before[0])
            before = None
            continue
        lengths, step = [None], chance.randrange(10**6)

        def change(each, name=name, lengths=lengths, step=step):
            lengths[0] = [int(length) for length in each.lengths]
            CHANGES[name](each, step)

        before = lengths if name in ("token", "prompt", "packed") else None
        yield change


def stops(change, cache, seconds):
    """Make a change that a signal may stop, and return whether a signal did."""
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        change(cache)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupt:
        return True
    return False


def attack_by_signals(kind, rounds, path, seed):
    """Attack with signals, and return how many calls were stopped."""
    chance, stopped = random.Random(seed), 0
    while rounds > 0:
        pairs = [make(kind, path)]
        sequences = [changes(chance.random())]
        for _ in range(min(CHANGES_OF_ONE, rounds)):
            rounds -= 1
            which = chance.randrange(len(pairs))
            cache, model = pairs[which]
            change = next(sequences[which])
            before = told(cache)
            was_stopped = stops(change, cache, 1e-6 + chance.random() * LONGEST)
            stopped += was_stopped
            if not was_stopped or told(cache) != before:
                change(model)
            else:
                sequences[which] = changes(chance.random())
            for pair in pairs:
                assert_alike(*pair)
            if len(pairs) < 3 and chance.random() < 0.3:
                pairs.append((cache.fork(), model.fork()))
                sequences.append(changes(chance.random()))
        if stops(lambda cache: cache.close(), pairs[0][0], chance.random() * LONGEST):
            pairs[0][0].close()
        for pair in pairs[1:]:
            assert_alike(*pair)
        path.unlink(missing_ok=True)
    return stopped


def attack_by_kills(kind, rounds, path, seed):
    """Attack with kills, and return how many processes were killed while they saved a cache."""
    chance, killed = random.Random(seed), 0
    for _ in range(rounds):
        number = chance.random()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            cache, _ = make(kind, path)
            cache.save(path)
            os.write(writer, b"+")
            for change in changes(number):
                change(cache)
                cache.save(path)
                os.write(writer, b"+")
        os.close(writer)
        os.read(reader, 1)
        time.sleep(chance.random() * 20 * LONGEST)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        done = 0
        while block := os.read(reader, 4096):
            done += len(block)
        os.close(reader)
        killed += 1
        assert_is_one_of(path, kind, number, done)
        path.unlink()
        for unfinished in path.parent.glob(".*"):
            unfinished.unlink()
    return killed


def assert_is_one_of(path, kind, number, done):
    """Check that the file has the result of this many changes, or one more, and remains usable."""
    after, _ = make(kind, path.with_name("expected"))
    path.with_name("expected").unlink(missing_ok=True)
    sequence = changes(number)
    for _ in range(done):
        next(sequence)(after)
    before = after.fork()
    next(sequence)(after)
    with type(after).load(path, mmap=done % 2 == 0) as again:
        found = told(again)
        assert found in (told(before), told(after)), f"{kind}: {done} changes, then {again}"
        for each in (again, expected := before if found == told(before) else after):
            each.append(*own_tokens(each, 3, 20))
        assert told(again) == told(expected)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--signals", type=int, default=5000)
    parser.add_argument("--kills", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    options = parser.parse_args()

    def interrupt(*_):
        raise Interrupt

    signal.signal(signal.SIGALRM, interrupt)
    stopped = killed = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cache"
        neighbor = Path(folder) / "cache.growing"
        neighbor.write_bytes(b"mine")
        for kind in options.kinds:
            stopped += attack_by_signals(
                kind, ceil(options.signals / len(options.kinds)), path, options.seed
            )
            killed += attack_by_kills(
                kind, ceil(options.kills / len(options.kinds)), path, options.seed
            )
        assert neighbor.read_bytes() == b"mine"
        names = sorted(each.name for each in Path(folder).iterdir())
        assert names == ["cache.growing"], names
    print(f"{stopped} calls stopped by signals, {killed} processes killed: no fault")


if __name__ == "__main__":
    main()
