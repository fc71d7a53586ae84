"""Small machines run more threads than they have CPUs, as many as large machines have: every layer
returns the same bits, and each call returns a result or raises a MemoryError."""

import sys

import pytest

import regard
from call_families import with_families

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="sets limits as on Linux")


@pytest.mark.parametrize(
    "cpus",
    [None, pytest.param(1, marks=on_linux)],
    ids=["all CPUs", "taskset -c 0"],
)
def test_same_bits_on_any_number_of_threads(cpus, layer, output_of):
    script = f"""
    if {cpus}:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:{cpus}])
        assert regard.get_num_threads() == 1
    for name, call in call_families(512).items():
        wanted = [array.tobytes() for array in call(1)]
        for threads in (3, 64, 256):
            for _ in range(2):  # with fresh and with kept memory
                assert [array.tobytes() for array in call(threads)] == wanted, (name, threads)
    print("done")
    """
    targets = regard.cpu_targets()
    target = targets[("pool", "openmp", "serial").index(layer) % len(targets)]
    environment = {"REGARD_TARGET": target, "REGARD_THREADING_LAYER": layer}
    assert output_of(with_families(script), **environment) == "done"


# 512 MB for everything that a process writes to: heap, stacks, NumPy's arrays.
SMALL = """
import resource
resource.setrlimit(resource.RLIMIT_DATA, (512 << 20, 512 << 20))
"""
ONE_BLAS_THREAD = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@on_linux
def test_the_main_job_in_512_mb(output_of):
    # With more threads, NumPy's BLAS, which the demo times, would need this memory for itself.
    script = SMALL + "import runpy, sys\nsys.argv[1:] = ['demo', '--threads', '4']\n"
    script += "runpy.run_module('regard', run_name='__main__')"
    printed = output_of(script, **ONE_BLAS_THREAD)
    assert "regard" in printed
    assert "NumPy" in printed


@on_linux
def test_decoding_and_training_in_512_mb(layer, output_of):
    """With 256 threads, stacks of the usual size would leave no room for arrays."""
    script = """
    query, key, value = (
        np.random.default_rng(i).standard_normal((1, 8, 1024, 64)).astype("f4") for i in range(3)
    )

    def train(threads):
        output, lse = regard.scaled_dot_product_attention(
            query, key, value, is_causal=True, return_lse=True, threads=threads
        )
        gradients = regard.scaled_dot_product_attention_backward(
            output, query, key, value, output, lse, is_causal=True, threads=threads
        )
        return b"".join(gradient.tobytes() for gradient in gradients[:3])

    def decode(threads):
        cache = regard.KVCache(1, 8, 64, capacity=1024)
        cache.append(key, value)
        return b"".join(
            cache.attend(query[:, :, i : i + 1], threads=threads).tobytes() for i in range(4)
        )

    for job in (train, decode):
        wanted = job(1)
        for threads in (None, 3, 256):
            assert job(threads) == wanted, (job, threads)
    long = np.ones((1, 16384, 64), "f4")
    try:
        regard.scaled_dot_product_attention(long, long, long, return_weights=True, threads=256)
    except MemoryError:
        print("weights do not fit")
    """
    printed = output_of(
        SMALL + with_families(script), REGARD_THREADING_LAYER=layer, **ONE_BLAS_THREAD
    )
    assert printed == "weights do not fit"


@on_linux
def test_256_threads_with_little_memory(layer, output_of):
    """Whatever memory is left when a call begins, it computes with the threads that it gets, or
    raises MemoryError."""
    if not (regard.threading_layer().runtime or "libgomp").startswith("libgomp"):
        pytest.skip("LLVM's runtime ends a process that has no memory left for it")
    script = """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    calls = call_families(512)
    names = ("forward", "backward", "decode", "products")
    wanted = {name: [array.tobytes() for array in calls[name](1)] for name in names}
    endings = set()
    for room in range(0, 64 << 20, 4 << 20):
        for name in names:
            child = os.fork()
            if child == 0:
                regard._core.testing.release_scratch()
                status = open("/proc/self/status").read()
                data = int(status.split("VmData:")[1].split()[0]) << 10
                resource.setrlimit(resource.RLIMIT_DATA, (data + room, -1))
                try:
                    arrays = calls[name](256)
                except MemoryError:
                    os._exit(1)
                resource.setrlimit(resource.RLIMIT_DATA, (-1, -1))
                os._exit(0 if [array.tobytes() for array in arrays] == wanted[name] else 2)
            endings.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    assert endings == {0, 1}, endings
    print("done")
    """
    assert output_of(with_families(script), REGARD_THREADING_LAYER=layer) == "done"
