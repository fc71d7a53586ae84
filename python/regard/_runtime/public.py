"""Public objects are from the module that users import, not from where they are defined.

Tracebacks, pickles and documentation name that module, which stays when the source moves.
"""

from __future__ import annotations

from typing import Any, TypeVar

Public = TypeVar("Public")


def public(thing: Public) -> Public:
    """Decorate a class or a function that is a name of `regard`."""
    thing.__module__ = "regard"
    return thing


def publish(module: dict[str, Any]) -> None:
    """Make a module the one of the names in its ``__all__`` that its parts define."""
    for name in module["__all__"]:
        thing = module[name]
        if getattr(thing, "__module__", "").startswith(f"{module['__name__']}."):
            thing.__module__ = module["__name__"]
