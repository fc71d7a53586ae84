"""Public names: imports on first use, and objects that belong to the module that users import.

Tracebacks, pickles and documentation name the public module, which does not change if the source
moves.
"""

from __future__ import annotations

import importlib
import os
from _thread import RLock
from types import FunctionType
from typing import Any, TypeVar

Public = TypeVar("Public")


def public(thing: Public) -> Public:
    """Decorate a class or a function that is public in `regard`.

    Methods that a public class inherits from private classes get its name, which errors show.
    """
    thing.__module__ = "regard"
    if isinstance(thing, type):
        for base in thing.__mro__[1:]:
            if base.__module__.startswith("regard._"):
                for name, method in vars(base).items():
                    while isinstance(method, FunctionType) and not name.startswith("_"):
                        if method.__qualname__ == f"{base.__name__}.{name}":
                            method.__qualname__ = f"{thing.__name__}.{name}"
                        method = getattr(method, "__wrapped__", None)  # of a decorator
    return thing


def publish(module: dict[str, Any]) -> None:
    """Assign the names in a module's ``__all__`` to the module, if its submodules define them."""
    for name in module["__all__"]:
        thing = module[name]
        if getattr(thing, "__module__", "").startswith(f"{module['__name__']}."):
            thing.__module__ = module["__name__"]


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
