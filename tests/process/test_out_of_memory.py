"""Too little memory: a result is right, or the call raises MemoryError and writes nothing. It never
crashes."""

import sys

import numpy as np
import pytest

import regard
from call_families import with_families

sdpa = regard.scaled_dot_product_attention
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="sets limits as on Linux")


# Results and workspaces that fit nowhere


def ones(*shape):
    return np.broadcast_to(np.float32(1), shape)


TOO_LARGE = {
    "rows": lambda: sdpa(ones(1, 2**48, 2), ones(1, 3, 2), ones(1, 3, 2)),
    "columns": lambda: sdpa(ones(1, 2**25, 2), ones(1, 2**25, 2), ones(1, 2**25, 2**25)),
    "matmul, beyond 64 bits": lambda: regard.matmul(ones(2**40, 1), ones(1, 2**40)),
    "scale": lambda: regard.scale(ones(2**25, 2**25), 2.0),
    "apply_mask": lambda: regard.apply_mask(ones(2**50), np.ones(1, bool)),
    "softmax": lambda: regard.softmax(ones(2**25, 2**25)),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_result_that_fits_nowhere(name, target):
    size = "more bytes than 64 bits can count" if "64" in name else r"\d{16,17} bytes"
    with pytest.raises(MemoryError, match=rf"^cannot allocate {size} of output, shape \(\d.*\)$"):
        TOO_LARGE[name]()


def test_weights_that_fit_nowhere_leave_out_alone(target):
    keys, out = ones(1, 2**45, 2), np.full((1, 2**10, 2), 7, np.float32)
    with pytest.raises(MemoryError, match=rf"{2**57} bytes of weights, shape"):
        sdpa(ones(1, 2**10, 2), keys, keys, out=out, return_weights=True)
    assert (out == 7).all()


@pytest.mark.parametrize("exponent", [40, 41, 57, 58, 60])
def test_a_head_dim_beyond_memory(exponent, target):
    """The workspace has this many numbers for each row of a strip, and for the keys next to
    them."""
    x, value = ones(1, 2**exponent), np.ones((1, 1), np.float32)
    for call in (sdpa, regard.explain)[: 1 + (exponent > 40)]:  # `explain` allocates nothing
        with pytest.raises(MemoryError, match=r"^cannot allocate \d+ bytes of workspace") as raised:
            call(x, x, value, threads=3)
        assert int(str(raised.value).split()[2]) >= 2**exponent * 4


# Little memory


@on_linux
def test_256_threads_with_little_memory(layer, output_of):
    """Whatever memory is left when a call begins, it computes with the threads that it gets, or
    raises MemoryError and writes nothing. The results of these calls are in their own arrays."""
    if not (regard.threading_layer().runtime or "libgomp").startswith("libgomp"):
        pytest.skip("LLVM's runtime ends a process that has no memory left for it")
    script = """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    calls = call_families(512)
    names = ("forward", "backward", "decode", "products")
    results = {name: calls[name](1) for name in names}
    wanted = {name: [array.tobytes() for array in results[name]] for name in names}
    endings = set()
    for room in range(0, 64 << 20, 8 << 20):
        for name in names:
            child = os.fork()
            if child == 0:
                for array in results[name]:
                    array[...] = 7
                regard._core.testing.release_scratch()
                status = open("/proc/self/status").read()
                data = int(status.split("VmData:")[1].split()[0]) << 10
                resource.setrlimit(resource.RLIMIT_DATA, (data + room, -1))
                try:
                    arrays = calls[name](256)
                except MemoryError:
                    arrays = None
                resource.setrlimit(resource.RLIMIT_DATA, (-1, -1))
                if arrays is None:
                    os._exit(1 if all((array == 7).all() for array in results[name]) else 3)
                os._exit(0 if [array.tobytes() for array in arrays] == wanted[name] else 2)
            endings.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    assert endings == {0, 1}, endings
    print("done")
    """
    assert output_of(with_families(script), REGARD_THREADING_LAYER=layer) == "done"
