"""Shapes and types of the operators' results, for compilers and the meta device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from regard.torch._memory import empty_output, output_shape
from regard.torch._operators import (
    INPUTS,
    Call,
    attention,
    attention_backward,
    attention_double_backward,
    attention_jvp,
    call_of,
    library,
)

if TYPE_CHECKING:
    from torch import Tensor


def _attention(*given: Any) -> tuple[Tensor, Tensor]:
    call = Call(*given)
    query, key, value = call.query, call.key, call.value
    return empty_output(query, key, value), _empty_lse(query, key, value)


def _empty_lse(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    dtype = torch.float64 if query.dtype is torch.float64 else torch.float32
    return query.new_empty(output_shape(query.shape, key.shape, value.shape)[:-1], dtype=dtype)


def _attention_backward(*given: Any) -> tuple[Tensor, ...]:
    arguments = attention_backward.arguments(*given)
    return tuple(
        torch.empty_like(getattr(arguments, name)) if wanted else arguments.output.new_empty(0)
        for name, wanted in zip(INPUTS, arguments.wanted, strict=True)
    )


def _attention_jvp(*given: Any) -> tuple[Tensor, ...]:
    call = call_of(attention_jvp.arguments(*given))
    query, key, value = call.query, call.key, call.value
    output, lse = (
        query.new_empty(output_shape(query.shape, key.shape, value.shape)),
        _empty_lse(query, key, value),
    )
    return output, torch.empty_like(output), lse, torch.empty_like(lse)


def _attention_double_backward(*given: Any) -> tuple[Tensor, ...]:
    arguments = attention_double_backward.arguments(*given)
    lse, query, key, value = arguments.lse, arguments.query, arguments.key, arguments.value
    shape = output_shape(query.shape, key.shape, value.shape)
    new = [query.new_empty(tensor.shape) for tensor in (query, key, value)]
    return query.new_empty(shape), lse.new_empty(lse.shape), *new


for _operator, _kernel in (
    (attention, _attention),
    (attention_backward, _attention_backward),
    (attention_jvp, _attention_jvp),
    (attention_double_backward, _attention_double_backward),
):
    torch.library.register_fake(f"regard::{_operator.name}", _kernel, lib=library)
