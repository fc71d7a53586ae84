"""Determine the sizes of a problem from the shapes of its arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from regard._arguments.hints import layout_hint

if TYPE_CHECKING:
    from regard.cuda._views import View

# Positions are 32-bit integers on the device, which must also hold sums and differences of two
# positions.
MOST_POSITION = 2**29 - 1
MOST_DIM = 256


@dataclass(slots=True)
class Sizes:
    """The sizes of a problem. `rows` is the shape of lse."""

    batch: tuple[int, ...]
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    value_dim: int
    rows: tuple[int, ...]


def dense_sizes(query: View, key: View, value: View) -> Sizes:
    """Return the sizes of arrays (..., heads, length, dim), or raise ValueError."""
    for view in (query, key, value):
        if len(view.shape) < 2:
            raise ValueError(
                f"{view.name} must have at least 2 dimensions, (length, dim), got shape "
                f"{view.shape}"
            )
    _check_dims(query, key, value)
    q_len, kv_len = query.shape[-2], key.shape[-2]
    if value.shape[-2] != kv_len:
        raise ValueError(f"key and value must share kv_len, got {_two(kv_len, key, value, -2)}")
    heads, kv_heads, value_heads = (
        view.shape[-3] if len(view.shape) > 2 else 1 for view in (query, key, value)
    )
    _check_heads(query, key, value, heads, kv_heads, value_heads)
    outer = [view.shape[:-3] for view in (query, key, value)]
    try:
        batch = np.broadcast_shapes(*outer)
    except ValueError:
        raise ValueError(
            "query, key and value must have batch axes (those before heads) that broadcast, got "
            f"shapes {query.shape}, {key.shape} and {value.shape}"
        ) from None
    has_heads = any(len(view.shape) > 2 for view in (query, key, value))
    rows = (*batch, heads, q_len) if has_heads else (q_len,)
    return _checked(
        Sizes(batch, heads, kv_heads, q_len, kv_len, query.shape[-1], value.shape[-1], rows)
    )


def ragged_sizes(
    query: View, key: View, value: View, sequences: int, q_len: int, kv_len: int
) -> Sizes:
    """Return the sizes of packed arrays (total, heads, dim), or raise ValueError."""
    for view in (query, key, value):
        if len(view.shape) != 3:
            raise ValueError(
                f"{view.name} must have 3 dimensions, (total, heads, dim), got shape {view.shape}"
            )
    _check_dims(query, key, value)
    if key.shape[0] != value.shape[0]:
        raise ValueError(
            f"key and value must share their length, got {_two(key.shape[0], key, value, 0)}"
        )
    heads, kv_heads = query.shape[1], key.shape[1]
    _check_heads(query, key, value, heads, kv_heads, value.shape[1])
    rows = query.shape[0], heads
    return _checked(
        Sizes((sequences,), heads, kv_heads, q_len, kv_len, query.shape[-1], value.shape[-1], rows)
    )


def _check_dims(query: View, key: View, value: View) -> None:
    head_dim = query.shape[-1]
    if key.shape[-1] != head_dim:
        raise ValueError(f"query and key must share head_dim, got {_two(head_dim, query, key, -1)}")
    if head_dim == 0:
        raise ValueError(
            f"query and key must have a head_dim of at least 1, got shapes {query.shape} and "
            f"{key.shape}"
        )
    for view, dim in ((query, "head_dim"), (value, "value_dim")):
        if view.shape[-1] > MOST_DIM:
            raise ValueError(
                f"{view.name} must have a {dim} of at most {MOST_DIM} on a GPU, got "
                f"{view.shape[-1]}: compute it on the CPU"
            )


def _check_heads(
    query: View, key: View, value: View, heads: int, kv_heads: int, value_heads: int
) -> None:
    if kv_heads != value_heads:
        raise ValueError(
            f"key and value must share kv_heads, got {kv_heads} and {value_heads} (shapes "
            f"{key.shape} and {value.shape})"
        )
    if heads and (kv_heads == 0 or heads % kv_heads):
        raise ValueError(
            "the heads of query must be a multiple of the kv_heads of key and value, got "
            f"{heads} and {kv_heads} (shapes {query.shape} and {key.shape})"
            f"{layout_hint(query.shape, key.shape)}"
        )


def _checked(sizes: Sizes) -> Sizes:
    for name, length in (("q_len", sizes.q_len), ("kv_len", sizes.kv_len)):
        if length > MOST_POSITION:
            raise ValueError(f"{name} must be at most {MOST_POSITION} on a GPU, got {length}")
    return sizes


def _two(own: int, first: View, second: View, axis: int) -> str:
    return f"{own} and {second.shape[axis]} (shapes {first.shape} and {second.shape})"
