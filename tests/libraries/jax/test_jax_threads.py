"""Programs run on XLA's threads and on regard's at once, and none waits for another forever."""

import pytest

pytest.importorskip("jax", reason='JAX is not installed: pip install ".[jax]"')

COMMON = """
import threading
import numpy as np
import jax
import jax.numpy as jnp
import regard
import regard.jax

attend = regard.jax.scaled_dot_product_attention
random = np.random.default_rng(0)


def normal(*shape):
    return random.standard_normal(shape, dtype=np.float32)
"""


@pytest.mark.parametrize("threads", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_large_arrays_on_several_threads(output_of, threads):
    """The arrays are so large that XLA copies and computes them on its threads, in four programs at
    once."""
    script = """
arrays = [normal(4, 8, 300, 64) for _ in range(3)]
wanted = regard.scaled_dot_product_attention(*arrays, is_causal=True)


@jax.jit
def program(query, key, value):
    query, key, value = query + 0, key @ jnp.eye(64), value * 1
    output = attend(query, key, value, is_causal=True)
    return output, jnp.einsum("bhqd,bhkd->bhqk", output, key).sum()


@jax.jit
@jax.grad
def gradient(query, key, value):
    return sum((attend(query + i, key, value) ** 2).sum() for i in range(3))


program(*arrays)
faults = []


def work():
    for _ in range(10):
        output, _ = program(*arrays)
        grads = gradient(*arrays)
        if not np.allclose(output, wanted, rtol=0, atol=1e-5):
            faults.append("output")
        if not np.isfinite(grads).all():
            faults.append("gradient")


workers = [threading.Thread(target=work) for _ in range(4)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
print(faults)
"""
    assert output_of(COMMON + script, timeout=300, REGARD_NUM_THREADS=threads) == "[]"


def test_several_devices(output_of):
    """Compute attention for an array that is divided among two devices, and for one on the
    second."""
    script = """
from jax.sharding import Mesh, NamedSharding, PartitionSpec

devices = jax.devices()
assert len(devices) == 2
arrays = [normal(2, 4, 9, 8) for _ in range(3)]
wanted = regard.scaled_dot_product_attention(*arrays)
mesh = Mesh(np.array(devices), ("batch",))
split = [jax.device_put(x, NamedSharding(mesh, PartitionSpec("batch"))) for x in arrays]
on_second = [jax.device_put(x, devices[1]) for x in arrays]
for given in (split, on_second):
    for function in (attend, jax.jit(attend)):
        assert (np.asarray(function(*given)) == wanted).all()
parts = jax.shard_map(
    attend, mesh=mesh, in_specs=PartitionSpec("batch"), out_specs=PartitionSpec("batch")
)
assert (np.asarray(jax.jit(parts)(*split)) == wanted).all()
print("done")
"""
    flags = "--xla_force_host_platform_device_count=2"
    assert output_of(COMMON + script, timeout=120, XLA_FLAGS=flags) == "done"


@pytest.mark.slow
def test_a_compiled_program_means_the_same_in_another_process(output_of, tmp_path):
    """JAX may keep programs on disk: they contain no number that means something else in another
    process."""
    script = """
import sys
jax.config.update("jax_compilation_cache_dir", {folder!r})
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
x = np.arange(24, dtype=np.float32).reshape(1, 3, 8) / 24
calls = {order}
for options in calls:
    actual = jax.jit(lambda x: attend(x, x, x, **options))(x)
    assert (np.asarray(actual) == regard.scaled_dot_product_attention(x, x, x, **options)).all()
print("same")
"""
    one, two = {"is_causal": True}, {"scale": 3.5, "window": (1, 0)}
    for order in ([one, two], [two, one]):
        text = script.replace("{folder!r}", repr(str(tmp_path))).replace("{order}", repr(order))
        assert output_of(COMMON + text, timeout=120) == "same"


def test_a_process_may_end_while_programs_run(output_of):
    script = """
program = jax.jit(lambda x: attend(x + 1, x, x))
program(normal(1, 8, 4000, 64))
program(normal(1, 8, 4000, 64))
print("over")
"""
    assert output_of(COMMON + script, timeout=60) == "over"


@pytest.mark.slow
def test_ctrl_c_ends_a_program(output_of):
    """If XLA computes on the main thread, the program ends with a JAX error."""
    script = """
import os, signal

query = normal(1, 8, 6000, 64)
program = jax.jit(lambda x: attend(x, x, x))
jax.block_until_ready(program(query[:, :, :64]))
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    while True:
        jax.block_until_ready(program(query))
except KeyboardInterrupt:
    print("interrupted")
except jax.errors.JaxRuntimeError as error:
    assert "KeyboardInterrupt" in str(error)
    print("interrupted")
print(program(query[:, :, :64]).shape)
"""
    assert output_of(COMMON + script, timeout=120) == "interrupted\n(1, 8, 64, 64)"
