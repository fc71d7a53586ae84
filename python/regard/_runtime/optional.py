"""Import modules and optional packages when they are needed."""

from __future__ import annotations

import importlib
import os
from _thread import RLock
from typing import Any

importing = RLock()
"""Held while a part of regard is imported on first use, and by a thread that forks.

Otherwise, a child that is forked while another thread imports a module would wait for it forever.
"""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=importing.acquire,
        after_in_parent=importing.release,
        after_in_child=importing.release,
    )


def needed(module: str, caller: str, extra: str) -> Any:
    """Import a module of an optional package, or raise ImportError with installation advice."""
    try:
        with importing:
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is not None and error.name.partition(".")[0] != package:
            raise  # the module exists, but one of its own imports fails
        raise ImportError(
            f'{caller} needs the {package} package: in a clone of regard, pip install ".[{extra}]"'
        ) from error
