"""The command line as a separate process: the command, and an environment without settings."""

import os
import sys

ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("REGARD_", "OMP_", "PYTHONIO", "PYTHONUTF8", "LC_"))
    and name not in ("LANG", "TERM", "COLUMNS", "NO_COLOR")
} | {"PYTHONUTF8": "1"}
COMMAND = [sys.executable, "-m", "regard"]
# Other engines are slow to import, and are not the subject of these tests.
PEERS = ("torch", "onnxruntime")
NOT_INSTALLED = "raise ModuleNotFoundError(name={name!r})"
