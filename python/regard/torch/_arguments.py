"""Check the arguments of the public function and convert them for the operators."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard._arguments.masks import is_sparse
from regard.torch._block_mask import is_block_mask
from regard.torch._memory import PLAIN

TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_NAMES = ("query", "key", "value")
# Importing it takes a second. If it has not been imported, no causal bias can exist.
_BIAS_MODULE = "torch.nn.attention.bias"


def autocast(tensor: Any) -> Any:
    """Convert a tensor to the autocast type, as PyTorch's own call does."""
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        return tensor
    kind = tensor.device.type
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return tensor
    return tensor if tensor.dtype is torch.float64 else tensor.to(torch.get_autocast_dtype(kind))


def is_causal_bias(given: Any) -> bool:
    """Return whether an argument is a `CausalBias`."""
    module = sys.modules.get(_BIAS_MODULE)
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
    is_lower_right = variant is sys.modules[_BIAS_MODULE].CausalVariant.LOWER_RIGHT
    return lengths[1] - lengths[0] if is_lower_right else 0


def check_dense(name: str, tensor: Tensor) -> None:
    """Raise TypeError unless a tensor is dense: it stores every element in memory."""
    if type(tensor) not in PLAIN and is_causal_bias(tensor):
        raise TypeError(
            f"{name} must have elements, got a CausalBias, which has none: pass it by itself, as "
            "attn_mask, or pass is_causal=True and query_offset in its place"
        )
    if type(tensor) not in PLAIN and _is_masked(tensor):
        raise TypeError(
            f"{name} must be a dense tensor, got a MaskedTensor: pass its get_data(), and hide "
            "keys with attn_mask"
        )
    if tensor.is_nested:
        advice = "pass a dense tensor, such as its torch.nested.to_padded_tensor"
        if name in _NAMES and tensor.layout is torch.jagged:
            advice = "query, key and value must all be nested, or none of them"
        elif name in _NAMES:
            advice = "create it with layout=torch.jagged, which this function accepts"
        raise TypeError(f"{name} must be a dense tensor, got a nested tensor: {advice}")
    if tensor.layout is not torch.strided:
        raise TypeError(
            f"{name} must be a dense tensor, got layout {tensor.layout}: pass it as .to_dense()"
        )


def _is_masked(tensor: Any) -> bool:
    """Return whether an argument is a `MaskedTensor`, whose module may not have been imported."""
    module = sys.modules.get("torch.masked.maskedtensor.core")
    return module is not None and isinstance(tensor, module.MaskedTensor)


def check_tensors(*tensors: Tensor) -> None:
    """Raise TypeError or ValueError unless query, key and value are tensors that fit together."""
    for name, tensor in zip(_NAMES, tensors, strict=True):
        if not isinstance(tensor, Tensor):
            hint = "; arrays are for regard.scaled_dot_product_attention"
            hint = hint if isinstance(tensor, np.ndarray) else ""
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}{hint}")
        check_dense(name, tensor)
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


def check_packed(*tensors: Tensor) -> None:
    """Raise ValueError unless query, key and value have the axes of packed sequences on the CPU."""
    for name, tensor in zip(_NAMES, tensors, strict=True):
        if tensor.device.type == "cuda":
            raise ValueError(
                f"{name} must be on the CPU, got a tensor on {tensor.device}: copy it with .cpu(), "
                "or call regard.cuda.scaled_dot_product_attention_ragged"
            )
        if tensor.ndim != 3:
            raise ValueError(
                f"{name} must have 3 axes (total, heads, dim), got shape {tuple(tensor.shape)}"
            )


def repeat_heads(
    query: Tensor, key: Tensor, value: Tensor, axis: int = -3
) -> tuple[Tensor, Tensor, Tensor]:
    """Broadcast heads as PyTorch does without `enable_gqa`: the counts are equal, or one."""
    tensors = query, key, value
    # Symbolic numbers can be compared but not hashed.
    heads = [tensor.shape[axis] if tensor.ndim > 2 else 1 for tensor in tensors]
    number = next((count for count in heads if count != 1), 1)
    if any(count != 1 and count != number for count in heads):
        shapes = (f"{n} {tuple(t.shape)}" for n, t in zip(_NAMES, tensors, strict=True))
        swapped = query.ndim > 3 and len({tensor.shape[-2] for tensor in tensors}) == 1
        hint = "; pass tensor.transpose(-3, -2) if the heads come after the length"
        raise ValueError(
            "query, key and value must have equal numbers of heads, or enable_gqa=True for "
            f"grouped-query attention, got {', '.join(shapes)}{hint if swapped else ''}"
        )
    query, key, value = (
        tensor if tensor.ndim == 2 and number == 1 else _with_heads(tensor, number, axis)
        for tensor in tensors
    )
    return query, key, value


def _with_heads(tensor: Tensor, number: int, axis: int) -> Tensor:
    shape = [*tensor.shape] if tensor.ndim > 2 else [1, *tensor.shape]
    shape[axis] = number
    return tensor.expand(shape)


def repeat_key_heads(
    query: Tensor, key: Tensor, value: Tensor, axis: int = -3
) -> tuple[Tensor, Tensor]:
    """Repeat the heads of key and value as PyTorch does with `enable_gqa`, if the counts differ."""
    heads, of_key, of_value = (x.shape[axis] if x.ndim > 2 else 1 for x in (query, key, value))
    if of_key == of_value:
        return key, value
    if not (of_key and of_value) or heads % of_key or heads % of_value:
        raise ValueError(
            "the number of heads of query must be a multiple of the numbers for key and value, "
            f"got {heads}, {of_key} and {of_value}"
        )
    more, fewer = max(of_key, of_value), min(of_key, of_value)
    number = heads if more % fewer else more
    key, value = (_repeated(x, number // n, axis) for x, n in ((key, of_key), (value, of_value)))
    return key, value


def _repeated(tensor: Tensor, times: int, axis: int) -> Tensor:
    tensor = tensor[None] if tensor.ndim == 2 else tensor
    return tensor if times == 1 else tensor.repeat_interleave(times, dim=axis)


def masks(attn_mask: Any, device: torch.device) -> tuple[Any, Tensor | None]:
    """Split `attn_mask` into a bool or sparse mask and a float mask.

    Raises TypeError or ValueError.
    """
    parts = attn_mask if isinstance(attn_mask, tuple) else (attn_mask,)
    kinds = []
    for part in parts:
        if isinstance(part, Tensor):
            check_dense("attn_mask", part)
            if part.device != device:
                raise ValueError(
                    f"attn_mask must be on the device of query, {device}, got {part.device}"
                )
            kinds.append("float" if part.dtype in TYPES else str(part.dtype)[6:])
        elif not is_sparse(part):
            advice = "; convert it with regard.torch.block_mask" if is_block_mask(part) else ""
            raise TypeError(
                "attn_mask must be a tensor, a SparseMask or a pair (bool, float), got "
                f"{'a tuple with ' if isinstance(attn_mask, tuple) else ''}{type(part).__name__}"
                f"{advice}"
            )
        elif device.type == "cuda":
            raise TypeError(
                "attn_mask must be a tensor on a CUDA device, got a sparse mask: the GPU "
                "kernels do not read sparse masks; pass a bool tensor made from its to_dense()"
            )
        else:
            kinds.append("bool")
    if kinds == ["bool"]:
        return parts[0], None
    if kinds == ["float"]:
        return None, parts[0]
    if kinds == ["bool", "float"]:
        return parts[0], parts[1]
    raise TypeError(
        "attn_mask must be bool (True = may attend), float (added to the scores) or a pair "
        f"(bool, float) of both, got {' and '.join(str(part.dtype) for part in parts)}"
    )


def with_own_names(error: TypeError | ValueError) -> Exception:
    """Return the error of a call on NumPy arrays with the names of PyTorch's call."""
    text = str(error)
    return type(error)(f"attn_{text}") if text.startswith("mask ") else error
