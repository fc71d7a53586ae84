"""Refuse keywords that a call does not accept, from within the call or by a decorator."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

from regard._arguments.hints import refuse_grid
from regard._arguments.option_table import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from regard._arguments.option_table import Kind

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

# Calls whose kind differs from their name. `advice` and the table of options name the kinds.
_KINDS_OF_METHODS = {
    "MultiHeadAttention.__call__()": "layer",
    "MultiHeadAttention.record()": "layer",
    "SelfAttention.__call__()": "self-attention",
    "SelfAttention.record()": "self-attention",
}
_NO_REASONS: dict[str, str] = {}


def takes_unknown(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Remove ``**unknown``, which a function passes to `refuse_keywords`, from its signature."""
    signature = inspect.signature(function)
    named = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    function.__signature__ = signature.replace(parameters=named)  # type: ignore[attr-defined]
    return function


def refuses_unknown(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorate a call so that unknown keywords raise a TypeError with advice.

    The decorator adds a Python call to each call. A function for which that is too slow accepts
    ``**unknown`` and passes it to `refuse_keywords`.
    """
    parameters = inspect.signature(function).parameters.values()
    known = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p.name != "self"]
    method = f"{function.__qualname__}()"
    kind = _KINDS_OF_METHODS.get(method, method)
    owner, dot, name = function.__qualname__.rpartition(".")
    names = frozenset(known)

    def call(args: tuple[Any, ...]) -> str:
        # A method may be inherited from a class that users do not know.
        is_method = dot and args and not isinstance(args[0], type)
        shown = type(args[0]).__name__ if is_method else owner
        return shown if name == "__init__" else f"{shown}{dot}{name}"

    @functools.wraps(function)
    def checked(*args: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        if not names.issuperset(keywords):
            refuse_keywords(call(args), keywords.keys() - names, known, kind=kind)
        return function(*args, **keywords)

    return checked


def with_advice(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorate a call so that a TypeError of Python about its keywords becomes advice.

    Python reports missing or unexpected arguments before the call begins, and so before the call
    can translate the keywords of other libraries. Unlike `refuses_unknown`, a call that succeeds is
    not checked.
    """
    owner, dot, name = function.__qualname__.rpartition(".")

    @functools.wraps(function)
    def advising(*args: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        try:
            return function(*args, **keywords)
        except TypeError as error:
            # An error from within the call has a traceback of more than this frame.
            frames = error.__traceback__
            if keywords and frames is not None and frames.tb_next is None:
                from regard._arguments.advice import arguments_of

                shown = type(args[0]).__name__ if dot and args else owner
                call = f"{shown}{dot}{name}"
                known = arguments_of(call)
                unknown = keywords.keys() - set(known)
                if unknown:
                    refuse_keywords(call, unknown, known)
            raise

    return advising


def refuse_keywords(
    call: str,
    unknown: Iterable[str],
    known: Iterable[str] | None = None,
    reasons: Mapping[str, str] = _NO_REASONS,
    *,
    kind: str = "",
) -> NoReturn:
    """Raise the TypeError for keywords that `call` does not accept, with advice for each keyword.

    Parameters
    ----------
    call : str
        The name of the call in `regard`, without parentheses.
    unknown : iterable of str
        The given keywords that the call does not accept.
    known : iterable of str, optional
        The keywords that the call accepts, in the order of its signature. By default, they are read
        from the signature of the public object with the call's name.
    reasons : mapping of str to str, optional
        Specific advice, which takes precedence over the general advice.
    kind : str, optional
        The kind of the call.
    """
    from regard._arguments.advice import advice, arguments_of  # only a call that fails needs them

    names = arguments_of(call) if known is None else list(known)
    by_advice: dict[str, list[str]] = {}
    for name in sorted(unknown):
        by_advice.setdefault(reasons.get(name) or advice(name, names, kind), []).append(name)
    refused = "; ".join(
        f"no argument {', '.join(same)}: {text}" for text, same in by_advice.items()
    )
    raise TypeError(f"{call}() has {refused}")


def check_options(
    name: str,
    options: Mapping[str, Any],
    accepted: Collection[str] = OPTIONS.keys(),
    *,
    reasons: Mapping[str, str] = _NO_REASONS,
    kind: Kind = "attention",
) -> None:
    """Raise TypeError, with advice, if a call does not accept one of these options or its kind.

    `name` is the name of the call in `regard`; `accepted` are the options that it accepts.
    """
    unknown = [option for option in options if option not in accepted]
    if unknown:
        refuse_keywords(name, unknown, reasons=reasons, kind=kind)
    refuse_grid(options.get("window"))
