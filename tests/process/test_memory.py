"""The memory that calls work in: how much they need, and what is kept for the next."""

import json
import platform
import sys

import numpy as np
import pytest

import regard
from call_families import call_families, sdpa, with_families

testing = regard._core.testing
MIB = 1 << 20
on_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="reads /proc, sets limits as on Linux"
)


def is_kept():
    """Return whether memory is kept. Sanitized modules keep nothing, so the memory of a call ends
    where its request ends."""
    testing.release_scratch()
    x = np.ones((2, 40, 8), np.float32)
    sdpa(x, x, x, threads=1)
    return testing.scratch_use()["kept"] > 0


needs_keeping = pytest.mark.skipif(not is_kept(), reason="this build keeps no memory")


def bytes_of(call, threads):
    """Return how much the call takes from the system."""
    testing.release_scratch()
    testing.scratch_use()
    call(threads)
    return testing.scratch_use()["most_bytes"]


def test_memory_of_each_thread(target):
    """The design's limit is 2 MB for each thread. The threads share what one head needs, and the
    packed blocks of `matmul`."""
    for name, call in call_families().items():
        for threads in (1, 16, 128):
            assert bytes_of(call, threads) <= 2 * MIB * threads + 9 * MIB, (name, threads)


def test_waves_of_heads(target):
    """The memory that belongs to heads is 2 MiB for each thread, however many heads there are, if
    each thread has some tasks in a wave. Here all heads would need 16 MiB or more."""
    random = np.random.default_rng(1)
    query, key = (random.standard_normal((64, n, 8), np.float32) for n in (384, 4096))

    def call(threads):
        regard.summarize_attention(query, key, statistics=("column_sums",), threads=threads)

    for threads in (1, 3):
        assert bytes_of(call, threads) <= 2 * (2 * MIB * threads) + 2 * MIB, threads


@needs_keeping
@on_linux
def test_a_second_call_takes_no_pages(output_of):
    """No new memory comes from the system, at any number of threads. A thread that computes for the
    first time may touch its workspace late, so the best of some calls is counted."""
    script = """
    calls = call_families(512)
    def faults():
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for threads in (1, 16):
        for name, call in calls.items():
            kept = call(threads), call(threads)
            regard._core.testing.scratch_use()
            counts = []
            for _ in range(4):
                before = faults()
                kept = call(threads)
                counts.append(faults() - before)
            allocations = regard._core.testing.scratch_use()["allocations"]
            if allocations or min(counts) > 8:
                print(name, threads, allocations, counts)
    """
    assert output_of(with_families(script)) == ""


@needs_keeping
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc's thresholds are glibc's")
def test_results_of_later_calls_are_not_new_pages(output_of):
    """Three gradients of 3 MiB are 2,304 pages, which malloc keeps after they have been freed."""
    script = """
    import resource
    import numpy as np, regard
    x = np.ones((12, 1024, 64), "f4")
    output, lse = regard.scaled_dot_product_attention(x, x, x, return_lse=True, threads=1)
    def faults():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        regard.scaled_dot_product_attention_backward(x, x, x, x, output, lse, threads=1)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    for _ in range(2):
        faults()
    print(faults() + faults())
    """
    assert int(output_of(script)) < 500


@needs_keeping
@on_linux
def test_what_is_kept_is_bounded(output_of):
    """This holds after many sizes and numbers of threads, and several callers at once."""
    script = """
    testing, failures = regard._core.testing, []
    own = call_families(96)  # which do not write to the same arrays
    shared = [own["tangent"], own["summary"]]
    sizes = [list(call_families(length).values()) for length in (96, 250, 512, 800)]

    def resident():
        return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

    def storm(seed):
        choose = random.Random(seed)
        try:
            for step in range(40):
                calls = shared if seed else choose.choice(sizes)
                choose.choice(calls)(choose.choice((1, 3, 16, 64)))
                use = testing.scratch_use()
                assert use["kept"] <= use["most_kept"] <= 10 * 64 << 20, use
        except BaseException as failure:
            failures.append(failure)

    before = resident()
    storms = [threading.Thread(target=storm, args=(seed,)) for seed in range(4)]
    for each in storms:
        each.start()
    for each in storms:
        each.join()
    assert not failures, failures
    use = testing.scratch_use()
    assert use["bytes"] == use["kept"], use
    # At most three pieces a call, and the largest of them is a wave of gradients.
    assert use["kept"] <= 4 * 96 << 20, use
    assert resident() - before < use["kept"] + (64 << 20), (before, resident(), use)
    testing.release_scratch()
    use = testing.scratch_use()
    assert (use["bytes"], use["kept"]) == (0, 0), use
    print("done")
    """
    assert output_of(with_families(script)) == "done"


# How much the resident memory grows in a call, in bytes.
GROWTH = """
import json, resource
import numpy as np, regard
sdpa, random = regard.scaled_dot_product_attention, np.random.default_rng(0)
def growth(call):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    call()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
query = random.standard_normal((1, 3000, 8), dtype="f4")
stored = random.standard_normal((1, 40000, 4, 64), dtype="f4")
few, key = random.standard_normal((1, 4, 4, 64), dtype="f4"), stored.swapaxes(1, 2)
half_key = key.astype("f2")
many = dict(window=(50, 50), softcap=3.0, alibi_slopes=[1.0], sinks=[1.0], threads=2)
for array in (query, few):
    sdpa(array[:, :64], array[:, :64], array[:, :64], threads=2)
out, ends = np.empty_like(query), np.array([0, 1000, 3000])
x, huge = np.broadcast_to(np.float32(1), (2**13, 2)), np.broadcast_to(np.float32(0), (2**13,) * 2)
print(json.dumps({
    "scores": growth(lambda: sdpa(query, query, query, threads=2, out=out)),
    "options": growth(lambda: sdpa(query, query, query, **many, out=out)),
    "long rows": growth(lambda: sdpa(few, key, key, threads=2)),
    "long halves": growth(lambda: sdpa(few.astype("f2"), half_key, half_key, threads=2)),
    "strided": growth(lambda: sdpa(few[..., ::2], key[:, :, ::2, ::2], key[:, :, ::2, ::2])),
    "ragged": growth(lambda: regard.scaled_dot_product_attention_ragged(
        query[0][:, None], query[0][:, None], query[0][:, None], ends, ends, **many)),
    "matmul": growth(lambda: regard.matmul(few[0, 0], key[0, 0].T[:, ::4], threads=2)),
    # A page of the 256 MiB is cleared when a task first adds to it. Here nothing is added.
    "mask gradient": growth(lambda: regard.scaled_dot_product_attention_backward(
        x, x, x, x, x, huge[0], huge, key_lengths=0, with_respect_to=["mask"])),
}))
"""


@on_linux
def test_workspace_is_a_few_tiles(target, output_of):
    """Scores of 36 MB and copies of keys of 41 and 20 MB would show. The promise is < 2 MB per
    thread, the results are below 1 MB, and the pages of stacks and heap count too."""
    grown = json.loads(output_of(GROWTH, REGARD_TARGET=target))
    assert max(grown.values()) < 8 << 20, grown
