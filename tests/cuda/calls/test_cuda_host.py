"""Test NumPy arrays that go through pinned memory, and CUDA calls that fail or are interrupted."""

import gc
import signal
import threading

import numpy as np
import pytest

import regard
from data_kinds import normal
from messages import says

X = normal(4, 9, 16)
WANTED = regard.scaled_dot_product_attention(X, X, X)


def on_gpu(x=X, **options):
    return regard.scaled_dot_product_attention(x, x, x, **options, device="cuda")


def repeated(call, times, **options):
    for _ in range(times):
        call(**options)


def same(result):
    np.testing.assert_allclose(result, WANTED, rtol=2e-5, atol=2e-5)


def test_arrays_larger_than_pinned_blocks_come_back_as_they_went(cuda):
    """Blocks have 4 MiB, and two are used alternately."""
    for count in (1, 2**20 - 1, 2**20, 2**20 + 1, 3 * 2**20 + 5):
        host = np.arange(count, dtype=np.float32)
        array = cuda.to_device(host)
        host[:] = -1  # may be changed immediately
        assert np.array_equal(array.to_numpy(), np.arange(count, dtype=np.float32))


@pytest.mark.parametrize(
    "layout",
    [
        lambda a: np.asfortranarray(a),
        lambda a: a[::-1, ::-1].copy()[::-1, ::-1],
        lambda a: np.broadcast_to(a[:1], a.shape),
        lambda a: a.astype(">f4"),
    ],
    ids=["fortran", "backwards", "broadcast", "byte order"],
)
def test_layouts_of_numpy(layout, cuda):
    x = layout(X)
    wanted = regard.scaled_dot_product_attention(x, x, x)
    np.testing.assert_allclose(on_gpu(x), wanted, rtol=2e-5, atol=2e-5)


def test_a_broadcast_array_is_one_piece_of_memory(cuda, machine, monkeypatch):
    sizes = []
    real = machine.module.Buffer

    class Buffer(real):
        def __init__(self, size, device, stream):
            sizes.append(size)
            super().__init__(size, device, stream)

    monkeypatch.setattr(machine.module, "Buffer", Buffer)
    key = np.broadcast_to(normal(1, 1, 7, 16), (3, 4, 7, 16))
    query = normal(3, 4, 5, 16)
    actual = regard.scaled_dot_product_attention(query, key, key, device="cuda")
    wanted = regard.scaled_dot_product_attention(query, key, key)
    np.testing.assert_allclose(actual, wanted, rtol=2e-5, atol=2e-5)
    assert sorted(sizes)[:2] == [7 * 16 * 4] * 2


def test_output_into_an_array_of_numpy(cuda):
    out = np.empty((4, 16, 9), np.float32).swapaxes(1, 2)
    assert on_gpu(out=out) is out
    same(out)


@pytest.mark.parametrize(
    "out",
    [np.empty((4, 9, 15), np.float32), np.empty((4, 9, 16)), X],
    ids=["shape", "type", "overlap"],
)
def test_output_into_an_array_that_does_not_fit_launches_nothing(out, cuda, machine):
    before = machine.launches
    with pytest.raises((TypeError, ValueError), match="out"):
        on_gpu(out=out)
    assert machine.launches == before


CALLS = [
    "cudaGetDevice",
    "cudaMallocFromPoolAsync",
    "cudaMemcpyAsync",
    "cudaEventCreateWithFlags",
    "cudaEventRecord",
    "cudaEventQuery",
    "cudaStreamWaitEvent",
]


@pytest.mark.parametrize("after", [0, 1, 3])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_of_cuda_that_fails(name, after, cuda, machine):
    """The error names the call, nothing is left behind, and the next call computes."""
    launch_failure = 719
    machine.fail(name, launch_failure, after)
    with pytest.raises(RuntimeError, match=says(name, "cudaErrorLaunchFailure")):
        repeated(on_gpu, 10)
    same(on_gpu())


def test_a_launch_that_fails(cuda, machine):
    machine.fail("launch", 719)
    with pytest.raises(RuntimeError, match=says("launch", "cudaErrorLaunchFailure")):
        on_gpu()
    machine.fail("launch", 719, after=1)
    query, key = normal(2, 3, 4, 5, 16), normal(2, 3, 4, 7, 16)
    with pytest.raises(RuntimeError, match=says("launch", "cudaErrorLaunchFailure")):
        regard.scaled_dot_product_attention(query, key[:, :1], key[:1], device="cuda")
    same(on_gpu())


def test_no_memory_on_the_device(cuda, machine):
    """For any array, the last of which is the workspace of a decode."""
    query, key = normal(2, 1, 16), normal(2, 3000, 16)
    wanted = regard.scaled_dot_product_attention(query, key, key)
    for after in range(5):
        machine.fail("cudaMallocFromPoolAsync", 2, after)
        message = says("cudaMallocFromPoolAsync", "out of memory", "bytes")
        with pytest.raises(MemoryError, match=message):
            regard.scaled_dot_product_attention(query, key, key, device="cuda")
    actual = regard.scaled_dot_product_attention(query, key, key, device="cuda")
    np.testing.assert_allclose(actual, wanted, rtol=2e-5, atol=2e-5)


def test_a_signal_whose_handler_raises_stops_the_wait(cuda, machine):
    array = cuda.to_device(normal(2**21))

    def raise_it(*_):
        raise InterruptedError("stop")

    before = signal.signal(signal.SIGUSR1, raise_it)
    try:
        machine.stall(True)
        timer = threading.Timer(0.2, lambda: signal.raise_signal(signal.SIGUSR1))
        timer.start()
        with pytest.raises(InterruptedError):
            array.to_numpy()
    finally:
        machine.stall(False)
        signal.signal(signal.SIGUSR1, before)
        timer.join()
    assert np.array_equal(array.to_numpy(), normal(2**21))


def test_threads_call_at_the_same_time(cuda):
    errors = []

    def work(seed):
        x = np.random.default_rng(seed).standard_normal((2, 30, 16), np.float32)
        wanted = regard.scaled_dot_product_attention(x, x, x)
        for _ in range(5):
            try:
                np.testing.assert_allclose(on_gpu(x), wanted, rtol=2e-5, atol=2e-5)
            except Exception as error:
                errors.append(error)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert errors == []


def test_nothing_is_left_behind(cuda, machine):
    on_gpu()
    gc.collect()
    assert machine.device_bytes == 0
    events = machine.events
    for _ in range(5):
        on_gpu(return_lse=True, key_lengths=3, sinks=np.ones(4), alibi_slopes=np.ones(4))
    gc.collect()
    assert machine.device_bytes == 0
    assert machine.events == events
