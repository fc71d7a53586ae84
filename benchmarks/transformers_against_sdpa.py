"""Time transformers models with regard's and with PyTorch's attention, interleaved.

python benchmarks/transformers_against_sdpa.py
python benchmarks/transformers_against_sdpa.py --match decode --pairs 5 --threads 1

Needs transformers. The models have the shapes of SmolLM2-135M, of ViT-B/16, and, with six layers of
linear attention and two of attention, of Qwen3.5-0.8B, and random float32 weights. The whole model
is timed, not only its attention. Each case is timed in several pairs of fresh processes, one for
each implementation, whose runs are interleaved; the order changes from round to round. The last
figure of a line is the median of the rounds' ratios, sdpa's time over regard's, with their
quartiles.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings

from pairs import serve, times_of

IMPLEMENTATIONS = "sdpa", "regard"
SHAPE = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
}
# The kind of run, the batch, the number of tokens, and the padding tokens of the first entry.
CASES = {
    "prefill, 512 tokens": ("prefill", 1, 512, 0),
    "prefill, 2048 tokens": ("prefill", 1, 2048, 0),
    "prefill, 2 x 1024 tokens, left padding": ("prefill", 2, 1024, 400),
    "decode, after 512 tokens": ("decode", 1, 512, 0),
    "decode, after 4096 tokens": ("decode", 1, 4096, 0),
    "decode, 4 x 1024 tokens, left padding": ("decode", 4, 1024, 400),
    "forward and backward, 512 tokens": ("train", 1, 512, 0),
    "forward and backward, 2048 tokens": ("train", 1, 2048, 0),
    "ViT, 4 images of 224 x 224": ("vit", 4, 224, 0),
    "ViT, an image of 512 x 512": ("vit", 1, 512, 0),
    "ViT, forward and backward, 4 images of 224 x 224": ("vit train", 4, 224, 0),
    "hybrid, prefill, 512 tokens": ("hybrid prefill", 1, 512, 0),
    "hybrid, forward and backward, 512 tokens": ("hybrid train", 1, 512, 0),
}
STEPS = 16


def hybrid(implementation):
    """Return a model whose layers are mostly linear attention."""
    import transformers

    sizes = {"hidden_size": 1024, "intermediate_size": 3584, "vocab_size": SHAPE["vocab_size"]}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256}
    heads |= {"linear_num_key_heads": 16, "linear_num_value_heads": 16}
    config = transformers.Qwen3_5TextConfig(**sizes, **heads, num_hidden_layers=8)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation)


def images(implementation, kind, batch, size):
    """Return a function without arguments to time, which runs ViT-B/16 on images."""
    import torch
    import transformers

    model = transformers.AutoModel.from_config(
        transformers.ViTConfig(image_size=size), attn_implementation=implementation
    ).eval()
    pixels = torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(0))

    def look():
        with torch.inference_mode():
            model(pixels)

    def train():
        model.zero_grad(set_to_none=True)
        model(pixels).last_hidden_state.square().mean().backward()

    return train if kind == "vit train" else look


def runner_of(model, kind, batch, length, padding):
    """Return a function without arguments to time, and the number of measured steps in a call."""
    import torch
    import transformers

    if kind.startswith("vit"):
        return images(model.config._attn_implementation, kind, batch, length), 1
    if kind.startswith("hybrid"):
        model, kind = hybrid(model.config._attn_implementation), kind.removeprefix("hybrid ")
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, SHAPE["vocab_size"], (batch, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, :padding] = 0
    words = {"attention_mask": mask} if padding else {}

    def prefill():
        with torch.inference_mode():
            model(ids, **words, logits_to_keep=1)

    def train():
        model.zero_grad(set_to_none=True)
        model(ids, **words, labels=ids, use_cache=False).loss.backward()

    if kind == "prefill":
        return prefill, 1
    if kind == "train":
        return train, 1
    cache = transformers.DynamicCache(config=model.config)
    with torch.inference_mode():
        model(ids, **words, past_key_values=cache, logits_to_keep=1)
    longer = torch.cat([mask, mask.new_ones(batch, STEPS)], dim=1)

    def decode():
        with torch.inference_mode():
            for step in range(STEPS):
                shown = {"attention_mask": longer[:, : length + step + 1]} if padding else {}
                model(ids[:, :1], **shown, past_key_values=cache)
            cache.crop(-STEPS)

    return decode, STEPS


def serve_cases(implementation, threads, layers):
    warnings.simplefilter("ignore")
    import torch
    import transformers

    import regard.transformers

    regard.transformers.register()
    if threads:
        torch.set_num_threads(threads)
        regard.set_num_threads(threads)
    config = transformers.LlamaConfig(**SHAPE, num_hidden_layers=layers)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation=implementation
    )

    def prepare(name):
        run, count = runner_of(model, *CASES[name])
        run()
        return lambda: seconds_of(run) / count

    serve(prepare)


def seconds_of(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def bound_of_hybrid(run):
    """The speed if the delta rule took no time: its output is the values."""
    from transformers.models.qwen3_5 import modeling_qwen3_5

    whole = statistics.median(seconds_of(run) for _ in range(7))

    def free(query, key, value, **_):
        return value + 0 * query, value.new_zeros(*value.shape[::2], *key.shape[3:] * 2)

    modeling_qwen3_5.torch_chunk_gated_delta_rule = free
    run()
    return whole / statistics.median(seconds_of(run) for _ in range(7))


def bound_of(name, layers):
    """The speed that a model with sdpa would have if its attention took no time."""
    import torch
    import transformers

    config = transformers.LlamaConfig(**SHAPE, num_hidden_layers=layers)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    run, _ = runner_of(model, *CASES[name])
    run()
    if "hybrid" in name:
        return bound_of_hybrid(run)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        run()
    times = {event.key: event.self_cpu_time_total for event in profiled.key_averages()}
    names = ("flash_attention", "scaled_dot_product", "softmax")
    attention = sum(time for key, time in times.items() if any(part in key for part in names))
    return 1 / (1 - attention / sum(times.values()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--match", default="", help="only cases whose name contains this")
    parser.add_argument("--pairs", type=int, default=3, help="pairs of processes")
    parser.add_argument("--rounds", type=int, default=7, help="measurements in a process")
    parser.add_argument("--threads", type=int, default=0, help="0: each library's default")
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument(
        "--bound", action="store_true", help="print the speed if attention took no time"
    )
    parser.add_argument("--serve", choices=IMPLEMENTATIONS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve_cases(options.serve, options.threads, options.layers)
        return
    if options.bound:
        for name in CASES:
            if options.match in name:
                print(f"{name:50}{bound_of(name, options.layers):.2f}", flush=True)
        return
    settings = ["--threads", str(options.threads), "--layers", str(options.layers)]
    commands = [[sys.executable, __file__, *settings, "--serve", each] for each in IMPLEMENTATIONS]
    print(f"{'':50}{'sdpa':>11}{'regard':>11}   sdpa / regard (quartiles)")
    for name in CASES:
        if options.match not in name:
            continue
        times = times_of(commands, name, options.rounds, options.pairs)
        if isinstance(times, str):
            print(f"{name:50}{times}", flush=True)
            continue
        low, middle, high = statistics.quantiles([sdpa / own for sdpa, own in times], n=4)
        sdpa, regard = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
        print(
            f"{name:50}{sdpa:8.1f} ms{regard:8.1f} ms   {middle:.2f} ({low:.2f} to {high:.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
