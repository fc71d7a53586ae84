"""The operators under `torch.vmap`: one call, in which the mapped axis is one more batch axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from regard.torch import _operators
from regard.torch._memory import output_shape
from regard.torch._operators import INPUT_COUNT, library

if TYPE_CHECKING:
    from torch import Tensor

_SINKS = INPUT_COUNT - 1
_DROPOUT_P = -3
# The axes that an argument has less than query, key and value: of inputs and tensor options.
_FEWER_AXES = (0, 0, 0, 0, 2, None, 0, 3, 3, 3, None)


def _rule(
    operator: Any, before: tuple[int, ...], results: Callable[..., tuple[Any, ...]]
) -> Callable[..., Any]:
    """Return what PyTorch calls for an operator.

    `before` has the number of axes that arguments before the query have less than it, and `results`
    gives the shapes of one sample's results from those of its arguments.
    """
    first = len(before)
    fewer_axes = (*before, *_FEWER_AXES)

    def rule(info: Any, in_dims: tuple[int | None, ...], *given: Any) -> Any:
        size, count = info.batch_size, len(fewer_axes)
        tensors, dims, numbers = given[:count], in_dims[:count], given[count:]
        is_gradient = operator is _operators.attention_backward
        wanted = numbers[-1] if is_gradient else ()
        dropout_p = numbers[_DROPOUT_P - is_gradient]
        has_own_sinks = dims[first + _SINKS] is not None or any(wanted[_SINKS:])
        if dropout_p or has_own_sinks:
            # What is dropped follows from a batch entry's number, and sinks have no batch axes.
            found = _one_by_one(operator, size, dims, tensors, numbers)
        else:
            sample = [_shape(*each) for each in zip(tensors, dims, strict=True)]
            rank = max(3, *(len(shape) for shape in sample[first : first + 3] if shape is not None))
            mapped = [
                tensor
                if tensor is None or fewer is None
                else _lead(tensor, dim, size, rank - fewer)
                for tensor, dim, fewer in zip(tensors, dims, fewer_axes, strict=True)
            ]
            found = operator(*mapped, *numbers)
            shapes = results(sample, wanted)
            found = [
                each.expand(size, 0) if shape is None else each.reshape(size, *shape)
                for each, shape in zip(found, shapes, strict=True)
            ]
        return tuple(found), (0,) * len(found)

    return rule


def _lead(tensor: Tensor, dim: int | None, size: int, rank: int) -> Tensor:
    """Return a tensor with the mapped axis first, and then `rank` axes."""
    mapped = tensor.unsqueeze(0) if dim is None else tensor.movedim(dim, 0)
    mapped = mapped.reshape(mapped.shape[0], *(1,) * (rank + 1 - mapped.ndim), *mapped.shape[1:])
    return mapped.expand(size, *mapped.shape[1:])


def _shape(tensor: Tensor | None, dim: int | None) -> tuple[int, ...] | None:
    """Return the shape of one sample."""
    if tensor is None:
        return None
    shape = list(tensor.shape)
    if dim is not None:
        del shape[dim]
    return tuple(shape)


def _one_by_one(
    operator: Any,
    size: int,
    dims: tuple[int | None, ...],
    tensors: tuple[Any, ...],
    numbers: tuple[Any, ...],
) -> list[Tensor]:
    """Call an operator for each sample, or for zeros if there is none."""

    def sample(i: int) -> Any:
        for tensor, dim in zip(tensors, dims, strict=True):
            if dim is None:
                yield tensor
            else:
                yield tensor.select(dim, i) if size else tensor.new_zeros(_shape(tensor, dim))

    found = [operator(*sample(i), *numbers) for i in range(max(size, 1))]
    return [torch.stack(each)[:size] for each in zip(*found, strict=True)]


def _rows(sample: list[Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape = output_shape(*sample)
    return shape, shape[:-1]


def _of_attention(sample: list[Any], _: Any) -> tuple[Any, ...]:
    return _rows(sample[:3])


def _of_backward(sample: list[Any], wanted: list[bool]) -> tuple[Any, ...]:
    inputs = sample[4 : 4 + INPUT_COUNT]
    return tuple(
        shape if is_wanted else None for shape, is_wanted in zip(inputs, wanted, strict=True)
    )


def _of_jvp(sample: list[Any], _: Any) -> tuple[Any, ...]:
    output, lse = _rows(sample[3:6])
    return output, output, lse, lse


def _of_double_backward(sample: list[Any], _: Any) -> tuple[Any, ...]:
    return *_rows(sample[7:10]), *sample[7:10]


for _operator, _before, _results in (
    (_operators.attention, (), _of_attention),
    (_operators.attention_backward, (0, 1, 0, 1), _of_backward),
    (_operators.attention_jvp, (0, 0, 0), _of_jvp),
    (_operators.attention_double_backward, (0, 0, 0, 0, 1, 0, 1), _of_double_backward),
):
    torch.library.register_vmap(
        _operator.name().split(".")[0], _rule(_operator, _before, _results), lib=library
    )
