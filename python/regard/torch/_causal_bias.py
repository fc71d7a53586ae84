"""PyTorch's `CausalBias`, a Tensor subclass whose memory is uninitialized."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

# Importing it takes a second. If it has not been imported, no bias can exist.
_MODULE = "torch.nn.attention.bias"


def is_causal_bias(given: Any) -> bool:
    """Return whether an argument is a `CausalBias`."""
    module = sys.modules.get(_MODULE)
    return module is not None and isinstance(given, module.CausalBias)


def offset_of(
    bias: Any, query: Tensor, key: Tensor, *, is_causal: Any = False, query_offset: Any = 0
) -> int:
    """Return the `query_offset` that is equivalent, with `is_causal`, to a `CausalBias`.

    Raises TypeError or ValueError if the bias is for other lengths, or if the call also sets one of
    the two options.
    """
    variant = getattr(bias, "variant", None)
    if variant is None:
        raise TypeError(
            "attn_mask must be a CausalBias as causal_lower_right and causal_upper_left return it, "
            "got the result of an operation on a CausalBias, which has no elements"
        )
    if is_causal is not False or type(query_offset) is not int or query_offset:
        raise ValueError(
            "attn_mask is a CausalBias, which sets is_causal and query_offset: they must be left "
            f"out, got is_causal={is_causal!r} and query_offset={query_offset!r}"
        )
    lengths = bias.seq_len_q, bias.seq_len_kv
    if lengths != (query.shape[-2], key.shape[-2]):
        raise ValueError(
            "attn_mask must be a CausalBias for the lengths of query and key, "
            f"({query.shape[-2]}, {key.shape[-2]}), got lengths {lengths}"
        )
    is_lower_right = variant is sys.modules[_MODULE].CausalVariant.LOWER_RIGHT
    return lengths[1] - lengths[0] if is_lower_right else 0
