"""Time regard.torch and PyTorch's own attention, interleaved, in one process.

python benchmarks/torch_call.py [threads]
"""

import sys
from itertools import product

import torch
import torch.nn.functional as F
from interleaved import medians

import regard
import regard.torch

ROUNDS = 15
SHAPES = {
    "small, 1x4x16x32": ((1, 4, 16, 32),) * 3,
    "decode, 1x32x1x128 of 1024": ((1, 32, 1, 128), (1, 32, 1024, 128), (1, 32, 1024, 128)),
    "1x8x1024x64": ((1, 8, 1024, 64),) * 3,
    "1x16x4096x64": ((1, 16, 4096, 64),) * 3,
}


def forward(attention, query, key, value, is_causal):
    return lambda: attention(query, key, value, is_causal=is_causal)


def with_gradients(attention, query, key, value, is_causal):
    query, key, value = (x.detach().requires_grad_() for x in (query, key, value))
    grad = torch.randn(*query.shape[:-1], value.shape[-1], dtype=query.dtype)

    def step():
        output = attention(query, key, value, is_causal=is_causal)
        torch.autograd.grad(output, (query, key, value), grad)

    return step


def main():
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    torch.set_num_threads(threads)
    regard.set_num_threads(threads)
    print(f"torch {torch.__version__}, {regard.active_target()}, {threads} thread(s)")
    print(f"{'':48}{'regard':>12}{'PyTorch':>12}{'ratio':>8}")
    kinds = {"no gradient": forward, "forward and backward": with_gradients}
    types = (torch.float32, torch.bfloat16)
    for (name, shapes), (kind, make), dtype in product(SHAPES.items(), kinds.items(), types):
        tensors = [torch.randn(shape).to(dtype) for shape in shapes]
        is_causal = tensors[0].shape == tensors[1].shape
        calls = {
            "regard": make(regard.torch.scaled_dot_product_attention, *tensors, is_causal),
            "PyTorch": make(F.scaled_dot_product_attention, *tensors, is_causal),
        }
        ours, theirs = map(min, medians(ROUNDS, calls).values())
        what = f"{name}, {str(dtype).removeprefix('torch.')}, {kind}"
        print(f"{what:48}{ours * 1e6:10.1f}us{theirs * 1e6:10.1f}us{ours / theirs:8.2f}")


if __name__ == "__main__":
    main()
