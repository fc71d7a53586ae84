"""What the public function takes, checked and in the operators' words."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_NAMES = ("query", "key", "value")


def autocast(tensor: Any) -> Any:
    """Return a tensor in the type that `torch.autocast` asks for, as PyTorch's own call does."""
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        return tensor
    kind = tensor.device.type
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return tensor
    return tensor if tensor.dtype is torch.float64 else tensor.to(torch.get_autocast_dtype(kind))


def check_tensors(*tensors: Tensor) -> None:
    """Raise TypeError or ValueError unless query, key and value are tensors for one call."""
    for name, tensor in zip(_NAMES, tensors, strict=True):
        if not isinstance(tensor, Tensor):
            hint = "; arrays are for regard.scaled_dot_product_attention"
            hint = hint if isinstance(tensor, np.ndarray) else ""
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}{hint}")
        if tensor.layout is not torch.strided or tensor.is_nested:
            kind = "a nested tensor" if tensor.is_nested else f"one of {tensor.layout}"
            raise TypeError(f"{name} must be a dense tensor, got {kind}")
        if tensor.dtype not in TYPES:
            raise TypeError(
                f"{name} must be a tensor of float32, float64, float16 or bfloat16, got "
                f"{tensor.dtype}"
            )
        if tensor.device.type not in ("cpu", "cuda", "meta"):
            raise ValueError(
                f"{name} must be on the CPU or a CUDA device, got a tensor on {tensor.device}: "
                "copy it with .cpu()"
            )
        if tensor.ndim < 2:
            raise ValueError(
                f"{name} must have at least 2 axes (length, dim), got shape {tuple(tensor.shape)}"
            )
    query = tensors[0]
    for name, tensor in zip(_NAMES[1:], tensors[1:], strict=True):
        if tensor.dtype != query.dtype:
            raise TypeError(
                f"{name} must have the type of query, {query.dtype}, got {tensor.dtype}"
            )
        if tensor.device != query.device:
            raise ValueError(
                f"{name} must be on the device of query, {query.device}, got {tensor.device}"
            )


def with_equal_heads(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Broadcast heads as PyTorch does without `enable_gqa`: equal numbers, or one."""
    tensors = query, key, value
    heads = {tensor.shape[-3] if tensor.ndim > 2 else 1 for tensor in tensors}
    if len(heads - {1}) > 1:
        shapes = (f"{n} {tuple(t.shape)}" for n, t in zip(_NAMES, tensors, strict=True))
        raise ValueError(
            "query, key and value must have equal numbers of heads, or enable_gqa=True for "
            f"grouped-query attention, got {', '.join(shapes)}"
        )
    number = max(heads)
    query, key, value = (
        tensor
        if tensor.ndim == 2 and number == 1
        else tensor.expand(*tensor.shape[:-3], number, *tensor.shape[-2:])
        for tensor in tensors
    )
    return query, key, value


def masks(attn_mask: Any, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    """Return the bool and the float mask, or raise TypeError or ValueError."""
    if attn_mask is None:
        return None, None
    parts = attn_mask if isinstance(attn_mask, tuple) else (attn_mask,)
    for part in parts:
        if not isinstance(part, Tensor):
            raise TypeError(
                "attn_mask must be a tensor or a pair (bool, float) of tensors, got "
                f"{'a tuple with ' if isinstance(attn_mask, tuple) else ''}{type(part).__name__}"
            )
        if part.device != device:
            raise ValueError(
                f"attn_mask must be on the device of query, {device}, got {part.device}"
            )
    is_bool = [part.dtype == torch.bool for part in parts]
    if len(parts) == 2 and is_bool == [True, False] and parts[1].dtype in TYPES:
        return parts[0], parts[1]
    if len(parts) == 1 and is_bool[0]:
        return parts[0], None
    if len(parts) == 1 and parts[0].dtype in TYPES:
        return None, parts[0]
    raise TypeError(
        "attn_mask must be bool (True = may attend), float (added to the scores) or a pair "
        f"(bool, float) of both, got {' and '.join(str(part.dtype) for part in parts)}"
    )


def drawn_seed() -> Tensor:
    """Draw a seed from PyTorch's default generator of the CPU."""
    return torch.randint(0, 2**63 - 1, (), dtype=torch.int64, device="cpu")
