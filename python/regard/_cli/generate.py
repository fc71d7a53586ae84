"""The command ``generate``: the continuation of a text by a language model."""

from __future__ import annotations

import argparse
import itertools

import regard
from regard._cli.arguments import MODELS, add_model, add_threads, text_of, whole_number
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
    add_model(parser)
    tokens = whole_number(_MOST_TOKENS)
    parser.add_argument(
        "--tokens",
        type=tokens,
        default=64,
        metavar="N",
        help="the most tokens to generate, by default 64",
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        metavar="T",
        help="0, the default, picks the most likely token",
    )
    parser.add_argument(
        "--top-k", type=tokens, metavar="N", help="draw from this many of the most likely tokens"
    )
    parser.add_argument(
        "--top-p", type=float, metavar="P", help="draw from the tokens of this total probability"
    )
    parser.add_argument(
        "--seed", type=whole_number(2**63 - 1, 0), default=0, metavar="N", help="by default 0"
    )
    parser.add_argument(
        "--weights", choices=_STORED, default="int8", help="type of the weights, by default int8"
    )
    parser.add_argument(
        "--cache-dtype",
        choices=(*_STORED, "float8_e4m3fn", "q4_1"),
        default="float32",
        help="type of keys and values, by default float32",
    )
    parser.add_argument(
        "--window", type=tokens, metavar="N", help="number of last tokens that the model sees"
    )
    add_threads(parser, "maximum number of threads")


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    path, prompt = text_of(options)
    if options.threads is not None:
        regard.set_num_threads(options.threads)
    progress = Progress(1)
    progress.show(("reading the model", ""))
    try:
        weights = None if options.weights == "float32" else options.weights
        model = regard.models.load(path, weight_dtype=weights)
    finally:
        progress.clear()
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
