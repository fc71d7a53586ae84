"""The command ``generate``: the continuation of a text by a language model."""

from __future__ import annotations

import argparse
import itertools

import regard
from regard._cli.arguments import MODELS, add_model_options, text_of, whole_number
from regard._cli.terminal import Progress
from regard._show.text import printable

SUMMARY = "the continuation of a text by a language model"
USAGE = "python -m regard generate (--smollm2 | MODEL) [options] text ..."

DESCRIPTION = """\
Continue a text with a language model, and print the text as it is generated. The models
are experimental.
"""

EPILOG = f"""\
{MODELS}
examples:
  python -m regard generate model.gguf "Once upon a time"
  python -m regard generate --smollm2 --temperature 0.8 --seed 1 "Once upon a time"
  python -m regard generate models/llama --weights int8 --cache-dtype int8 "A text"
"""

_STORED = ("float32", "float16", "bfloat16", "int8")
_MOST_TOKENS = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    tokens = whole_number(_MOST_TOKENS)
    caches = (*_STORED, "float8_e4m3fn", "q4_1")
    add_model_options(
        parser,
        ("--tokens N", tokens, 64, "the most tokens to generate, by default 64"),
        ("--temperature T", float, 0.0, "0, the default, picks the most likely token"),
        ("--top-k N", tokens, None, "draw from this many of the most likely tokens"),
        ("--top-p P", float, None, "draw from the tokens of this total probability"),
        ("--seed N", whole_number(2**63 - 1, 0), 0, "seed of the draws, by default 0"),
        ("--weights", _STORED, "int8", "type of the weights, by default int8"),
        ("--cache-dtype", caches, "float32", "type of keys and values, by default float32"),
        ("--window N", tokens, None, "number of last tokens that the model sees"),
    )


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    path, prompt = text_of(options)
    weights = None if options.weights == "float32" else options.weights
    with Progress(1) as progress:
        progress.show(("reading the model", ""))
        model = regard.models.load(path, weight_dtype=weights)
    pieces = model.generate(
        prompt,
        options.tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        rng=options.seed,
        dtype=options.cache_dtype,
        keep_last=options.window,
    )
    for text in itertools.chain([prompt], pieces):
        _write(text)
    print()
    return 0


def _write(text: str) -> None:
    """Print a part of the text; only its line ends and tabs may control the terminal."""
    lines = (
        "\t".join(printable(part) if part else "" for part in line.split("\t"))
        for line in text.split("\n")
    )
    print("\n".join(lines), end="", flush=True)
