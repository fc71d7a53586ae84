"""Import optional packages when they are needed."""

from __future__ import annotations

import importlib
from typing import Any


def needed(module: str, caller: str, extra: str) -> Any:
    """Import a module of an optional package, or raise ImportError that says how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is not None and error.name.partition(".")[0] != package:
            raise  # it is there, and lacks something itself
        # pip takes regard itself from what is installed, wherever that came from, and asks an index
        # for the extra's packages alone.
        raise ImportError(
            f"{caller} needs the package {package}: pip install 'regard[{extra}]'"
        ) from error
