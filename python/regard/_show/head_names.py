"""The names of layers and heads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from regard._arguments.numbers import listed, mapping


class HeadNames(NamedTuple):
    """The names of the layers and of the heads of a layer; None if they have numbers only."""

    layers: list[str] | None
    heads: list[str] | None

    @classmethod
    def of(cls, names: Mapping[str, Sequence[str]] | None, layers: int, heads: int) -> HeadNames:
        """Return the names of the argument `names`, or raise TypeError or ValueError."""
        given: dict[str, Any] = {} if names is None else dict(mapping("names", names))
        unknown = [str(name) for name in given if name not in cls._fields]
        if unknown:
            raise ValueError(
                f"names must have the keys 'layers', 'heads' or both, got {listed(unknown)}"
            )
        for name, wanted in (("layers", layers), ("heads", heads)):
            if name not in given:
                continue
            is_one = isinstance(given[name], str) or not isinstance(given[name], Iterable)
            texts = [] if is_one else list(given[name])
            if not texts or not all(isinstance(each, str) for each in texts):
                raise TypeError(f"names[{name!r}] must be a sequence of str, got {given[name]!r}")
            if len(texts) != wanted:
                raise ValueError(f"names[{name!r}] must have {wanted} names, got {len(texts)}")
            given[name] = texts
        return cls(given.get("layers"), given.get("heads"))


def short_names(names: Sequence[str]) -> list[str]:
    """Return names of modules without the parts at both ends that all names share.

    ``model.layers.0.self_attn`` and ``model.layers.1.self_attn`` become ``0`` and ``1``. Numbers
    remain, because ``0.5`` is not the name of a module.
    """
    parts = [name.split(".") for name in names]

    def is_shared(at: int) -> bool:
        return len({each[at] for each in parts}) == 1 and not parts[0][at].isdigit()

    shared = min(map(len, parts)) - 1 if len(set(names)) > 1 else 0
    first = next((at for at in range(shared) if not is_shared(at)), shared)
    rest = range(shared - first)
    last = next((at for at in rest if not is_shared(-1 - at)), shared - first)
    return [".".join(each[first : len(each) - last]) for each in parts]
