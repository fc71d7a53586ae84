"""The command ``info``: the compiled kernels, the kernels in use, and the reasons."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from typing import Any

import regard
from regard._cli.terminal import bold, dim
from regard._runtime.config import better_target_note

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
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Print the configuration, and return the exit status."""
    config = regard.show_config(mode="dicts")
    if options.json:
        print(json.dumps(config, allow_nan=False))
    else:
        print("\n".join(line.rstrip() for line in _lines(config)))
    return 0


def _lines(config: dict[str, Any]) -> Iterator[str]:
    def row(name: str, what: str, why: str = "") -> str:
        return f"  {name:<8}  {what}  {dim(why) if why else ''}"

    yield f"{bold('regard')} {config['version']}"
    yield ""
    yield row("compiler", f"{config['compiler']}, {config['build_type']}")
    yield row("python", f"{config['python']}, NumPy {config['numpy']}")
    features = config["cpu_features"]
    yield row("cpu", " ".join(features["found"]) or "nothing beyond the architecture's baseline")
    if features["disabled"]:
        yield row("disabled", " ".join(features["disabled"]), "REGARD_DISABLE_CPU_FEATURES")
    size, source = config["l2_cache_bytes"], "REGARD_L2_CACHE"
    shown = f"{size} bytes" if size % 1024 else f"{size // 1024} KiB"
    yield row("l2 cache", shown, source if os.environ.get(source) else "of one CPU core")
    targets = config["targets"]
    width = max(len(target["name"]) for target in targets)
    for number, target in enumerate(targets):
        runs = "runs here" if target["runnable"] else "does not run here"
        why = "" if target["runnable"] else f"needs {target['missing']}"
        yield row("" if number else "targets", f"{target['name']:<{width}}  {runs}", why)
    yield row("active", bold(config["active_target"]), config["active_reason"])
    if note := better_target_note():
        yield row("", note)
    yield row("threads", bold(str(config["threads"])), config["threads_reason"])
    layer = config["threading_layer"]
    yield row("layer", bold(layer["name"]), layer["reason"])
    if layer["runtime"]:
        yield row("", f"{layer['runtime']}, OpenMP {layer['version']}", layer["path"])
    cuda = config["cuda"]
    yield row("cuda", bold("available") if cuda["available"] else cuda["status"])
    if cuda["toolkit"] is None:
        return
    driver = cuda["driver"] or "none"
    yield row("", f"built with toolkit {cuda['toolkit']}; CUDA version of the driver: {driver}")
    for number, device in enumerate(cuda["devices"]):
        major, minor = device["compute_capability"]
        memory = f"{device['memory_bytes'] / 2**30:.0f} GiB"
        yield row("", f"device {number}: {device['name']}, sm_{major}{minor}, {memory}")
    width = max((len(kernel["name"]) for kernel in cuda["kernels"]), default=0)
    for number, kernel in enumerate(cuda["kernels"]):
        yield row("" if number else "kernels", f"{kernel['name']:<{width}}", kernel["proof"])
