"""One call of every family that divides its work among threads, for tests and for the scripts that
they run in separate processes."""

import pathlib
import textwrap

import numpy as np

import regard

sdpa = regard.scaled_dot_product_attention


def with_families(script):
    """Return the script for a separate process, with `call_families` and the usual modules."""
    return f"""
import os, random, resource, sys, threading
import numpy as np, regard
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
from call_families import call_families
{textwrap.dedent(script)}
"""


def call_families(length=1024):
    """Return functions of the number of threads, by family. They compute the same in each call, in
    their own arrays if the family has `out`, and return arrays."""

    def normal(*shape):
        return generator.standard_normal(shape).astype(np.float32)

    generator = np.random.default_rng(0)
    arrays = [normal(1, 4, length, 64) for _ in range(3)]
    query, key, _ = arrays
    out = np.empty_like(query)
    output, lse = sdpa(*arrays, is_causal=True, return_lse=True)
    gradients = regard.AttentionGradients(*map(np.empty_like, arrays))
    token, cache = normal(1, 16, 1, 64), normal(1, 4, 8 * length, 64)
    decoded = np.empty_like(token)
    factors, product = normal(2, length, length), np.empty((length, length), np.float32)
    many, products = normal(96, 128, 64), np.empty((96, 128, 128), np.float32)
    grad_output = normal(*output.shape)

    def backward(threads):
        regard.scaled_dot_product_attention_backward(
            grad_output, *arrays, output, lse, is_causal=True, threads=threads, out=gradients
        )
        return gradients[:3]

    return {
        "forward": lambda threads: [sdpa(*arrays, threads=threads, out=out)],
        "int8": lambda threads: [sdpa(*arrays, precision="int8", threads=threads, out=out)],
        "decode": lambda threads: [sdpa(token, cache, cache, threads=threads, out=decoded)],
        "backward": backward,
        "tangent": lambda threads: regard.scaled_dot_product_attention_jvp(
            *arrays, *arrays, threads=threads
        ),
        "summary": lambda threads: [
            statistic
            for statistic in regard.summarize_attention(query, key, threads=threads)
            if isinstance(statistic, np.ndarray)
        ],
        "matmul": lambda threads: [regard.matmul(*factors, threads=threads, out=product)],
        "products": lambda threads: [
            regard.matmul(many, many.swapaxes(1, 2), threads=threads, out=products)
        ],
    }
