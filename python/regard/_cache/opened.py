"""Access to the content, layer or state of a cache, if it is open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard._cache.content import Content
from regard._cache.layer import Layer

if TYPE_CHECKING:
    from regard._cache.storage.state import State


def writable_content(cache: Any, method: str) -> Content:
    """Return the content of a cache, or raise an error if it may not be changed."""
    content = opened_content(cache, method)
    _check_writable(content)
    return content


def opened_content(cache: Any, method: str) -> Content:
    """Return the content of a cache, or raise an error if it is closed or not a cache."""
    content = getattr(cache, "_content", None)
    if not isinstance(content, Content):
        raise _not_a_cache(cache, method)
    _check_open(content)
    return content


def writable_layer(cache: Any, method: str) -> Layer:
    """Return the layer of a cache, or raise an error if it may not be changed."""
    layer = opened_layer(cache, method)
    _check_writable(layer.content)
    return layer


def opened_layer(cache: Any, method: str) -> Layer:
    """Return the layer of a cache, or raise an error if it is closed or not a cache."""
    layer = getattr(cache, "_layer", None)
    if not isinstance(layer, Layer):
        raise _not_a_cache(cache, method)
    _check_open(layer.content)
    return layer


def opened_state(source: Content | Layer) -> State:
    """Return the state of a content or a layer, or raise ValueError if it is closed."""
    state = source.state
    if state is None:
        raise ValueError("the cache is closed")
    return state


def _check_open(content: Content) -> None:
    if content.state is None:
        raise ValueError("the cache is closed")


def _check_writable(content: Content) -> None:
    if not content.is_writable:
        raise ValueError(
            "the cache may only be read: it was opened with mode='r', or in the process that this "
            "one was forked from"
        )


def _not_a_cache(cache: Any, method: str) -> TypeError:
    return TypeError(f"{method} must be called on a KVCache, got {type(cache).__name__}")
