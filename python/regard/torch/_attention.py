"""Attention over tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C import (
    _are_functorch_transforms_active,
    _get_tracing_state,
    _len_torch_dispatch_stack,
)
from torch.autograd import forward_ad
from torch.compiler import is_compiling

import regard
from regard.torch import _operators
from regard.torch._arguments import (
    TYPES,
    check_tensors,
    drawn_seed,
    masks,
    with_equal_heads,
)
from regard.torch._memory import as_array, as_optional_array, as_tensor, empty_output
from regard.torch._options import numpy_options, operator_words

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_PLAIN = (Tensor, torch.nn.Parameter)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | tuple[Tensor, Tensor] | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    query_offset: Any = 0,
    window: tuple[int | None, int | None] | None = None,
    key_lengths: Tensor | ArrayLike | None = None,
    left_padding: Tensor | ArrayLike | None = None,
    softcap: float | None = None,
    alibi_slopes: Tensor | ArrayLike | None = None,
    sinks: Tensor | ArrayLike | None = None,
    dropout_seed: int | Tensor | None = None,
    dropout_origin: tuple[int, int, int] = (0, 0, 0),
    return_lse: bool = False,
    threads: int | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute attention."""
    is_direct = (
        type(query) in _PLAIN and type(key) in _PLAIN and type(value) in _PLAIN and _is_eager()
    )
    if not (
        is_direct
        and query.dtype is key.dtype is value.dtype
        and query.dtype in TYPES
        and query.is_cpu
        and key.is_cpu
        and value.is_cpu
        and query.layout is key.layout is value.layout is torch.strided
    ):
        check_tensors(query, key, value)
    kind = "cpu" if query.is_cpu else query.device.type
    if torch.is_autocast_enabled(kind) and query.dtype is not torch.float64:
        dtype = torch.get_autocast_dtype(kind)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if not enable_gqa and not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        query, key, value = with_equal_heads(query, key, value)
    is_traced = torch.is_grad_enabled() and (
        query.requires_grad or key.requires_grad or value.requires_grad
    )
    options: dict[str, Any] = {}
    if type(query_offset) is not int or query_offset:
        options["query_offset"] = query_offset
    if key_lengths is not None:
        options["key_lengths"] = key_lengths
    if left_padding is not None:
        options["left_padding"] = left_padding
    if alibi_slopes is not None:
        options["alibi_slopes"] = alibi_slopes
    if sinks is not None:
        options["sinks"] = sinks
    if dropout_p:
        options["dropout_p"] = dropout_p
        options["dropout_seed"] = drawn_seed() if dropout_seed is None else dropout_seed
    if dropout_origin != (0, 0, 0):
        options["dropout_origin"] = dropout_origin
    shown, bias = (None, None) if attn_mask is None else masks(attn_mask, query.device)
    others: list[Tensor] = []
    if options or attn_mask is not None:
        others = [each for each in (shown, bias, *options.values()) if isinstance(each, Tensor)]
        is_direct = is_direct and all(type(each) in _PLAIN for each in others)
        is_traced |= torch.is_grad_enabled() and any(each.requires_grad for each in others)
    if is_causal is not False:
        options["is_causal"] = is_causal
    if scale is not None:
        options["scale"] = scale
    if window is not None:
        options["window"] = window
    if softcap is not None:
        options["softcap"] = softcap
    if threads is not None:
        options["threads"] = threads
    if kind == "cuda":
        is_possible = is_direct and not is_traced
        return _on_gpu(is_possible, (query, key, value), attn_mask, options, return_lse)
    if is_traced or not is_direct or kind != "cpu":
        words = operator_words(options, query.device)
        float_mask = (bias, *words[:2])
        output, lse = _operators.attention(query, key, value, *float_mask, shown, *words[2:])
        return (output, lse) if return_lse else output
    mask: Any = None
    if shown is not None or bias is not None:
        mask = as_optional_array(bias) if shown is None else as_array(shown)
        mask = mask if shown is None or bias is None else (mask, as_array(bias))
    if others:
        options = numpy_options(options)
    if return_lse:
        options["return_lse"] = True
    output = empty_output(query, key, value)
    options["out"] = as_array(output)
    result = regard.scaled_dot_product_attention(
        as_array(query), as_array(key), as_array(value), mask, **options
    )
    return (output, as_tensor(result[1])) if return_lse else output


def _is_eager() -> bool:
    """Tell whether a call may leave PyTorch's dispatcher out: nothing records or transforms it."""
    return not (
        is_compiling()
        or _are_functorch_transforms_active()
        or _len_torch_dispatch_stack()
        or _get_tracing_state()
        or forward_ad._current_level >= 0
    )


def _on_gpu(is_possible: bool, tensors: Any, attn_mask: Any, options: Any, more: bool) -> Any:
    """Compute a call on a GPU, where there are neither gradients nor transforms."""
    if not is_possible:
        raise NotImplementedError(
            "attention on a CUDA device has no gradient and is not for torch.compile or "
            "torch.func: call it under torch.no_grad(), or copy the tensors with .cpu()"
        )
    query, key, value = tensors
    if more:
        options["return_lse"] = True
    return regard.scaled_dot_product_attention(query, key, value, attn_mask, **options)
