"""Measure the overhead of Python in calls so small that the kernels take almost no time.

python benchmarks/small_calls.py
python benchmarks/small_calls.py old/bin/python new/bin/python [--rounds 7]

Times are in microseconds per call; calls of `regard.torch` are timed if PyTorch is installed. With
two interpreters, each with its own regard, their processes are interleaved, in an order that
alternates between rounds, and the last column is the median ratio of the second to the first.
The environment determines the target and the threads: REGARD_TARGET, REGARD_NUM_THREADS.
"""

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import timeit

import numpy as np

SECONDS = 0.02  # the duration of one timing; the best of 5 counts
IMPORT = """
import time, numpy
begin = time.perf_counter()
import regard
print(1e6 * (time.perf_counter() - begin))
"""


def small_calls():
    """Return the calls by name, on arrays of a few rows."""
    import regard

    attend, random = regard.scaled_dot_product_attention, np.random.default_rng(0)

    def drawn(*shape):
        return random.standard_normal(shape, dtype=np.float32)

    query, key, value = drawn(6, 2), drawn(6, 2), drawn(6, 4)
    x, rows = drawn(2, 4, 8, 16), drawn(6, 2, 16)
    starts = [0, 3, 6]
    output, lse = attend(x, x, x, return_lse=True)
    cache, token = regard.KVCache(1, 2, 16), drawn(1, 4, 1, 16)
    prompt, new = drawn(2, 1, 2, 64, 16), drawn(2, 1, 2, 1, 16)
    cache.append(*prompt)
    growing, layers = (
        regard.KVCache(1, 2, 16, keep_last=64),
        regard.KVCaches(2, 1, 2, 16, keep_last=64),
    )
    for each in (growing, *layers):
        each.append(*prompt)

    def step():
        for each in layers:
            each.append(*new)
            each.attend(token)

    layer, many = regard.MultiHeadAttention(32, 4, is_causal=True, rng=0), drawn(1, 8, 32)
    single, few = regard.SelfAttention(3, 2, rng=0), drawn(6, 3)
    mask = np.tri(8, dtype=bool)
    return {
        "a notebook's call": lambda: attend(query, key, value),
        "causal, window": lambda: attend(x, x, x, is_causal=True, window=(3, 0)),
        "mask": lambda: attend(x, x, x, mask),
        "rows": lambda: attend(x, x, x, rows=slice(0, 2), return_weights=True),
        "ragged": lambda: regard.scaled_dot_product_attention_ragged(
            rows, rows, rows, starts, starts
        ),
        "backward": lambda: regard.scaled_dot_product_attention_backward(
            output, x, x, x, output, lse
        ),
        "KVCache.attend": lambda: cache.attend(token),
        "KVCache.append": lambda: growing.append(*new),
        "KVCaches, 2 layers": step,
        "MultiHeadAttention": lambda: layer(many),
        "SelfAttention": lambda: single(few),
        "summarize_attention": lambda: regard.summarize_attention(x, x),
        "attention_map": lambda: regard.attention_map(x, x, shape=(8, 8)),
        "explain": lambda: regard.explain(x, x, x),
        "attend_stream": lambda: regard.attend_stream(x, [(x, x)]),
    }


def torch_calls():
    """Return the same for PyTorch tensors."""
    import torch

    import regard.torch

    x, attend = torch.ones(2, 4, 8, 16), regard.torch.scaled_dot_product_attention
    leaf = x.clone().requires_grad_()
    return {
        "torch forward": lambda: attend(x, x, x),
        "torch and backward": lambda: torch.autograd.grad(attend(leaf, leaf, leaf), leaf, x),
    }


def timed():
    """Return the place of regard, and the microseconds of each call and of the import."""
    import regard

    calls = small_calls() | (torch_calls() if importlib.util.find_spec("torch") else {})
    importing = [subprocess.check_output([sys.executable, "-c", IMPORT]) for _ in range(5)]
    found = {"import": min(map(float, importing))}
    for name, call in calls.items():
        timer = timeit.Timer(call)
        number = max(1, int(SECONDS * 20 / timer.timeit(20)))
        found[name] = 1e6 * min(timer.repeat(5, number)) / number
    return regard.__path__[0], found


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("interpreters", nargs="*", metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="print one run as JSON")
    arguments = parser.parse_args()
    if arguments.json:
        print(json.dumps(timed()))
        return
    commands = [[each, __file__, "--json"] for each in arguments.interpreters or [sys.executable]]
    rounds = []
    for number in range(arguments.rounds):
        order = range(len(commands))[:: -1 if number % 2 else 1]
        answers = {which: json.loads(subprocess.check_output(commands[which])) for which in order}
        rounds.append([answers[which] for which in sorted(answers)])
    print(*(place for place, _ in rounds[0]), sep="\n")
    for name in rounds[0][0][1]:
        times = [[found[name] for _, found in answers] for answers in rounds]
        medians = [statistics.median(column) for column in zip(*times, strict=True)]
        line = f"{name:20}" + "".join(f"{time:10.2f}" for time in medians)
        if len(commands) == 2:
            line += f"{statistics.median(new / old for old, new in times):8.2f}"
        print(line)


if __name__ == "__main__":
    main()
