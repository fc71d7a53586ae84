"""The command ``explore``: the attention of a language model on a text, as an HTML page."""

from __future__ import annotations

import argparse

import regard
from regard._arguments.arrays import bytes_of
from regard._cli.arguments import MODELS, add_model_options, text_of, whole_number
from regard._cli.terminal import Progress
from regard._explore import check_place
from regard._explore._function import MOST_TOP_KEYS, plan_of_lengths
from regard._explore._plan import LEAST_DETAIL, MOST_DETAIL
from regard._show.text import printable

SUMMARY = "a language model's attention to a text, as a page for a browser"
USAGE = "python -m regard explore (--smollm2 | MODEL) [options] text ..."

DESCRIPTION = """\
Read a text with a language model, and write one HTML file that shows the attention of
all its layers and heads. The page needs no network and no other file.
"""

EPILOG = f"""\
{MODELS}
examples:
  python -m regard explore --smollm2 "The cat sat on the mat, and then the cat sat down."
  python -m regard explore models/llama "A text" -o llama.html
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
    detail = "maximum rows and columns of a head's picture, by default 512 or what fits"
    top_k = "number of keys of each query with their weights, by default 8"
    page = "where to write the page, by default attention.html"
    max_mb = "refuse to make a page that would be larger, by default 100"
    add_model_options(
        parser,
        ("-o --output FILE", str, "attention.html", page),
        ("--overwrite", bool, False, "replace the file if it exists"),
        (
            "--layers LIST",
            _layer_numbers,
            None,
            "the layers to show, such as 0-5,17, by default all",
        ),
        ("--detail N", whole_number(MOST_DETAIL, LEAST_DETAIL), None, detail),
        ("--top-k N", whole_number(MOST_TOP_KEYS), 8, top_k),
        ("--max-mb N", whole_number(_MOST_MB), 100, max_mb),
    )


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    parser: argparse.ArgumentParser = options.parser
    path, text = text_of(options)
    _check_output(parser, options.output, options.overwrite)
    with Progress(_STEPS) as progress:
        explorer = _explored(options, path, text, progress)
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
    options: argparse.Namespace, path: str, text: str, progress: Progress
) -> regard.Explorer:
    progress.show(("reading the model", ""))
    model = regard.models.load(path, in_memory=False)
    layers = options.layers or list(range(model.num_layers))
    if layers[-1] >= model.num_layers:
        progress.clear()
        options.parser.error(
            f"argument --layers: the model has layers 0 to {model.num_layers - 1}, got {layers[-1]}"
        )
    _, tokens = model.tokens(text)
    if not 0 < len(tokens) <= _MOST_TOKENS:
        raise ValueError(f"the text must have 1 to {_MOST_TOKENS} tokens, got {len(tokens)}")
    pictures = {"detail": options.detail, "top_k": options.top_k}
    plan = plan_of_lengths(len(layers), model.num_heads, tokens, **pictures)
    max_bytes = 1_000_000 * options.max_mb
    if plan.bytes > max_bytes:
        progress.clear()
        options.parser.error(
            f"argument --max-mb: must be at least about {bytes_of(plan.bytes)} for {plan}, "
            f"got {options.max_mb}: name fewer layers with --layers, lower --detail or --top-k, "
            "raise --max-mb, or shorten the text"
        )
    recording = model.record(
        text,
        layers=layers,
        progress=lambda done, all_: progress.show(("reading the text", f"layer {done} of {all_}")),
    )
    return regard.explore(
        recording,
        max_bytes=max_bytes,
        progress=lambda done, all_: progress.show(
            ("looking at its attention", f"{100 * done // all_} %")
        ),
        **pictures,
    )
