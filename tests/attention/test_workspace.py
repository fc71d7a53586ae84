"""Test the memory that threads work in: how much a call needs, and what is kept for the next."""

import platform
import sys

import numpy as np
import pytest

import regard
from call_families import call_families, sdpa, with_families

testing = regard._core.testing
THREADS = (1, 3, 16, 64)
MIB = 1 << 20


def is_kept():
    """Return whether memory is kept. Sanitized modules keep nothing, so the memory of a call ends
    where its request ends."""
    testing.release_scratch()
    x = np.ones((2, 40, 8), np.float32)
    sdpa(x, x, x, threads=1)
    return testing.scratch_use()["kept"] > 0


needs_keeping = pytest.mark.skipif(not is_kept(), reason="this build keeps no memory")


@pytest.fixture(scope="module")
def calls():
    return call_families()


FAMILIES = ("forward", "int8", "decode", "backward", "tangent", "summary", "matmul", "products")


def test_the_table_is_complete(calls):
    assert tuple(calls) == FAMILIES


def bytes_of(call, threads):
    """Return how much the call takes from the system."""
    testing.release_scratch()
    testing.scratch_use()
    call(threads)
    return testing.scratch_use()["most_bytes"]


@pytest.mark.parametrize("family", FAMILIES)
def test_memory_of_each_thread(family, calls, target):
    """The design's limit is 2 MB for each thread. The threads share what one head needs, and the
    packed blocks of `matmul`."""
    for threads in (*THREADS, 128):
        assert bytes_of(calls[family], threads) <= 2 * MIB * threads + 9 * MIB, threads


def many_heads(q_len, kv_len, head_dim=64):
    generator = np.random.default_rng(1)
    query, key = (
        generator.standard_normal((64, length, head_dim), np.float32) for length in (q_len, kv_len)
    )
    return query, key


def backward_of_many_heads(threads):
    query, key = many_heads(512, 512)
    output, lse = sdpa(query, key, key, return_lse=True, threads=1)
    testing.release_scratch()
    testing.scratch_use()
    regard.scaled_dot_product_attention_backward(
        output, query, key, key, output, lse, threads=threads
    )


def int8_of_many_heads(threads):
    query, key = many_heads(48, 4096)
    sdpa(query, key, key, precision="int8", threads=threads)


def summary_of_many_heads(threads):
    query, key = many_heads(384, 4096, head_dim=8)
    regard.summarize_attention(query, key, statistics=("column_sums",), threads=threads)


@pytest.mark.parametrize(
    "call", [backward_of_many_heads, int8_of_many_heads, summary_of_many_heads]
)
def test_waves_of_heads(call, target):
    """The memory that belongs to heads is 2 MiB for each thread, however many heads there are, if
    each thread has some tasks in a wave. Here all heads would need 16 MiB or more."""
    for threads in (1, 3):
        assert bytes_of(call, threads) <= 2 * (2 * MIB * threads) + 2 * MIB, threads


# Forward problems of the benchmarks, and decoding: batch, heads, kv_heads, q_len, kv_len, head_dim.
SHAPES = [
    (1, 12, 12, 512, 512, 64),
    (1, 8, 8, 4096, 4096, 128),
    (1, 32, 8, 2048, 2048, 128),
    (2, 8, 8, 4096, 4096, 40),
    (1, 8, 8, 2048, 2048, 512),
    (1, 32, 8, 1, 4096, 128),
    (7, 32, 8, 1, 4096, 128),
    (1, 32, 32, 1, 16384, 128),
    (1, 16, 1, 1, 200_000, 128),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_explained_workspaces(shape, target):
    """The count is for as many threads as machines have; nothing is computed."""
    batch, heads, kv_heads, q_len, kv_len, dim = shape
    for storage in ("f2", "f4", "f8"):
        query = np.broadcast_to(np.zeros(1, storage), (batch, heads, q_len, dim))
        key = np.broadcast_to(np.zeros(1, storage), (batch, kv_heads, kv_len, dim))
        for threads in (1, 3, 64, 256):
            plan = regard.explain(query, key, key, threads=threads)
            assert plan.workspace_bytes < 2_000_000 * plan.threads, (storage, threads)


@needs_keeping
@pytest.mark.skipif(sys.platform != "linux", reason="counts page faults as Linux does")
def test_a_second_call_takes_no_pages(output_of):
    """No new memory comes from the system, at any number of threads. A thread that computes for the
    first time may touch its workspace late, so the best of some calls is counted."""
    script = f"""
    calls = call_families()
    def faults():
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for threads in {THREADS}:
        for name, call in calls.items():
            kept = call(threads), call(threads)
            regard._core.testing.scratch_use()
            counts = []
            for _ in range(5):
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
    for _ in range(3):
        faults()
    print(sum(faults() for _ in range(4)))
    """
    assert int(output_of(script)) < 500


@needs_keeping
@pytest.mark.skipif(sys.platform != "linux", reason="reads resident memory as Linux shows it")
@pytest.mark.parametrize("callers", [1, 4])
def test_what_is_kept_is_bounded(callers, output_of):
    """This holds after many sizes and numbers of threads, from one thread and from several at
    once."""
    script = f"""
    testing = regard._core.testing
    sizes = [call_families(length) for length in (96, 250, 512, 800)]
    failures = []

    def resident():
        return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

    def storm(seed):
        choose = random.Random(seed)
        try:
            for step in range(120):
                call = choose.choice(list(choose.choice(sizes).values()))
                call(choose.choice({THREADS}))
                use = testing.scratch_use()
                assert use["kept"] <= use["most_kept"] <= 10 * 64 << 20, use
        except BaseException as failure:
            failures.append(failure)

    own = call_families(96)
    if {callers} > 1:  # each with arrays of its own, or they would write to the same
        sizes = [{{"forward": own["tangent"], "decode": own["summary"]}}]
    before = resident()
    storms = [threading.Thread(target=storm, args=(seed,)) for seed in range({callers})]
    for each in storms:
        each.start()
    for each in storms:
        each.join()
    assert not failures, failures
    use = testing.scratch_use()
    assert use["bytes"] == use["kept"], use
    # At most three pieces a call, and the largest of them is a wave of gradients.
    assert use["kept"] <= {callers} * 96 << 20, use
    assert resident() - before < use["kept"] + (64 << 20), (before, resident(), use)
    testing.release_scratch()
    use = testing.scratch_use()
    assert (use["bytes"], use["kept"]) == (0, 0), use
    print("done")
    """
    assert output_of(with_families(script)) == "done"
