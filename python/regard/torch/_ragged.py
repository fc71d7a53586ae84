"""Attention over packed sequences of PyTorch tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from torch import Tensor

from regard._arguments.options import TorchOptions, names_of, takes_options
from regard.torch._arguments import (
    autocast,
    check_packed,
    check_tensors,
    repeat_heads,
    repeat_key_heads,
)
from regard.torch._attend import attend, split_options
from regard.torch._causal_bias import is_causal_bias
from regard.torch._direct import PLAIN, is_eager
from regard.torch._operators import ragged
from regard.torch._options import tensor_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from regard.masks import SparseMask

_KNOWN = (
    *("query_starts", "key_starts", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"),
    *names_of(TorchOptions),
)


@takes_options(
    TorchOptions,
    reference="as in `regard.scaled_dot_product_attention_ragged`; arrays may be tensors",
)
def scaled_dot_product_attention_ragged(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_starts: Tensor | Sequence[int],
    key_starts: Tensor | Sequence[int],
    attn_mask: Tensor | SparseMask | tuple[Tensor | SparseMask, Tensor] | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | Tensor | None = None,
    enable_gqa: bool = False,
    **options: Unpack[TorchOptions],
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute attention over sequences of different lengths, packed one after another.

    Sequence ``b`` has the queries ``query[query_starts[b]:query_starts[b + 1]]`` and the keys and
    values of rows ``key_starts[b]`` to ``key_starts[b + 1]``. It attends only to its own keys. No
    padding is stored or computed, and the result of every sequence is bitwise equal to a separate
    call of `scaled_dot_product_attention`.

    Parameters
    ----------
    query : Tensor, shape (total, heads, head_dim)
        The queries of all sequences: float32, float64, float16 or bfloat16, on the CPU, with any
        strides.
    key : Tensor, shape (total_keys, kv_heads, head_dim)
        Must have the type of `query`, like `value`.
    value : Tensor, shape (total_keys, kv_heads, value_dim)
        The values of all sequences.
    query_starts, key_starts : Tensor of int or sequence of int, shape (sequences + 1,)
        The start of each sequence, followed by the total. Starts begin with 0 and never decrease. A
        sequence may be empty. PyTorch calls them offsets, and FlashAttention ``cu_seqlens``.
    attn_mask : Tensor of bool or float, SparseMask, or a pair (bool, float), optional
        Broadcasts to ``(total, heads, longest)``, where ``longest`` is the length of the longest
        key sequence: a row for every query, a column for every key of its sequence. Bool: True =
        may attend. Float, of any type: added to the scores. A `regard.masks.SparseMask` has the
        shape ``(heads, total, longest)`` or ``(total, longest)``.
    dropout_p : float, default 0.0
        Probability of dropping each weight, from 0 to 1. At 1, all weights are dropped.
    is_causal : bool, default False
        Query ``i`` of a sequence sees its key ``j`` only if ``j <= i + query_offset``.
    scale : float or Tensor of float, shape (heads,) or (sequences, heads), optional
        Factor of ``query . key``, scalar or one per query head. Default: ``1 / sqrt(head_dim)``.
    enable_gqa : bool, default False
        Allow ``heads`` to be a multiple of ``kv_heads``, which may differ between `key` and
        `value`. If False, the numbers of heads must be equal, or one.
    query_offset, key_lengths, left_padding : int or Tensor of int
        Scalar, or one per sequence; `query_offset` may be ``"end"``. Positions count from each
        sequence's first key.
    {options}
    dropout_seed : int or Tensor of int without axes, optional
        Determines which weights are dropped, with the number of the sequence. Default: drawn from
        PyTorch's default generator, so that ``torch.manual_seed`` reproduces it.

    Returns
    -------
    output : Tensor, shape (total, heads, value_dim)
        Has the type of `query` and its layout: the axes have the same order in memory.
    lse : Tensor, shape (total, heads)
        Returned if `return_lse`, in float64 if the output is float64, else in float32. It is
        differentiable, too.

    Raises
    ------
    TypeError
        If an argument is not a tensor or has the wrong type, or the three types differ.
    ValueError
        If shapes disagree, a tensor is not on the CPU, a number is out of range, or starts do not
        begin with 0, decrease or do not end at the total.
    NotImplementedError
        If a derivative in forward mode or a second derivative is requested, or if a score function
        is exported.

    See Also
    --------
    scaled_dot_product_attention : for dense tensors, and for jagged nested tensors.
    regard.scaled_dot_product_attention_ragged : the same for NumPy arrays.

    Notes
    -----
    Gradients are available in reverse mode for `query`, `key`, `value`, a float `attn_mask`,
    `alibi_slopes`, `distance_bias` and `sinks`. ``torch.compile`` and ``torch.export`` read the
    starts when the graph runs, so that a graph serves any starts. ``torch.vmap`` makes one call for
    each sample. ``torch.autocast`` converts query, key and value.

    Examples
    --------
    Three sentences of 2, 0 and 3 words:

    >>> import torch
    >>> import regard.torch
    >>> words = torch.ones(5, 4, 16, requires_grad=True)
    >>> starts = torch.tensor([0, 2, 2, 5])
    >>> output = regard.torch.scaled_dot_product_attention_ragged(
    ...     words, words, words, starts, starts, is_causal=True
    ... )
    >>> output.sum().backward()
    >>> words.grad.shape
    torch.Size([5, 4, 16])
    """
    given, return_lse = split_options("scaled_dot_product_attention_ragged", options, _KNOWN)
    query, key, value = map(autocast, (query, key, value))
    check_tensors(query, key, value)
    check_packed(query, key, value)
    if is_causal_bias(attn_mask):
        raise TypeError(
            "attn_mask must not be a CausalBias for packed sequences, whose lengths differ: pass "
            'is_causal=True, and query_offset="end" for causal_lower_right'
        )
    starts: tuple[Any, Any] = (
        tensor_of("query_starts", query_starts, query.device),
        tensor_of("key_starts", key_starts, query.device),
    )
    if enable_gqa:
        key, value = repeat_key_heads(query, key, value, axis=-2)
    elif not query.shape[-2] == key.shape[-2] == value.shape[-2]:
        query, key, value = repeat_heads(query, key, value, axis=-2)
    tensors = query, key, value, *starts
    return attend(
        ragged,
        tensors,
        given,
        attn_mask,
        dropout_p,
        is_causal,
        scale,
        return_lse=return_lse,
        is_direct=all(type(each) in PLAIN for each in tensors) and is_eager(),
    )
