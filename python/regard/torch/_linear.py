"""Linear attention over PyTorch tensors.

Like attention, a call that nothing records is computed at once, and otherwise is an operator.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

import regard
from regard._arguments.arrays import shown
from regard._arguments.numbers import flag
from regard.torch._arguments import check_dense, check_tensors
from regard.torch._autograd import Fused, add_derivatives, is_eager, is_recorded
from regard.torch._memory import arrays_of, as_array, as_tensor, dense_shape
from regard.torch._operators import library

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

_OPTIONAL = ("decay", "beta", "state", "starts")
_INPUTS = ("query", "key", "value", *_OPTIONAL[:-1])
_NAMES = (*_INPUTS, "starts", "scale", "threads")
_CALL = "Tensor query, Tensor key, Tensor value, Tensor? decay, Tensor? beta, Tensor? state, "
_CALL += "Tensor? starts, float? scale, int? threads"
_GRADIENTS = ", ".join(f"Tensor grad_{name}" for name in _INPUTS)

library.define(f"linear_attention({_CALL}) -> (Tensor output, Tensor last_state)")
library.define(
    f"linear_attention_backward(Tensor grad_output, Tensor grad_state, {_CALL}) -> ({_GRADIENTS})"
)
_operator = torch.ops.regard.linear_attention.default
_backward_operator = torch.ops.regard.linear_attention_backward.default


def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    state: Tensor | None = None,
    scale: float | None = None,
    starts: Tensor | None = None,
    return_state: bool = False,
    threads: int | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute linear attention over PyTorch tensors.

    Parameters
    ----------
    query : Tensor, shape (..., heads, q_len, head_dim)
        Float32, float64, float16 or bfloat16, on the CPU, with any strides.
    key : Tensor, shape (..., kv_heads, q_len, head_dim)
        Must have the type of `query`, like `value`. ``heads`` is a multiple of ``kv_heads``.
    value : Tensor, shape (..., kv_heads, q_len, value_dim)
    decay : Tensor, shape (..., kv_heads, q_len) or (..., kv_heads, q_len, head_dim), optional
    beta : Tensor, shape (..., kv_heads, q_len), optional
    state : Tensor, shape (..., kv_heads, head_dim, value_dim), optional
    scale : float, optional
    starts : Tensor of int, optional
    return_state : bool, default False
    threads : int, optional
        As in `regard.linear_attention`.

    Returns
    -------
    output : Tensor, shape (..., heads, q_len, value_dim)
        Has the type of `query`.
    state : Tensor, shape (..., kv_heads, head_dim, value_dim)
        Returned if `return_state`.

    Raises
    ------
    TypeError
        If an argument is not a tensor or has the wrong type.
    ValueError
        If shapes or devices disagree, or a tensor is not on the CPU.
    NotImplementedError
        If a second derivative or forward mode is requested.
    ImportError
        If tensors are bfloat16 and the ml_dtypes package is missing.

    See Also
    --------
    regard.linear_attention : the same for NumPy arrays; documents the arguments.

    Notes
    -----
    Gradients are those of `regard.linear_attention_backward`. The operator supports
    ``torch.compile``, ``torch.export``, ``torch.func.grad`` and the meta device.

    Examples
    --------
    >>> import torch
    >>> import regard.torch
    >>> query, key, value = torch.ones(3, 1, 4, 6, 16)
    >>> decay, beta = torch.full((2, 1, 4, 6), -0.5)
    >>> output, state = regard.torch.linear_attention(
    ...     query, key, value, decay=decay, beta=beta.exp(), return_state=True
    ... )
    >>> output.shape, state.shape
    (torch.Size([1, 4, 6, 16]), torch.Size([1, 4, 16, 16]))
    """
    check_tensors(query, key, value)
    given = decay, beta, state, starts
    for name, tensor in zip(_OPTIONAL, given, strict=True):
        if tensor is None:
            continue
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} must be a tensor or None, got {shown(tensor)}")
        check_dense(name, tensor)
        if tensor.device != query.device:
            raise ValueError(
                f"{name} must be on the device of query, {query.device}, got {tensor.device}"
            )
    if query.is_cuda:
        raise ValueError(f"query must be on the CPU, got a tensor on {query.device}: use .cpu()")
    call = query, key, value, *given, scale, threads
    arrays = arrays_of(dict(zip(_NAMES, call, strict=True))) if is_eager() else None
    if arrays is None:
        output, last = _operator(*call)
    elif is_recorded(call):
        output, last = _record(partial(_compute, arrays), *call)
    else:
        output, last = _compute(arrays)
    return (output, last) if flag("return_state", return_state) else output


def _compute(arrays: dict[str, Any]) -> tuple[Tensor, Tensor]:
    output, last = regard.linear_attention(**arrays, return_state=True)
    return as_tensor(output), as_tensor(last)


def _arrays(given: tuple[Any, ...]) -> dict[str, Any]:
    each = (as_array(x) if isinstance(x, torch.Tensor) else x for x in given)
    return dict(zip(_NAMES, each, strict=True))


def _backward(grad_output: Tensor, grad_state: Tensor, *given: Any) -> tuple[Tensor, ...]:
    """Return the gradients of all inputs, empty tensors for those that are not given."""
    found = regard.linear_attention_backward(
        as_array(grad_output), grad_state=as_array(grad_state), **_arrays(given)
    )
    each = (getattr(found, name) for name in _INPUTS)
    return tuple(grad_output.new_empty(0) if x is None else as_tensor(x) for x in each)


def _fake(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    starts, sides = others[3], (key.shape[-1], value.shape[-1])
    if starts is None:
        output = dense_shape(query.shape, key.shape, value.shape)
        kv_heads = (key.shape[-3] if key.ndim > 2 else 1,) if len(output) > 2 else ()
        state = (*output[:-3], *kv_heads, *sides)
    else:
        output = (*query.shape[:-1], value.shape[-1])
        state = (starts.shape[0] - 1, key.shape[-2], *sides)
    wide = torch.float64 if query.dtype is torch.float64 else torch.float32
    return query.new_empty(output), query.new_empty(state, dtype=wide)


def _fake_backward(grad_output: Tensor, _: Tensor, *given: Any) -> tuple[Tensor, ...]:
    tensors = given[: len(_INPUTS)]
    return tuple(grad_output.new_empty(0) if x is None else x.new_empty(x.shape) for x in tensors)


def _record(compute: Callable[[], Any], *given: Any) -> Any:
    """Compute a call, and record it."""
    *tensors, scale, threads = given

    def pull(cotangents: Any, tensors: Any, wanted: list[int]) -> list[Tensor]:
        gradients = _backward_operator(*cotangents, *tensors, scale, threads)
        return [gradients[place] for place in wanted]

    return Fused.apply(compute, pull, "forward mode of linear attention", *tensors)


def _record_backward(compute: Callable[[], Any], *given: Any) -> Any:
    what = "the second derivative of linear attention"

    def pull(*_: Any) -> None:
        raise NotImplementedError(f"{what} is not implemented")

    *tensors, _, _ = given
    return Fused.apply(compute, pull, what, *tensors)


library.impl("linear_attention", lambda *given: _compute(_arrays(given)), "CPU")
library.impl("linear_attention_backward", _backward, "CPU")
torch.library.register_fake(_operator, _fake, lib=library)
torch.library.register_fake(_backward_operator, _fake_backward, lib=library)
add_derivatives(_operator, _record)
add_derivatives(_backward_operator, _record_backward)
