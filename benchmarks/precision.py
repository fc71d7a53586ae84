"""Time a precision relative to float32 with one thread: medians of interleaved calls.

python benchmarks/precision.py int8 [--target x86_v3] [--without-vnni] [--size 8x128x64 ...]
python benchmarks/precision.py bfloat16 [--gradients] [--size 8x128x64 ...]

With bfloat16, PyTorch is timed too if it is installed, with bfloat16 tensors on one thread.
"""

import argparse
import statistics

import numpy as np
from interleaved import medians, ratios

import regard

SIZES = ((8, 512, 64), (2, 2048, 64), (1, 4096, 64), (2, 2048, 128), (1, 4096, 128))
ROUNDS = 15


def of_regard(arrays, gradients, precision):
    options = {"threads": 1, "precision": precision}
    if not gradients:
        return lambda: regard.scaled_dot_product_attention(*arrays, **options)

    def call():
        output, lse = regard.scaled_dot_product_attention(*arrays, return_lse=True, **options)
        regard.scaled_dot_product_attention_backward(arrays[0], *arrays, output, lse, **options)

    return call


def of_torch(arrays, gradients):
    import torch

    torch.set_num_threads(1)
    tensors = [torch.tensor(array[None], dtype=torch.bfloat16) for array in arrays]
    attention = torch.nn.functional.scaled_dot_product_attention
    if not gradients:
        return lambda: attention(*tensors)
    inputs = [tensor.requires_grad_() for tensor in tensors]

    def call():
        torch.autograd.grad(attention(*inputs), inputs, tensors[0].detach())

    return call


def calls_of(arrays, options):
    calls = {
        "float32": of_regard(arrays, options.gradients, None),
        options.precision: of_regard(arrays, options.gradients, options.precision),
    }
    if options.precision == "bfloat16":
        try:
            calls["PyTorch"] = of_torch(arrays, options.gradients)
        except ImportError:
            print("PyTorch is not installed")
    return calls


def size(text):
    heads, length, dim = map(int, text.split("x"))
    return heads, length, dim


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("precision", choices=("int8", "bfloat16"))
    parser.add_argument("--target", default=regard.active_target(), choices=regard.cpu_targets())
    parser.add_argument("--without-vnni", action="store_true", help="as on a CPU without VNNI")
    parser.add_argument("--gradients", action="store_true", help="forward and backward, bfloat16")
    parser.add_argument(
        "--size", nargs="+", type=size, default=SIZES, help="heads x length x dim, such as 8x128x64"
    )
    options = parser.parse_args()
    if options.gradients and options.precision == "int8":
        parser.error("--gradients is for bfloat16: int8 has no gradients")
    if options.without_vnni and options.precision != "int8":
        parser.error("--without-vnni is for int8")
    regard._core.testing.set_target(options.target)
    regard._core.testing.forbid_int8(options.without_vnni)
    random = np.random.default_rng(0)
    for shape in options.size:
        arrays = random.standard_normal((3, *shape), dtype=np.float32)
        plan = regard.explain(*arrays, precision=options.precision)
        times = medians(ROUNDS, calls_of(arrays, options))
        print(f"{plan.target} ({plan.instruction}) {'x'.join(map(str, shape))}:", end="")
        for name, ratio in ratios(times, "float32").items():
            print(
                f"  {name} {statistics.median(times[name]) * 1e3:.1f} ms, {1 / ratio:.2f}x", end=""
            )
        print()


if __name__ == "__main__":
    main()
