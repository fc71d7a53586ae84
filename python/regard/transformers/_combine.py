"""Combine masks of different kinds, and masks with biases."""

from __future__ import annotations

from typing import Any

from regard._arguments.masks import is_sparse
from regard._runtime.public import needed

torch = needed("torch", "regard.transformers", "transformers")


def both(mask: Any, shown: Any) -> Any:
    """Return the intersection of a mask and a bool mask.

    Parameters
    ----------
    mask : tensor of bool or float, SparseMask, pair (shown, float tensor), or None
    shown : tensor of bool, or SparseMask
    """
    if mask is None:
        return shown
    if isinstance(mask, tuple):
        return both(mask[0], shown), mask[1]
    if not is_shown(mask):
        return shown, mask
    if is_sparse(mask) == is_sparse(shown):
        return mask & shown
    sparse, dense = (mask, shown) if is_sparse(mask) else (shown, mask)
    return sparse & dense.numpy()


def with_bias(mask: Any, bias: Any) -> Any:
    """Combine a mask as in `both` with a float tensor that is added to the scores."""
    if mask is None:
        return bias
    if isinstance(mask, tuple):
        return mask[0], mask[1] + bias
    return (mask, bias) if is_shown(mask) else mask + bias


def is_shown(mask: Any) -> bool:
    """Return whether a mask determines visibility, and is not added to the scores."""
    return is_sparse(mask) or mask.dtype == torch.bool
