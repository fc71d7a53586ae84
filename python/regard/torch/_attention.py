"""Attention over PyTorch tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

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
from regard._arguments.keywords import check_options
from regard._arguments.masks import Masks, is_sparse
from regard._arguments.numbers import flag
from regard._arguments.options import TorchOptions, names_of, takes_options
from regard.torch import _operators
from regard.torch._arguments import (
    TYPES,
    autocast,
    check_dense,
    check_tensors,
    draw_seed,
    masks,
    pad_head_dim,
    repeat_heads,
    repeat_key_heads,
    with_own_names,
)
from regard.torch._causal_bias import is_causal_bias, offset_of
from regard.torch._memory import (
    NO_TENSORS,
    as_array,
    as_optional_array,
    as_tensor,
    empty_output,
)
from regard.torch._observing import OBSERVERS, show_call
from regard.torch._options import call_with, check_without_gradient, numpy_options

if TYPE_CHECKING:
    from regard.masks import SparseMask

_PLAIN = (Tensor, torch.nn.Parameter)
_OPTIONS = frozenset(names_of(TorchOptions))
_KNOWN = ("attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa", *names_of(TorchOptions))


@takes_options(
    TorchOptions,
    reference="as in `regard.scaled_dot_product_attention`; arrays may be tensors on the device of "
    "`query`",
)
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | SparseMask | tuple[Tensor | SparseMask, Tensor] | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | Tensor | None = None,
    enable_gqa: bool = False,
    **options: Unpack[TorchOptions],
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Compute exact, fused scaled-dot-product attention over PyTorch tensors.

    The function accepts the arguments of `torch.nn.functional.scaled_dot_product_attention` and
    regard's options. Tensors are read and written in place, without copies. Gradients are computed
    by regard, in forward and reverse mode.

    Parameters
    ----------
    query : Tensor, shape (..., heads, q_len, head_dim)
        Float32, float64, float16 or bfloat16, on the CPU, with any strides. For tensors on a CUDA
        device, `regard.cuda` computes the call.
    key : Tensor, shape (..., kv_heads, kv_len, head_dim)
        Must have the type and the device of `query`, like `value`.
    value : Tensor, shape (..., kv_heads, kv_len, value_dim)
        ``value_dim`` may differ from ``head_dim``.
    attn_mask : Tensor of bool or float, SparseMask, or a pair (bool, float), optional
        Broadcasts to ``(..., heads, q_len, kv_len)``. Bool: True = may attend. Float, of any type:
        added to the scores. A `regard.masks.SparseMask` is a bool mask, alone or in a pair. A
        PyTorch `CausalBias` sets `is_causal` and `query_offset`.
    dropout_p : float, default 0.0
        Probability of dropping each weight, from 0 to 1. At 1, all weights are dropped.
    is_causal : bool, default False
        Query ``i`` sees key ``j`` only if ``j <= i + query_offset``. If a mask is also given, a
        key is visible only if both allow it.
    scale : float or Tensor of float, shape (heads,) or (..., heads), optional
        Scale factor of query . key: one number, or one per query head. Default:
        ``1 / sqrt(head_dim)``.
    enable_gqa : bool, default False
        Allow ``heads`` to be a multiple of ``kv_heads``, which may differ between `key` and
        `value`. If False, the numbers of heads must be equal, or one.
    {options}
    dropout_seed : int or Tensor of int without axes, optional
        Determines which weights are dropped. Default: drawn from PyTorch's default generator, so
        that ``torch.manual_seed`` reproduces it.

    Returns
    -------
    output : Tensor, shape (..., heads, q_len, value_dim)
        Has the type of `query` and its layout: the axes have the same order in memory.
    lse : Tensor, shape (..., heads, q_len)
        Returned if `return_lse`; float32, or float64 if the output is. It is differentiable, too.

    Raises
    ------
    TypeError
        If an argument is not a tensor or has the wrong type, or the three types differ.
    ValueError
        If shapes or devices disagree, a device is neither a CPU nor a CUDA device, or a number is
        out of range.
    NotImplementedError
        If a requested derivative is not implemented (see Notes), if any derivative is requested on
        a CUDA device, or if a score function is exported.
    ImportError
        If tensors are bfloat16 and the package ml_dtypes is missing.

    See Also
    --------
    regard.scaled_dot_product_attention : the same for NumPy arrays; documents the options.

    Notes
    -----
    A fully masked row has output 0 and lse -inf, whereas some PyTorch implementations return NaN.
    For a given seed, dropout drops the same weights as elsewhere in regard, but not the weights
    that PyTorch would drop.

    Gradients are available for `query`, `key`, `value`, a float `attn_mask`, `alibi_slopes`,
    `distance_bias` and `sinks`. Forward-mode and second derivatives are available for query, key
    and value only: gradients of gradients, gradients of forward-mode derivatives, and forward-mode
    derivatives of gradients. All others raise NotImplementedError, as do second derivatives in
    which a mask, slopes, a distance bias or sinks require a gradient. A `scale` or `softcap` that
    requires a gradient raises TypeError. With a `score_function`, derivatives need its derivative,
    and there are no second derivatives.

    The operator supports ``torch.compile``, ``torch.export``, ``torch.vmap``, ``torch.func`` and
    the meta device. A compiled graph reads the arrays of a sparse mask as inputs, so that other
    masks of the same kind do not compile it anew; a graph is compiled for each score function.
    Score functions in a recorded call are kept until the process ends, because graphs contain only
    their addresses. Therefore, they cannot be exported. If no operation is recorded, a call
    bypasses PyTorch's dispatcher. ``torch.autocast`` converts query, key and value as it does for
    PyTorch's call, and leaves the mask unchanged.

    Examples
    --------
    >>> import torch
    >>> import regard.torch
    >>> query = torch.ones(1, 4, 6, 16, requires_grad=True)
    >>> key, value = torch.ones(2, 1, 2, 8, 16)
    >>> output = regard.torch.scaled_dot_product_attention(
    ...     query, key, value, is_causal=True, enable_gqa=True, window=(3, 0)
    ... )
    >>> output.sum().backward()
    >>> query.grad.shape
    torch.Size([1, 4, 6, 16])
    """
    if not _OPTIONS.issuperset(options):
        check_options("regard.torch.scaled_dot_product_attention", options, _KNOWN, kind="torch")
    given: dict[str, Any] = {}
    if options:
        given = {name: option for name, option in options.items() if option is not None}
        if "query_offset" in options and "query_offset" not in given:
            raise TypeError('query_offset must be integers or "end", got None')
    return_lse = given.pop("return_lse", False)
    if type(return_lse) is not bool:
        return_lse = flag("return_lse", return_lse)
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        query, key, value = map(autocast, (query, key, value))
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
        and not (query.is_nested or key.is_nested or value.is_nested)
        and query.ndim > 1
        and key.ndim > 1
        and value.ndim > 1
    ):
        check_tensors(query, key, value)
    if attn_mask is not None and is_causal_bias(attn_mask):
        given["query_offset"] = offset_of(
            attn_mask,
            query,
            key,
            is_causal=is_causal,
            query_offset=given.pop("query_offset", 0),
        )
        attn_mask, is_causal = None, True
    kind = "cpu" if query.is_cpu else query.device.type
    if enable_gqa:
        if key.shape != value.shape:
            key, value = repeat_key_heads(query, key, value)
    elif not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        query, key, value = repeat_heads(query, key, value)
    if not query.shape[-1]:
        query, key = pad_head_dim(query, key)
    if dropout_p == 1 and not isinstance(dropout_p, Tensor):
        value, dropout_p = value * 0, 0.0
    is_traced = torch.is_grad_enabled() and (
        query.requires_grad or key.requires_grad or value.requires_grad
    )
    if dropout_p:
        given["dropout_p"] = dropout_p
        if "dropout_seed" not in given:
            given["dropout_seed"] = draw_seed()
    elif given:
        given.pop("dropout_seed", None)
    if is_causal is not False:
        given["is_causal"] = is_causal
    if scale is not None:
        given["scale"] = scale
    others: list[Tensor] = []
    shown = bias = None
    if attn_mask is not None:
        shown, bias = masks(attn_mask, query.device)
        others = [mask for mask in (shown, bias) if mask is not None and not is_sparse(mask)]
    for name, option in given.items():
        if type(option) not in NO_TENSORS and isinstance(option, Tensor):
            check_dense(name, option)
            check_without_gradient(name, option)
            others.append(option)
    if others:
        is_direct = is_direct and all(type(each) in _PLAIN for each in others)
        is_traced |= torch.is_grad_enabled() and any(each.requires_grad for each in others)
    if OBSERVERS and not is_compiling():
        show_call(query, key, (shown, bias), given)
    if kind == "cuda":
        is_possible = is_direct and not is_traced
        return _on_gpu(is_possible, (query, key, value), attn_mask, given, return_lse)
    if is_traced or not is_direct or kind != "cpu":
        output, lse = _operators.attention(*call_with(query, key, value, (shown, bias), given))
        return (output, lse) if return_lse else output
    if others:
        given = numpy_options(given)
    if return_lse:
        given["return_lse"] = True
    output = empty_output(query, key, value)
    mask: Any = None
    if attn_mask is not None:
        shown = shown if is_sparse(shown) else as_optional_array(shown)
        mask = Masks(shown, as_optional_array(bias)).argument
    try:
        result = regard.scaled_dot_product_attention(
            as_array(query), as_array(key), as_array(value), mask, out=as_array(output), **given
        )
    except (TypeError, ValueError) as error:
        raise with_own_names(error) from None
    return (output, as_tensor(result[1])) if return_lse else output


def _is_eager() -> bool:
    """Return whether a call may bypass the dispatcher: nothing records or transforms it."""
    return not (
        is_compiling()
        or _are_functorch_transforms_active()
        or _len_torch_dispatch_stack()
        or _get_tracing_state() is not None
        or forward_ad._current_level >= 0
    )


def _on_gpu(is_possible: bool, tensors: Any, attn_mask: Any, options: Any, more: bool) -> Any:
    """Compute a call on a GPU, without gradients or transforms."""
    if not is_possible:
        raise NotImplementedError(
            "attention on a CUDA device has no gradient and is not for torch.compile or "
            "torch.func: call it under torch.no_grad(), or copy the tensors with .cpu()"
        )
    query, key, value = tensors
    if more:
        options["return_lse"] = True
    return regard.scaled_dot_product_attention(query, key, value, attn_mask, **options)
