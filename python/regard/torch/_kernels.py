"""The operators' CPU kernels: regard's calls on the memory of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import regard
from regard.torch._arguments import with_own_names
from regard.torch._counting import count_call
from regard.torch._memory import as_array, as_optional_array, as_tensor, empty_output
from regard.torch._operators import (
    INPUTS,
    Layout,
    attention_double_backward,
    attention_jvp,
    dense,
    library,
    ragged,
)
from regard.torch._options import keywords_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from torch import Tensor

    Array = NDArray[Any]

# The fields of `regard.AttentionGradients` whose inputs have another name.
_FIELDS = {"float_mask": "mask"}


def _arrays(call: Any) -> tuple[Array, Array, Array]:
    return as_array(call.query), as_array(call.key), as_array(call.value)


def _starts(layout: Layout, call: Any) -> tuple[Array, ...]:
    return tuple(map(as_array, layout.starts_of(call)))


def _attention(layout: Layout) -> Callable[..., tuple[Tensor, Tensor]]:
    def kernel(*given: Any) -> tuple[Tensor, Tensor]:
        call = layout.Call(*given)
        output = empty_output(call.query, layout.shape_of(call))
        try:
            _, lse = layout.attend(
                *_arrays(call),
                *_starts(layout, call),
                **keywords_of(call),
                return_lse=True,
                out=as_array(output),
            )
        except (TypeError, ValueError) as error:
            raise with_own_names(error) from None
        count_call()
        return output, as_tensor(lse)

    return kernel


def _attention_backward(layout: Layout) -> Callable[..., tuple[Tensor, ...]]:
    def kernel(*given: Any) -> tuple[Tensor, ...]:
        arguments = layout.attention_backward.arguments(*given)
        call = layout.call_of(arguments)
        inputs = {name: getattr(call, name) for name in INPUTS}
        wanted = dict(zip(INPUTS, arguments.wanted, strict=True))
        gradients = {
            name: torch.empty_like(tensor) if wanted[name] else arguments.output.new_empty(0)
            for name, tensor in inputs.items()
        }
        fields = {name: _FIELDS.get(name, name) for name in INPUTS if wanted[name]}
        out = {field: as_array(gradients[name]) for name, field in fields.items()}
        layout.backward(
            as_array(arguments.grad_output),
            *_arrays(call),
            *_starts(layout, call),
            as_array(arguments.output),
            as_array(arguments.lse),
            **keywords_of(call),
            grad_lse=as_optional_array(arguments.grad_lse),
            with_respect_to=list(out),
            out=regard.AttentionGradients(**out),
        )
        return tuple(gradients.values())

    return kernel


def _attention_jvp(*given: Any) -> tuple[Tensor, ...]:
    arguments = attention_jvp.arguments(*given)
    tangents = (arguments.tangent_query, arguments.tangent_key, arguments.tangent_value)
    return _new(_along(dense.call_of(arguments), tangents))


def _attention_double_backward(*given: Any) -> tuple[Tensor, ...]:
    arguments = attention_double_backward.arguments(*given)
    call = dense.call_of(arguments)
    cotangents = (
        arguments.grad_grad_query,
        arguments.grad_grad_key,
        arguments.grad_grad_value,
    )
    each: Any = (
        *map(as_optional_array, cotangents),
        as_array(arguments.grad_output),
        *_arrays(call),
        as_array(arguments.output),
        as_array(arguments.lse),
    )
    of_output, *of_inputs = regard.scaled_dot_product_attention_double_backward(
        *each, **keywords_of(call), grad_lse=as_optional_array(arguments.grad_lse)
    )
    # <cotangents, gradients> is <derivative of the output, grad_output> + <derivative of lse,
    # grad_lse>, so the gradient of grad_lse is the derivative of lse along the cotangents.
    *_, of_lse = _along(call, cotangents)
    return _new((of_output, of_lse, *of_inputs))


def _along(call: Any, tangents: tuple[Tensor | None, ...]) -> tuple[Array, ...]:
    """Return the output, lse and their derivatives along the tangents of query, key and value."""
    results: tuple[Array, ...] = regard.scaled_dot_product_attention_jvp(
        *_arrays(call), *map(as_optional_array, tangents), **keywords_of(call), return_lse=True
    )
    return results


def _new(arrays: tuple[Array, ...]) -> tuple[Tensor, ...]:
    return tuple(as_tensor(np.ascontiguousarray(array)) for array in arrays)


for _operator, _kernel in (
    *((layout.attention, _attention(layout)) for layout in (dense, ragged)),
    *((layout.attention_backward, _attention_backward(layout)) for layout in (dense, ragged)),
    (attention_jvp, _attention_jvp),
    (attention_double_backward, _attention_double_backward),
):
    library.impl(_operator.name, _kernel, "CPU")
