"""Attention over packed sequences of PyTorch tensors, and over jagged nested tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor
from torch.compiler import is_compiling

from regard._arguments.options import TorchOptions, names_of, takes_options
from regard.torch._arguments import (
    autocast,
    check_packed,
    check_tensors,
    is_causal_bias,
    repeat_heads,
    repeat_key_heads,
)
from regard.torch._call import attend_checked, split_options
from regard.torch._options import tensor_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from regard.masks import SparseMask

_NAMES = ("query", "key", "value")
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
    return attend_checked(
        (query, key, value, *starts),
        given,
        attn_mask,
        dropout_p,
        is_causal,
        scale,
        return_lse=return_lse,
    )


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
