"""Shapes and types of the operators' results, for compilers and the meta device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from regard.torch._memory import empty_output
from regard.torch._operators import (
    INPUTS,
    Layout,
    attention_double_backward,
    attention_jvp,
    dense,
    library,
    ragged,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def _attention(layout: Layout) -> Callable[..., tuple[Tensor, Tensor]]:
    def kernel(*given: Any) -> tuple[Tensor, Tensor]:
        call = layout.Call(*given)
        shape = layout.shape_of(call)
        return empty_output(call.query, shape), _empty_lse(call.query, shape)

    return kernel


def _empty_lse(query: Tensor, shape: tuple[int, ...]) -> Tensor:
    dtype = torch.float64 if query.dtype is torch.float64 else torch.float32
    return query.new_empty(shape[:-1], dtype=dtype)


def _attention_backward(layout: Layout) -> Callable[..., tuple[Tensor, ...]]:
    def kernel(*given: Any) -> tuple[Tensor, ...]:
        arguments = layout.attention_backward.arguments(*given)
        return tuple(
            torch.empty_like(getattr(arguments, name)) if wanted else arguments.output.new_empty(0)
            for name, wanted in zip(INPUTS, arguments.wanted, strict=True)
        )

    return kernel


def _attention_jvp(*given: Any) -> tuple[Tensor, ...]:
    call = dense.call_of(attention_jvp.arguments(*given))
    shape = dense.shape_of(call)
    output, lse = call.query.new_empty(shape), _empty_lse(call.query, shape)
    return output, torch.empty_like(output), lse, torch.empty_like(lse)


def _attention_double_backward(*given: Any) -> tuple[Tensor, ...]:
    arguments = attention_double_backward.arguments(*given)
    call, lse = dense.call_of(arguments), arguments.lse
    new = [call.query.new_empty(tensor.shape) for tensor in (call.query, call.key, call.value)]
    return call.query.new_empty(dense.shape_of(call)), lse.new_empty(lse.shape), *new


for _operator, _kernel in (
    *((layout.attention, _attention(layout)) for layout in (dense, ragged)),
    *((layout.attention_backward, _attention_backward(layout)) for layout in (dense, ragged)),
    (attention_jvp, _attention_jvp),
    (attention_double_backward, _attention_double_backward),
):
    torch.library.register_fake(f"regard::{_operator.name}", _kernel, lib=library)
