"""Import optional packages when they are needed."""

from __future__ import annotations

import importlib
from typing import Any


def needed(module: str, caller: str, extra: str) -> Any:
    """Import a module of an optional package, or raise ImportError with installation advice."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is not None and error.name.partition(".")[0] != package:
            raise  # the module exists, but one of its own imports fails
        raise ImportError(
            f'{caller} needs the {package} package: in a clone of regard, pip install ".[{extra}]"'
        ) from error
