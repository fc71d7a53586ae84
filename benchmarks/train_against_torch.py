"""Compare the speed of training the model of examples/train.py on regard and PyTorch, interleaved.

python benchmarks/train_against_torch.py [--rounds 5] [--steps 30] [--batch 16] [--threads 2]

Each measurement runs in a fresh process in which all libraries have the same number of threads.
Both engines start from the same parameters and see the same batches, so that their losses agree up
to rounding, as the last line shows. PyTorch runs eagerly, with its own attention, one product for
queries, keys and values, and its fused AdamW. The first five steps of a process are not timed.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
import time

import numpy as np

import regard
from regard._bench.fresh_process import run_in_fresh_process

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "examples"))
from training.model import Sizes
from training.run import BETAS, DECAY, EPSILON, LARGEST_NORM, Run, learning_rate

PATIENCE = 600.0
UNTIMED = 5
CHARACTERS = 96


def torch_loss(parameters, sizes, tokens, targets):
    """Return the mean loss of PyTorch tensors, named and shaped like the example's parameters."""
    import torch
    from torch.nn import functional

    length, half = tokens.shape[1], sizes.width // sizes.heads // 2
    x = parameters["embedding"][tokens]
    powers = torch.arange(half, dtype=torch.float64) / half
    angles = torch.arange(length, dtype=torch.float64)[:, None] / 10000**powers
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    def turned(vectors):
        first, second = vectors.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def normed(x, gain):
        return functional.rms_norm(x, (sizes.width,), gain, 1e-6)

    for layer in range(sizes.layers):
        own = {
            name.partition(".")[2]: tensor
            for name, tensor in parameters.items()
            if name.startswith(f"{layer}.")
        }
        weight = torch.cat([own["W_query"], own["W_key"], own["W_value"]])
        product = functional.linear(normed(x, own["attention_norm"]), weight)
        heads = product.unflatten(-1, (3, sizes.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(
            turned(heads[0]), turned(heads[1]), heads[2], is_causal=True
        )
        x = x + functional.linear(attended.transpose(1, 2).flatten(2), own["out_proj"])
        hidden = functional.gelu(normed(x, own["mlp_norm"]) @ own["up"], approximate="tanh")
        x = x + functional.linear(hidden, own["down"])
    scores = functional.linear(normed(x, parameters["norm"]), parameters["embedding"])
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def torch_parameters(parameters):
    """Copy the example's parameters to tensors that get gradients."""
    import torch

    return {name: torch.tensor(view, requires_grad=True) for name, view in parameters.views.items()}


def torch_step(run, threads):
    """Return a function that trains with PyTorch from the state of `run`, on its batches."""
    import torch

    torch.set_num_threads(threads)
    parameters = torch_parameters(run.parameters)
    kinds = [[p for p in parameters.values() if p.ndim == ndim] for ndim in (2, 1)]
    groups = [
        {"params": kind, "weight_decay": decay}
        for kind, decay in zip(kinds, (DECAY, 0.0), strict=True)
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=BETAS, eps=EPSILON, fused=True)

    def step(number):
        tokens, targets = (torch.from_numpy(part) for part in run.draw_batch())
        optimizer.zero_grad()
        loss = torch_loss(parameters, run.sizes, tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters.values(), LARGEST_NORM)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(number, run.steps)
        optimizer.step()
        return loss.item()

    return step


def measure(request, _send):
    """Train in this process; return the median time of a step, and the losses."""
    engine, steps, batch, threads = request
    regard.set_num_threads(1)
    text = np.random.default_rng(1).integers(0, CHARACTERS, 100_000)
    run = Run(Sizes(CHARACTERS), text, text[:300], seed=0, batch=batch, steps=1000, threads=threads)
    step = torch_step(run, threads) if engine == "torch" else lambda _number: run.step()
    losses, times = [], []
    for number in range(UNTIMED + steps):
        start = time.perf_counter()
        losses.append(step(number))
        times.append(time.perf_counter() - start)
    return {"time": statistics.median(times[UNTIMED:]), "losses": losses}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=regard.get_num_threads())
    options = parser.parse_args()

    engines = ["regard", "torch"]
    answers = {engine: [] for engine in engines}
    for number in range(options.rounds):
        for engine in engines if number % 2 == 0 else engines[::-1]:
            request = engine, options.steps, options.batch, options.threads
            answers[engine].append(
                run_in_fresh_process(measure, request, threads=options.threads, patience=PATIENCE)
            )
    tokens = options.batch * Sizes(CHARACTERS).context
    print(f"{options.threads} threads, {options.rounds} processes each, {tokens:,} tokens per step")
    for engine in engines:
        speeds = sorted(tokens / answer["time"] for answer in answers[engine])
        print(
            f"{engine:<7} {statistics.median(speeds):8,.0f} tokens/s"
            f"  ({speeds[0]:,.0f} to {speeds[-1]:,.0f})"
        )
    ratios = sorted(
        torch["time"] / own["time"]
        for own, torch in zip(answers["regard"], answers["torch"], strict=True)
    )
    print(
        f"regard over torch: {statistics.median(ratios):.2f}  ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    )
    losses = [np.array(answers[engine][0]["losses"]) for engine in engines]
    print(f"largest difference of their losses: {np.abs(losses[0] - losses[1]).max():.1e}")


if __name__ == "__main__":
    main()
