"""What comes from other packages, imported when it is needed and not before."""

from __future__ import annotations

import importlib
from typing import Any


def needed(module: str, caller: str) -> Any:
    """Import a module of an optional package, or say how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(
            f"{caller} needs the package {package}: pip install 'regard[models]'"
        ) from error
