"""Attention over PyTorch tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch._C import _is_any_autocast_enabled

from regard._arguments.options import TorchOptions, names_of, takes_options
from regard.torch._arguments import (
    TYPES,
    autocast,
    check_tensors,
    is_causal_bias,
    offset_of,
    repeat_heads,
    repeat_key_heads,
)
from regard.torch._call import attend_checked, plain_call, split_options
from regard.torch._memory import PLAIN
from regard.torch._ragged import attend_nested, is_jagged
from regard.torch._recorder import OBSERVERS

if TYPE_CHECKING:
    from torch import Tensor

    from regard.masks import SparseMask

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
        ``value_dim`` may differ from ``head_dim``. All three may be jagged nested tensors of shape
        ``(batch, heads, length, dim)``.
    attn_mask : Tensor of bool or float, SparseMask, or a pair (bool, float), optional
        Broadcasts to ``(..., heads, q_len, kv_len)``. Bool: True = may attend. Float, of any type:
        added to the scores. A `regard.masks.SparseMask` is a bool mask, by itself or in a pair. A
        PyTorch `CausalBias` sets `is_causal` and `query_offset`.
    dropout_p : float, default 0.0
        Probability of dropping each weight, from 0 to 1. At 1, all weights are dropped.
    is_causal : bool, default False
        Query ``i`` sees key ``j`` only if ``j <= i + query_offset``. If a mask is also given, a
        key is visible only if both allow it.
    scale : float or Tensor of float, shape (heads,) or (..., heads), optional
        Factor of ``query . key``, scalar or one per query head. Default: ``1 / sqrt(head_dim)``.
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
        Has the type of `query` and its layout: the axes have the same order in memory. For nested
        tensors, a nested tensor with the sequences of `query`.
    lse : Tensor, shape (..., heads, q_len)
        Returned if `return_lse`, in float64 if the output is float64, else in float32. It is
        differentiable, too.

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
        If tensors are bfloat16 and the ml_dtypes package is missing.

    See Also
    --------
    scaled_dot_product_attention_ragged : for packed sequences.
    block_mask : converts FlexAttention's masks.
    regard.scaled_dot_product_attention : the same for NumPy arrays; documents the options.

    Notes
    -----
    A fully masked row has output 0 and lse -inf, whereas some PyTorch implementations return NaN.
    For a given seed, dropout drops the same weights as elsewhere in regard, but not the weights
    that PyTorch would drop.

    Gradients are available for `query`, `key`, `value`, a float `attn_mask`, `alibi_slopes`,
    `distance_bias` and `sinks`. They are fused, and so is forward mode along `query`, `key` and
    `value`. PyTorch's own operations compute all other derivatives, of any order, with memory for
    all scores. With a `score_function`, derivatives need its derivative, and only the fused ones
    are implemented; with a `precision`, only gradients are. A `scale` or `softcap` that requires a
    gradient raises TypeError.

    Nested tensors accept no `attn_mask`, and have only derivatives of the first order in reverse
    mode (see `scaled_dot_product_attention_ragged`).

    The operator supports ``torch.compile``, ``torch.export``, ``torch.vmap``, ``torch.func`` and
    the meta device. A compiled graph reads the arrays of a sparse mask as inputs, so that other
    masks of the same kind do not recompile it; a graph is compiled for each score function. Score
    functions in a recorded call are kept until the process ends, because graphs contain only their
    addresses. Therefore, they cannot be exported. If no operation is recorded, a call bypasses
    PyTorch's dispatcher. ``torch.autocast`` converts query, key and value as it does for PyTorch's
    call, and leaves the mask unchanged.

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
    if (
        attn_mask is None
        and not options
        and not enable_gqa
        and type(query) in PLAIN
        and type(key) in PLAIN
        and type(value) in PLAIN
        and type(dropout_p) is float
        and not dropout_p
        and not OBSERVERS
    ):
        output = plain_call(query, key, value, is_causal, scale)
        if output is not None:
            return output
    given: dict[str, Any] = {}
    return_lse = False
    if options:
        given, return_lse = split_options("scaled_dot_product_attention", options, _KNOWN)
    if _is_any_autocast_enabled():
        query, key, value = map(autocast, (query, key, value))
    if not (
        type(query) is type(key) is type(value) is torch.Tensor
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
        if is_jagged(query, key, value):
            named: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa, **options}
            named |= {"attn_mask": attn_mask, "dropout_p": dropout_p, "is_causal": is_causal}
            return attend_nested(scaled_dot_product_attention, (query, key, value), named)
        check_tensors(query, key, value)
    if attn_mask is not None and type(attn_mask) not in PLAIN and is_causal_bias(attn_mask):
        given["query_offset"] = offset_of(
            attn_mask,
            query,
            key,
            is_causal=is_causal,
            query_offset=given.pop("query_offset", 0),
        )
        attn_mask, is_causal = None, True
    shape, key_shape, value_shape = query.shape, key.shape, value.shape
    if enable_gqa:
        if key_shape != value_shape:
            key, value = repeat_key_heads(query, key, value)
    elif not (
        shape == key_shape == value_shape or shape[:-2] == key_shape[:-2] == value_shape[:-2]
    ):
        query, key, value = repeat_heads(query, key, value)
    return attend_checked(
        (query, key, value),
        given,
        attn_mask,
        dropout_p,
        is_causal,
        scale,
        return_lse=return_lse,
    )
