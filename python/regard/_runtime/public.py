"""Assign public objects to the module that users import, not to the module that defines them.

Tracebacks, pickles and documentation name the public module, which does not change if the source
moves.
"""

from __future__ import annotations

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
