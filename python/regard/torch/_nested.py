"""Jagged nested tensors, whose sequences are packed one after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from regard.torch._ragged import scaled_dot_product_attention_ragged

_NAMES = ("query", "key", "value")


def is_jagged(*tensors: Any) -> bool:
    """Return whether all arguments are nested tensors with PyTorch's `jagged` layout."""
    return all(
        isinstance(tensor, Tensor) and tensor.is_nested and tensor.layout is torch.jagged
        for tensor in tensors
    )


def attend_nested(
    dense: Callable[..., Any], tensors: tuple[Tensor, ...], options: dict[str, Any]
) -> Any:
    """Compute the public call for jagged nested tensors.

    The tensors have the shape (batch, heads, length, dim), or (batch, length, dim) for one head.
    Tensors with more than three axes whose second axis is ragged are one dense call, because their
    sequences have the same length. `dense` is the public function, and `options` are its arguments.
    """
    for name, tensor in zip(_NAMES, tensors, strict=True):
        _check(name, tensor, tensors[0])
    query, key, value = tensors
    if query.ndim > 3 and query._ragged_idx == 1:
        _check_structure("key", query, key)
        _check_structure("value", query, value)
        results = dense(query.values(), key.values(), value.values(), **options)
        return _each(results, lambda packed: _like(query, packed, 1))
    if options["attn_mask"] is not None:
        raise TypeError(
            "attn_mask must be None for nested tensors, as in PyTorch's call, because no mask has "
            "the shape of all sequences: pass is_causal, window or another option, or call "
            "scaled_dot_product_attention_ragged with a mask of one row for each packed query"
        )
    _check_structure("value", key, value, of="key")
    starts: tuple[Tensor, Tensor] = query.offsets(), key.offsets()
    packed = _packed(query), _packed(key), _packed(value)
    results = scaled_dot_product_attention_ragged(*packed, *starts, **options)
    has_heads = query.ndim == 4

    def nested(packed: Tensor) -> Tensor:
        if not has_heads:
            return _like(query, packed.squeeze(1), 1)
        return _like(query, packed, 1).transpose(1, 2)

    return _each(results, nested)


def _check(name: str, tensor: Any, query: Any) -> None:
    """Raise TypeError or ValueError unless this is a nested tensor that the call can read."""
    if tensor.lengths() is not None:
        raise TypeError(
            f"{name} must be a contiguous nested tensor, got gaps between its sequences "
            "(lengths() is not None): call .contiguous() before transpose(1, 2)"
        )
    ragged_axis = tensor._ragged_idx
    axes = f"got {tensor.ndim} axes, of which axis {ragged_axis} is ragged"
    if tensor.ndim != query.ndim or ragged_axis != query._ragged_idx:
        raise ValueError(
            f"{name} must have the axes of query, {query.ndim} of which axis "
            f"{query._ragged_idx} is ragged, {axes}"
        )
    is_sequence = (tensor.ndim, ragged_axis) in ((3, 1), (4, 2))
    if not is_sequence and not (tensor.ndim > 3 and ragged_axis == 1):
        raise ValueError(
            f"{name} must be a nested tensor of shape (batch, heads, length, dim) or (batch, "
            f"length, dim), whose length is ragged, {axes}"
        )
    if len(tensor.offsets()) != len(query.offsets()):
        raise ValueError(
            f"{name} must have as many sequences as query, {len(query.offsets()) - 1}, got "
            f"{len(tensor.offsets()) - 1}"
        )


def _check_structure(name: str, first: Any, second: Any, of: str = "query") -> None:
    """Raise ValueError unless two nested tensors have sequences of the same lengths."""
    axis = first._ragged_idx
    if first.offsets() is second.offsets() or first.shape[axis] == second.shape[axis]:
        return
    # While a graph is made, offsets have no values.
    is_known = not is_compiling() and type(first.offsets()) is type(second.offsets()) is Tensor
    if is_known and torch.equal(first.offsets(), second.offsets()):
        return
    raise ValueError(
        f"{name} must have sequences of the lengths of {of}: "
        + (
            f"its offsets are {second.offsets().tolist()}, and the offsets of {of} are "
            f"{first.offsets().tolist()}"
            if is_known
            else "create both with the same offsets tensor, so that a compiler knows"
        )
    )


def _packed(tensor: Any) -> Any:
    """Return the elements of all sequences, shape (total, heads, dim)."""
    values = tensor.values()
    return values.unsqueeze(1) if tensor.ndim == 3 else values.transpose(0, 1)


def _like(query: Any, packed: Tensor, axis: int) -> Tensor:
    """Return a nested tensor with the sequences of the query."""
    # Pass on the lengths only if they are known: PyTorch would compute them.
    made: Tensor = torch.nested.nested_tensor_from_jagged(
        packed,
        query.offsets(),
        jagged_dim=axis,
        min_seqlen=query._maybe_min_seqlen,
        max_seqlen=query._maybe_max_seqlen,
    )
    return made


def _each(results: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to the output, and to lse if there is one."""
    return tuple(map(function, results)) if isinstance(results, tuple) else function(results)
