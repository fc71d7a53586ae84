"""Time regard.jax, jax.nn.dot_product_attention and the NumPy call, interleaved.

    python benchmarks/jax_call.py [--rounds 20]

Each number is the median over rounds of one forward call, or of one call with its gradients, both
compiled. Both libraries choose their numbers of threads: set REGARD_NUM_THREADS and the affinity of
the process (taskset) to compare equal numbers. The difference between the first two columns is the
overhead of XLA.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from interleaved import median

import regard
import regard.jax

# Batch, heads, q_len, kv_len, head_dim.
CASES = [
    (1, 1, 6, 6, 16),
    (1, 4, 16, 16, 32),
    (1, 8, 128, 128, 64),
    (1, 8, 1024, 1024, 64),
    (1, 8, 1, 8192, 128),
    (4, 8, 512, 512, 64),
]


def swapped(x):
    return x.swapaxes(-3, -2)


def theirs(query, key, value):
    """Accept heads after the length, as in JAX's layout, so that no copy is counted."""
    return jax.nn.dot_product_attention(query, key, value, is_causal=query.shape[-3] > 1)


def ours(query, key, value):
    causal = query.shape[-2] > 1
    return regard.jax.scaled_dot_product_attention(query, key, value, is_causal=causal)


def with_gradients(function):
    def loss(query, key, value):
        return (function(query, key, value) ** 2).sum()

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))


def calls(case):
    """Return the timed functions by column. They have no arguments and wait for their results."""
    batch, heads, q_len, kv_len, dim = case
    random = np.random.default_rng(0)
    shapes = (batch, heads, q_len, dim), (batch, heads, kv_len, dim), (batch, heads, kv_len, dim)
    arrays = [random.standard_normal(shape, dtype=np.float32) for shape in shapes]
    here = [jnp.asarray(x) for x in arrays]
    there = [jnp.asarray(np.ascontiguousarray(swapped(x))) for x in arrays]
    forward, forward_of_jax = jax.jit(ours), jax.jit(theirs)
    both, both_of_jax = with_gradients(ours), with_gradients(theirs)
    causal = q_len > 1
    return {
        "numpy": lambda: regard.scaled_dot_product_attention(*arrays, is_causal=causal),
        "regard.jax": lambda: jax.block_until_ready(forward(*here)),
        "jax.nn": lambda: jax.block_until_ready(forward_of_jax(*there)),
        "regard.jax grad": lambda: jax.block_until_ready(both(*here)),
        "jax.nn grad": lambda: jax.block_until_ready(both_of_jax(*there)),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    print(f"regard {regard.__version__}, jax {jax.__version__}, microseconds")
    for number, case in enumerate(CASES):
        columns = calls(case)
        if number == 0:
            print("batch heads q_len kv_len dim".ljust(30), *(name.rjust(16) for name in columns))
        for function in columns.values():
            function()  # compiles
        shown = (f"{1e6 * seconds:16.1f}" for seconds in median(rounds, columns).values())
        print(" ".join(map(str, case)).ljust(30), *shown)


if __name__ == "__main__":
    main()
