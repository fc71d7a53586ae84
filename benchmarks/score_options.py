"""Time calls with score options relative to the plain call: medians of interleaved calls.

The score function is the C library's `abs`, which does not touch the scores: only the call of the
function is timed.

python benchmarks/score_options.py [--target x86_v3] [--rounds 15]
"""

from __future__ import annotations

import argparse
import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from interleaved import medians, ratios

import regard

if TYPE_CHECKING:
    from collections.abc import Callable


class Shape(NamedTuple):
    """The lengths of the axes of a call."""

    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int


SHAPES = (
    Shape(4, 4, 1024, 1024, 32),
    Shape(4, 4, 1024, 1024, 64),
    Shape(4, 4, 1024, 1024, 128),
    Shape(8, 2, 512, 1024, 64),
    Shape(8, 8, 1, 4000, 64),
)


def options_of(shape: Shape) -> dict[str, dict[str, Any]]:
    nothing = ctypes.cast(ctypes.CDLL(None).abs, ctypes.c_void_p)
    distances = 2 * max(shape.q_len, shape.kv_len) - 1
    table = np.random.default_rng(1).standard_normal((shape.heads, distances), dtype=np.float32)
    return {
        "plain": {},
        "scale per head": {"scale": np.full(shape.heads, 0.125)},
        "softcap": {"softcap": 20.0},
        "alibi_slopes": {"alibi_slopes": np.full(shape.heads, 0.1, np.float32)},
        "distance_bias": {"distance_bias": table},
        "score_function": {
            "score_function": regard.ScoreFunction(nothing, nothing, dtype=np.float32)
        },
    }


def forward_calls(shape: Shape, arrays: Any) -> dict[str, Callable[[], object]]:
    def call(options: dict[str, Any]) -> Callable[[], object]:
        return lambda: regard.scaled_dot_product_attention(*arrays, threads=1, **options)

    return {name: call(options) for name, options in options_of(shape).items()}


def backward_calls(shape: Shape, arrays: Any) -> dict[str, Callable[[], object]]:
    def call(options: dict[str, Any], **more: Any) -> Callable[[], object]:
        output, lse = regard.scaled_dot_product_attention(*arrays, return_lse=True, **options)
        return lambda: regard.scaled_dot_product_attention_backward(
            output, *arrays, output, lse, threads=1, **options, **more
        )

    calls = {name: call(options) for name, options in options_of(shape).items()}
    wanted = ("query", "key", "value", "distance_bias")
    calls["distance_bias and its gradient"] = call(
        options_of(shape)["distance_bias"], with_respect_to=wanted
    )
    return calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--target", default=regard.active_target(), choices=regard.cpu_targets())
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    regard._core.testing.set_target(arguments.target)
    print(f"{arguments.target}, one thread")
    random = np.random.default_rng(0)
    for shape in SHAPES:
        heads, kv_heads, q_len, kv_len, head_dim = shape
        arrays = [
            random.standard_normal(lengths, dtype=np.float32)
            for lengths in ((heads, q_len, head_dim), *2 * ((kv_heads, kv_len, head_dim),))
        ]
        print(", ".join(f"{name} {number}" for name, number in shape._asdict().items()))
        for kind, calls in (("forward", forward_calls), ("backward", backward_calls)):
            times = medians(arguments.rounds, calls(shape, arrays))
            for name, ratio in ratios(times, "plain").items():
                if name != "plain":
                    print(f"  {kind:8}  {name:32} {ratio:.3f}")


if __name__ == "__main__":
    main()
