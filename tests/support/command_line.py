"""The command line as a process: the command, an environment of its own, PyTorch left out."""

import os
import sys

ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("REGARD_", "OMP_", "PYTHONIO", "PYTHONUTF8", "LC_"))
    and name not in ("LANG", "TERM", "COLORTERM", "COLUMNS", "NO_COLOR")
} | {"PYTHONUTF8": "1"}
COMMAND = [sys.executable, "-m", "regard"]

# A stand-in says that PyTorch is missing, so that no test waits for the real one.
NO_TORCH = "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')"
