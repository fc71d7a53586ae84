"""The instructions that the other engines report.

A ratio to an engine with vectors of half the width is misleading unless the report states that.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable

_NUMPY = """
import numpy, threadpoolctl
for library in threadpoolctl.threadpool_info():
    if library["user_api"] == "blas":
        print(library["internal_api"], library["version"], "kernels for", library["architecture"])
"""
_TORCH = """
import torch
print("ATen", torch.backends.cpu.get_cpu_capability())
a = torch.ones(64, 64)
a @ a
torch.nn.functional.conv2d(torch.ones(1, 8, 16, 16), torch.ones(8, 8, 3, 3))
"""
# The lines in which a library names its instructions, with groups for the parts to show.
_SAYS = (
    re.compile(r"^(ATen .*|openblas .*|mkl .*)$", re.MULTILINE),
    re.compile(r"^MKL_VERBOSE (oneMKL [\w. ]*?) Product.* architecture (.*?), Lnx", re.MULTILINE),
    re.compile(r"^onednn_verbose.*(isa:[^\n]*)", re.MULTILINE),
)
_PROGRAMS = {"NumPy": _NUMPY, "PyTorch": _TORCH}


def instructions_of(engines: Iterable[str]) -> dict[str, str]:
    """Ask each engine in a separate process for its instructions; "not said" without an answer."""
    return {engine: _asked(engine) for engine in engines if engine != "regard"}


def _asked(engine: str) -> str:
    program = _PROGRAMS.get(engine)
    if program is None:
        return "not said"
    environment = os.environ | {"MKL_VERBOSE": "1", "ONEDNN_VERBOSE": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
    except subprocess.TimeoutExpired:
        return "not said"
    return said(done.stdout) or "not said"


def said(text: str) -> str:
    """Return the instructions that libraries name in their output."""
    found = [" for ".join(match.groups()) for says in _SAYS for match in says.finditer(text)]
    return "; ".join(dict.fromkeys(found))
