"""The token texts that label the axes of attention."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

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
    if not isinstance(tokens, tuple | list) or len(tokens) != 2:
        return None
    if all(part is None or _is_sequence(part) for part in tokens):
        return tokens[0], tokens[1]
    return None


def _is_sequence(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    is_text = isinstance(value, str | bytes | bytearray)
    return isinstance(value, Iterable) and not (is_text or isinstance(value, Mapping | Set))


def _texts(name: str, value: Any, length: int, axis: str) -> list[str]:
    if isinstance(value, str | bytes | bytearray):
        raise TypeError(
            f"{name} must be {_WANTED}, got a {type(value).__name__}: split it into tokens first"
        )
    if not _is_sequence(value):
        raise TypeError(f"{name} must be {_WANTED}, got {type(value).__name__}")
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
