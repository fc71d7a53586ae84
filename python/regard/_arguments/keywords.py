"""Refuse keywords that a call does not accept, and translate the keywords of other libraries."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

from regard._arguments.hints import refuse_grid
from regard._arguments.option_table import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def refuses_unknown(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorate a call so that unknown keywords raise a TypeError with advice.

    The decorator adds a Python call to each call. A function for which that is too slow accepts
    ``**options``, and calls `check_options` if there are any unknown options.
    """
    signature = inspect.signature(function).parameters.values()
    known = [p.name for p in signature if p.kind is not p.VAR_KEYWORD and p.name != "self"]
    names, defined = frozenset(known), function.__qualname__.removesuffix(".__init__")
    _, dot, method = function.__qualname__.rpartition(".")

    @functools.wraps(function)
    def checked(*args: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        if not names.issuperset(keywords):
            call = defined
            if dot and args and not isinstance(args[0], type):
                # A method may be inherited from a class that users do not know.
                own = type(args[0]).__name__
                call = own if method == "__init__" else f"{own}.{method}"
            refuse_keywords(call, keywords.keys() - names, known, like=defined)
        return function(*args, **keywords)

    return checked


def check_options(
    name: str,
    options: Mapping[str, Any],
    accepted: Collection[str] = OPTIONS.keys(),
) -> None:
    """Raise TypeError, with advice, if a call does not accept one of these options or its kind.

    `name` is the name of the call in `regard`; `accepted` are the options that it accepts.
    """
    unknown = [option for option in options if option not in accepted]
    if unknown:
        refuse_keywords(name, unknown)
    refuse_grid(options.get("window"))


def refuse_keywords(
    call: str,
    unknown: Iterable[str],
    known: Iterable[str] | None = None,
    *,
    like: str | None = None,
) -> NoReturn:
    """Raise the TypeError for keywords that `call` does not accept, with advice for each keyword.

    `known` are the keywords that the call accepts, by default those of the public object with the
    call's name. `like` is the name for which the advice is, if it differs from `call`.
    """
    names = _arguments_of(call) if known is None else list(known)
    by_advice: dict[str, list[str]] = {}
    for name in sorted(unknown):
        by_advice.setdefault(advice(name, names, like or call), []).append(name)
    refused = "; ".join(
        f"no argument {', '.join(same)}: {text}" for text, same in by_advice.items()
    )
    raise TypeError(f"{call}() has {refused}")


def _arguments_of(call: str) -> list[str]:
    """Return the keywords that a public call accepts, for example ``"KVCache.attend"``."""
    found: Any = sys.modules["regard"]
    for name in call.removeprefix("regard.").split("."):
        found = getattr(found, name)
    parameters = inspect.signature(found).parameters.values()
    return [p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p.name != "self"]


def advice(name: str, known: list[str], call: str = "") -> str:
    """Return advice on replacing a keyword that `call` does not accept."""
    import difflib

    module = call.rpartition(".")[0]
    holds = {*known, f"{call}()", f"{module}.", "any"}
    if "query" in known or {"is_causal", "mask"} <= holds:
        holds.add("attention")
    rows = list(table())
    same = [ours for names, (ours, *_), text in rows if not text and name in names]
    for meant in (name, *same):
        for names, conditions, text in rows:
            # "k" is a key, but not the key of a random generator.
            if meant in names and (text or meant == name) and not holds.isdisjoint(conditions):
                text = text.replace("{name}", name) or f"pass {conditions[0]}="
                # PyTorch's name for the mask.
                return re.sub(r"\bmask=", "attn_mask=", text) if "attn_mask" in known else text
    # Typos seldom change the first letter. Otherwise "heads" would match "threads".
    alike = [each for each in known if each[:1] == name[:1]]
    closest = difflib.get_close_matches(name, alike, n=1, cutoff=0.76)
    if closest:
        return f"did you mean {closest[0]}=?"
    return f"its arguments are {', '.join(known)}"


def table() -> Iterator[tuple[list[str], list[str], str]]:
    """Yield the rows of `other_names.txt`: keywords, conditions and advice."""
    from importlib.resources import files

    text = files(__package__).joinpath("other_names.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        if not line.startswith("#"):
            names, conditions, *advice = line.split(" | ", 2)
            yield names.split(), conditions.split(), "".join(advice)
