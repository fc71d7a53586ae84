"""What can be asked for: the arguments, the commands, and which of them runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import regard

from . import demo, info
from .arguments import MAX_THREADS, Parser, whole_number
from .terminal import Terminal
from .words import UnusableSentenceError

COMMANDS = ("demo", "info", "bench")

USAGE = """\
python -m regard [demo] [--no-timing] [--threads N] [--json] [sentence ...]
       python -m regard info [--help] [--json]
       python -m regard bench [--help] [options]"""

DESCRIPTION = """\
Exact fused attention for NumPy arrays, on an example: a sentence goes through
embedding, position, projection, scores, scaling, mask, softmax and context, and
a larger problem is timed against NumPy, and PyTorch where it is installed.

commands:
  demo [sentence ...]   the example; this is what runs when no command is named
  info                  version, compiler, targets and threads, each with its why
  bench                 every engine that is installed, timed on a table of cases
"""

INFO_DESCRIPTION = """\
Show what is compiled, what runs and why: version, compiler, Python and NumPy, the
instruction sets, the one that is active, and the number of threads.
"""

EPILOG = """\
A first word that names a command is that command. What follows -- is a sentence
in any case: python -m regard -- info. A sentence of one word needs -- or demo
before it: it may be a command that was mistyped.

environment:
  REGARD_TARGET         the instruction set to use, by default the best one
  REGARD_NUM_THREADS    the number of threads
  NO_COLOR              no colours

exit status: 0 all went well, 1 a failure or Ctrl-C, 2 wrong arguments
"""


def run(argv: Sequence[str]) -> int:
    """Parse the arguments and run the command that they name.

    Parameters
    ----------
    argv : sequence of str
        The arguments without the program's name.

    Returns
    -------
    int
        The exit status.
    """
    parser = _parser()
    try:
        return _run(parser, list(argv))
    except SystemExit as end:  # argparse ends the process, where a function returns
        return int(end.code or 0)


def _run(parser: argparse.ArgumentParser, argv: list[str]) -> int:
    if argv[:1] == ["bench"]:
        from .bench.command import run as run_bench

        return run_bench(argv[1:])
    # argparse loses a "--" among intermixed arguments; what follows it is words, even "info".
    end = argv.index("--") if "--" in argv else len(argv)
    options = parser.parse_intermixed_args(argv[:end])
    words: list[str] = options.words
    is_named = bool(words) and words[0] in COMMANDS
    command = words.pop(0) if is_named else "demo"
    if options.help:
        (_info_parser() if command == "info" else parser).print_help()
        return 0
    if not is_named and end == len(argv):
        _refuse_one_word(parser, " ".join(words).split())
    words += argv[end + 1 :]
    if command == "bench":
        parser.error("bench comes before its options; for a sentence: python -m regard -- bench")
    terminal = Terminal.of(sys.stdout)
    if command == "info":
        _refuse_for_info(parser, options)
        return info.run(terminal, as_json=options.json)
    try:
        return demo.run(
            terminal,
            " ".join(words) if words else None,
            threads=options.threads,
            with_timing=options.timing,
            as_json=options.json,
        )
    except UnusableSentenceError as error:
        parser.error(str(error))


def _refuse_one_word(parser: argparse.ArgumentParser, words: list[str]) -> None:
    if len(words) == 1:
        parser.error(
            f"there is no command {words[0]!r}, only {', '.join(COMMANDS)}; "
            f"for a sentence of one word: python -m regard demo {words[0]}"
        )


def _refuse_for_info(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.words:
        sentence = " ".join(["info", *options.words])
        parser.error(f"info takes no words; for a sentence: python -m regard -- {sentence}")
    if options.threads is not None:
        parser.error("--threads does not go with info")
    if not options.timing:
        parser.error("--no-timing does not go with info")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m regard",
        usage=USAGE,
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    # No action of argparse's: whose help it is depends on the command, which may come later.
    parser.add_argument("-h", "--help", action="store_true", help="show this message and exit")
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print the results as one JSON object")
    parser.add_argument(
        "--no-timing", dest="timing", action="store_false", help="leave the timing out"
    )
    parser.add_argument(
        "--threads",
        type=whole_number(MAX_THREADS),
        metavar="N",
        help="threads to use, the same for all engines",
    )
    parser.add_argument("--version", action="version", version=f"regard {regard.__version__}")
    return parser


def _info_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m regard info",
        description=INFO_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print it as one JSON object")
    return parser
