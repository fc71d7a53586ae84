"""What the operators say of results without numbers: to compilers, and on the device meta."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from regard.torch._memory import empty_output, output_shape
from regard.torch._operators import INPUT_COUNT, library

if TYPE_CHECKING:
    from torch import Tensor


def _attention(*given: Any) -> tuple[Tensor, Tensor]:
    query, key, value = given[:3]
    return empty_output(query, key, value), _empty_lse(query, key, value)


def _empty_lse(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    dtype = torch.float64 if query.dtype is torch.float64 else torch.float32
    return query.new_empty(output_shape(query.shape, key.shape, value.shape)[:-1], dtype=dtype)


def _attention_backward(*given: Any) -> tuple[Tensor, ...]:
    _, _, output, _, *call, wanted = given
    return tuple(
        torch.empty_like(tensor) if is_wanted else output.new_empty(0)
        for tensor, is_wanted in zip(call[:INPUT_COUNT], wanted, strict=True)
    )


def _attention_jvp(*given: Any) -> tuple[Tensor, ...]:
    query, key, value = given[3:6]
    output, lse = (
        query.new_empty(output_shape(query.shape, key.shape, value.shape)),
        _empty_lse(query, key, value),
    )
    return output, torch.empty_like(output), lse, torch.empty_like(lse)


def _attention_double_backward(*given: Any) -> tuple[Tensor, ...]:
    lse, query, key, value = given[6:10]
    shape = output_shape(query.shape, key.shape, value.shape)
    new = [query.new_empty(tensor.shape) for tensor in (query, key, value)]
    return query.new_empty(shape), lse.new_empty(lse.shape), *new


def _register(name: str, kernel: Any) -> None:
    torch.library.register_fake(f"regard::{name}", kernel, lib=library)


_register("attention", _attention)
_register("attention_backward", _attention_backward)
_register("attention_jvp", _attention_jvp)
_register("attention_double_backward", _attention_double_backward)
