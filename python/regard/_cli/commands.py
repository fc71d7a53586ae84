"""The commands, and the choice of the command to run.

The module of a command contains its `SUMMARY`, `USAGE`, `DESCRIPTION` and `EPILOG`, and the
functions `add_arguments` and `run`.
"""

from __future__ import annotations

from collections.abc import Sequence

import regard
from regard._cli import bench, demo, explore, generate, info
from regard._cli.arguments import Parser

DESCRIPTION = """\
Exact fused attention for NumPy arrays. Without a command, a sentence goes through
attention step by step, and a larger problem is timed in every installed engine.
"""

EPILOG = """\
examples:
  python -m regard
  python -m regard "any sentence of yours"
  python -m regard info
  python -m regard bench --shape 1,8,512,64
  python -m regard explore --smollm2 "any sentence of yours"
  python -m regard generate model.gguf "Once upon a time"

environment:
  REGARD_TARGET           the instruction set to use, by default the best one
  REGARD_NUM_THREADS      the number of threads
  REGARD_THREADING_LAYER  the source of threads: pool (the default), openmp or serial
  NO_COLOR                no bold or dim text

exit status: 0 success, 1 a failure, a wrong result or Ctrl-C, 2 wrong arguments
"""

_COMMANDS = {"demo": demo, "info": info, "bench": bench, "explore": explore, "generate": generate}


def run(argv: Sequence[str]) -> int:
    """Run the command that the arguments name, and return its or argparse's exit status."""
    names_command = bool(argv) and argv[0] in (*_COMMANDS, "-h", "--help", "--version")
    try:
        options = _parser().parse_args(argv if names_command else ["demo", *argv])
        if not names_command:
            demo.refuse_one_word(options, tuple(_COMMANDS))
        if getattr(options, "threads", None) is not None:
            regard.set_num_threads(options.threads)
        status: int = _COMMANDS[options.command].run(options)
    except SystemExit as end:  # argparse exits, but this function returns
        return int(end.code or 0)
    return status


def _parser() -> Parser:
    parser = Parser(prog="python -m regard", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"regard {regard.__version__}")
    parsers = parser.add_subparsers(dest="command", metavar="command", title="commands")
    for name, command in _COMMANDS.items():
        one = parsers.add_parser(
            name,
            help=command.SUMMARY,
            usage=command.USAGE,
            description=command.DESCRIPTION,
            epilog=command.EPILOG,
        )
        one.set_defaults(parser=one)
        command.add_arguments(one)
    return parser
