"""The texts that label pictures: tokens of queries and keys, names of layers and heads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from regard._arguments.numbers import listed, mapping

if TYPE_CHECKING:
    Texts: TypeAlias = Iterable[str]
    TokensArgument: TypeAlias = Texts | tuple[Texts | None, Texts | None] | None

_WANTED = "a sequence of str, or a pair (query tokens, key tokens) of them"


class AxisTokens(NamedTuple):
    """A text for each query and for each key; None if an axis has only position numbers."""

    query: list[str] | None
    key: list[str] | None


def tokens_of_axes(
    tokens: TokensArgument, q_len: int, kv_len: int, query_offset: int | None = None
) -> AxisTokens:
    """Read the argument `tokens` of a function that shows attention.

    A single sequence contains the tokens of the keys. Query i is at position ``query_offset + i``
    and has the token of the key at that position. If `query_offset` is None, the positions of the
    queries are unknown, and there must be as many queries as keys.

    Raises
    ------
    TypeError
        If `tokens` is neither a sequence of str, nor a pair of such sequences or None, nor None.
    ValueError
        If the numbers of tokens differ from the lengths of the axes.
    """
    if tokens is None:
        return AxisTokens(None, None)
    parts = _parts(tokens)
    if parts is not None:
        of_queries, of_keys = parts
        return AxisTokens(
            None if of_queries is None else _texts("tokens[0]", of_queries, q_len, "query"),
            None if of_keys is None else _texts("tokens[1]", of_keys, kv_len, "key"),
        )
    texts = _texts("tokens", tokens, kv_len, "key")
    if query_offset is None:
        if q_len != kv_len:
            raise ValueError(
                "tokens must be a pair (query tokens, key tokens) if their numbers "
                f"differ, got one sequence for {q_len} queries and {kv_len} keys"
            )
        return AxisTokens(texts, texts)
    end = query_offset + q_len
    if q_len and (query_offset < 0 or end > kv_len):
        raise ValueError(
            "tokens must be a pair (query tokens, key tokens) if not all keys are queries, "
            f"got one sequence for {kv_len} keys and queries at positions {query_offset} to "
            f"{end - 1}"
        )
    return AxisTokens(texts[query_offset:end], texts)


def _parts(tokens: Any) -> tuple[Any, Any] | None:
    """Return the two parts of a pair, or None if `tokens` is one sequence."""
    is_pair = isinstance(tokens, tuple | list) and len(tokens) == 2
    if is_pair and all(part is None or _is_sequence(part) for part in tokens):
        return tokens[0], tokens[1]
    return None


def _is_sequence(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Iterable) and not isinstance(
        value, str | bytes | bytearray | Mapping | Set
    )


def _texts(name: str, value: Any, length: int, axis: str) -> list[str]:
    if not _is_sequence(value):
        advice = (
            ": split it into tokens first" if isinstance(value, str | bytes | bytearray) else ""
        )
        article = "a " if advice else ""
        raise TypeError(f"{name} must be {_WANTED}, got {article}{type(value).__name__}{advice}")
    texts = list(value)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"{name}[{i}] must be a str, got {_description(text)}")
    if len(texts) != length:
        raise ValueError(
            f"{name} must have one str for each {axis}, {length}, got {len(texts)}; tokens that a "
            "tokenizer adds at the ends count too"
        )
    return [str(text) for text in texts]  # np.str_ becomes str


def _description(text: Any) -> str:
    if isinstance(text, int | np.integer) and not isinstance(text, bool):
        return (
            f"the {type(text).__name__} {text}: pass the text of each token, such as a tokenizer's "
            "convert_ids_to_tokens(ids), or str(id) to show the numbers"
        )
    if isinstance(text, bytes):
        return 'bytes: decode each token, as token.decode(errors="replace") does'
    return type(text).__name__


def strings(name: str, values: Iterable[str]) -> list[str]:
    """Return an argument that is an iterable of str as a list, or raise TypeError."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        given = "a str" if isinstance(values, str) else type(values).__name__
        raise TypeError(f"{name} must be an iterable of str, got {given}")
    found = list(values)
    for each in found:
        if not isinstance(each, str):
            raise TypeError(f"{name} must be an iterable of str, got a {type(each).__name__} in it")
    return found


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
    if len(set(names)) == 1:
        return list(names)

    def shared(ends: list[list[str]]) -> int:
        columns = zip(*ends, strict=False)
        same = takewhile(lambda each: len(set(each)) == 1 and not each[0].isdigit(), columns)
        return len(list(same))

    first = shared([each[:-1] for each in parts])
    last = shared([each[:first:-1] for each in parts])
    return [".".join(each[first : len(each) - last]) for each in parts]
