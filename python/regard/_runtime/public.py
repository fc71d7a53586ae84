"""Assign public objects to the module that users import, not to the module that defines them.

Tracebacks, pickles and documentation name the public module, which does not change if the source
moves.
"""

from __future__ import annotations

from typing import Any, TypeVar

Public = TypeVar("Public")


def public(thing: Public) -> Public:
    """Decorate a class or a function that is public in `regard`."""
    thing.__module__ = "regard"
    return thing


def publish(module: dict[str, Any]) -> None:
    """Assign the names in a module's ``__all__`` to the module, if its submodules define them."""
    for name in module["__all__"]:
        thing = module[name]
        if getattr(thing, "__module__", "").startswith(f"{module['__name__']}."):
            thing.__module__ = module["__name__"]
