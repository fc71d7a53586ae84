"""The command ``info``: the compiled kernels, the kernels in use, and the reasons."""

from __future__ import annotations

import argparse
import json

import regard
from regard._cli.arguments import add_options
from regard._cli.terminal import bold, dim
from regard._runtime.config import report_of

SUMMARY = "version, compiler, instruction sets, threads and GPUs"
USAGE = "python -m regard info [--json]"

DESCRIPTION = """\
Show the version, the compiler, Python and NumPy, the CPU's features, the
compiled instruction sets, the instruction set in use, the number of threads, and
the threading layer, each with its reason. Then show the CUDA module, its driver
and devices, and how far each of its kernels has been proven: compiled, emulated on
the CPU, or run on a GPU.
"""
EPILOG = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    add_options(parser, ("--json", bool, False, "print one JSON object"))


def run(options: argparse.Namespace) -> int:
    """Print the configuration, and return the exit status."""
    config = regard.show_config(mode="dicts")
    if options.json:
        print(json.dumps(config, allow_nan=False))
    else:
        print("\n".join(report_of(config, bold, dim)))
    return 0
