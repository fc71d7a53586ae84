"""The content of a cache that is open, for the methods of caches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard._cache.content import Content

if TYPE_CHECKING:
    from regard._cache.storage.state import State


def writable_content(cache: Any, method: str) -> Content:
    """Return the content of a cache, or raise an error if it may not be changed."""
    content = opened_content(cache, method)
    if not content.is_writable:
        raise ValueError(
            "the cache may only be read: it was opened with mode='r', or in the process that this "
            "one was forked from"
        )
    return content


def opened_content(cache: Any, method: str) -> Content:
    """Return the content of a cache, or raise an error if it is closed or not a KVCache."""
    content = getattr(cache, "_content", None)
    if not isinstance(content, Content):
        raise TypeError(f"{method} must be called on a KVCache, got {type(cache).__name__}")
    if content.state is None:
        raise ValueError("the cache is closed")
    return content


def opened_state(cache: Any) -> State:
    """Return the state of a cache, or raise ValueError if it is closed."""
    state: State | None = cache._content.state
    if state is None:
        raise ValueError("the cache is closed")
    return state
