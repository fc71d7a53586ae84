"""What the operators compute on a CPU: regard's calls on the memory of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import regard
from regard.torch._memory import as_array, as_optional_array, as_tensor, empty_output
from regard.torch._operators import INPUT_COUNT, TENSOR_OPTION_COUNT, library

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    Array = NDArray[Any]

_GRADIENTS = regard.AttentionGradients._fields


def call_arguments(given: tuple[Any, ...]) -> tuple[list[Array], Any]:
    """Return query, key and value as arrays, and the keywords of regard's calls."""
    arrays = [as_array(tensor) for tensor in given[:3]]
    float_mask, slopes, sinks = map(as_optional_array, given[3:INPUT_COUNT])
    tensors = given[INPUT_COUNT : INPUT_COUNT + TENSOR_OPTION_COUNT]
    shown, offsets, lengths, paddings = map(as_optional_array, tensors[:4])
    (
        is_causal,
        offset,
        left,
        right,
        length,
        padding,
        scale,
        softcap,
        dropout_p,
        origin,
        threads,
    ) = given[INPUT_COUNT + TENSOR_OPTION_COUNT :]
    mask: Any = shown if float_mask is None else float_mask
    if shown is not None and float_mask is not None:
        mask = (shown, float_mask)
    keywords = {
        "mask": mask,
        "is_causal": is_causal,
        "query_offset": "end" if offset is None and offsets is None else _either(offset, offsets),
        "window": None if left is None and right is None else (left, right),
        "key_lengths": _either(length, lengths),
        "left_padding": _either(padding, paddings),
        "scale": scale,
        "softcap": softcap,
        "alibi_slopes": slopes,
        "sinks": sinks,
        "threads": threads,
    }
    if dropout_p:
        keywords |= {"dropout_p": dropout_p, "dropout_seed": int(tensors[4]) % 2**64}
        keywords["dropout_origin"] = tuple(origin)
    return arrays, keywords


def _either(number: int | None, array: Array | None) -> Any:
    return number if array is None else array


def _attention(*given: Any) -> tuple[Tensor, Tensor]:
    output = empty_output(*given[:3])
    arrays, keywords = call_arguments(given)
    _, lse = regard.scaled_dot_product_attention(
        *arrays, **keywords, return_lse=True, out=as_array(output)
    )
    return output, as_tensor(lse)


def _attention_backward(
    grad_output: Tensor,
    grad_lse: Tensor | None,
    output: Tensor,
    lse: Tensor,
    *given: Any,
) -> tuple[Tensor, ...]:
    *call, wanted = given
    arrays, keywords = call_arguments(tuple(call))
    gradients = [
        torch.empty_like(tensor) if is_wanted else output.new_empty(0)
        for tensor, is_wanted in zip(call[:INPUT_COUNT], wanted, strict=True)
    ]
    out = (
        as_array(gradient) if is_wanted else None
        for gradient, is_wanted in zip(gradients, wanted, strict=True)
    )
    arguments: Any = (as_array(grad_output), *arrays, as_array(output), as_array(lse))
    keywords["with_respect_to"] = [
        name for name, is_wanted in zip(_GRADIENTS, wanted, strict=True) if is_wanted
    ]
    keywords["grad_lse"] = as_optional_array(grad_lse)
    keywords["out"] = regard.AttentionGradients(*out)
    regard.scaled_dot_product_attention_backward(*arguments, **keywords)
    return tuple(gradients)


def _attention_jvp(
    tangent_query: Tensor | None,
    tangent_key: Tensor | None,
    tangent_value: Tensor | None,
    *given: Any,
) -> tuple[Tensor, ...]:
    arrays, keywords = call_arguments(given)
    tangents = map(as_optional_array, (tangent_query, tangent_key, tangent_value))
    return _new(
        regard.scaled_dot_product_attention_jvp(*arrays, *tangents, **keywords, return_lse=True)
    )


def _attention_double_backward(
    grad_grad_query: Tensor | None,
    grad_grad_key: Tensor | None,
    grad_grad_value: Tensor | None,
    grad_output: Tensor,
    grad_lse: Tensor | None,
    output: Tensor,
    lse: Tensor,
    *given: Any,
) -> tuple[Tensor, ...]:
    arrays, keywords = call_arguments(given)
    tangents = [
        as_optional_array(tensor) for tensor in (grad_grad_query, grad_grad_key, grad_grad_value)
    ]
    arguments: Any = (
        *(*tangents, as_array(grad_output)),
        *(*arrays, as_array(output), as_array(lse)),
    )
    of_output, *of_inputs = regard.scaled_dot_product_attention_double_backward(
        *arguments, **keywords, grad_lse=as_optional_array(grad_lse)
    )
    # <cotangents, gradients> is <derivative of the output, grad_output> + <derivative of lse,
    # grad_lse>, so the gradient of grad_lse is the derivative of lse along the cotangents.
    *_, of_lse = regard.scaled_dot_product_attention_jvp(
        *arrays, *tangents, **keywords, return_lse=True
    )
    return _new((of_output, of_lse, *of_inputs))


def _new(arrays: tuple[Array, ...]) -> tuple[Tensor, ...]:
    return tuple(as_tensor(np.ascontiguousarray(array)) for array in arrays)


library.impl("attention", _attention, "CPU")
library.impl("attention_backward", _attention_backward, "CPU")
library.impl("attention_jvp", _attention_jvp, "CPU")
library.impl("attention_double_backward", _attention_double_backward, "CPU")
