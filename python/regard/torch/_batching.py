"""The operators under `torch.vmap`.

Dense tensors are one call, in which the mapped axis is an additional batch axis. Packed sequences
are one call for each sample, because they have no batch axes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from regard._arguments.option_table import OPTIONS
from regard.torch._memory import dense_shape
from regard.torch._operators import (
    INPUTS,
    SPARSE_TENSORS,
    Operator,
    attention_double_backward,
    attention_jvp,
    dense,
    library,
    ragged,
    tensor_name,
)

if TYPE_CHECKING:
    from torch import Tensor


# The first of its tensors has the axes of the mask before queries, and one more. The others have
# no batch axes.
_OF_SPARSE_MASKS = {SPARSE_TENSORS[0]: 1, **dict.fromkeys(SPARSE_TENSORS[1:])}


def _fewer_axes(name: str) -> int | None:
    """Return how many axes fewer than query a tensor has, or None if it has no batch axes."""
    option = OPTIONS.get(name.removesuffix(tensor_name("")))
    if option is None:
        return _OF_SPARSE_MASKS.get(name, 0)  # arrays and masks
    return 4 - len(option.axes) if "batch" in option.axes else None


# The same for the arguments that precede the call's.
_OF_RESULTS = {"grad_output": 0, "grad_lse": 1, "output": 0, "lse": 1}
_WITHOUT_BATCH = frozenset(name for name in dense.attention.tensors if _fewer_axes(name) is None)


def _rule(operator: Operator, results: Callable[..., tuple[Any, ...]]) -> Callable[..., Any]:
    """Return the vmap rule of an operator.

    `results` computes the shapes of one sample's results from the shapes of its arguments.
    """
    names = operator.tensors
    fewer_axes = [_OF_RESULTS.get(name, _fewer_axes(name)) for name in names]

    def rule(info: Any, in_dims: tuple[int | None, ...], *given: Any) -> Any:
        size, count = info.batch_size, len(names)
        tensors, dims, numbers = given[:count], in_dims[:count], given[count:]
        arguments = operator.arguments(*given)
        wanted = dict(zip(INPUTS, getattr(arguments, "wanted", ()), strict=False))
        mapped_names = {name for name, dim in zip(names, dims, strict=True) if dim is not None}
        mapped_names |= {name for name, is_wanted in wanted.items() if is_wanted}
        if arguments.dropout_p or arguments.score_function or mapped_names & _WITHOUT_BATCH:
            # Dropout and score functions depend on the number of a batch entry, and sinks have no
            # batch axes.
            found = _one_by_one(operator, size, dims, given)
        else:
            shapes = dict(zip(names, map(_shape, tensors, dims), strict=True))
            ranks = (len(shapes[name] or ()) for name in ("query", "key", "value"))
            rank = max(3, *ranks)
            mapped = [
                tensor
                if tensor is None or fewer is None
                else _lead(tensor, dim, size, rank - fewer)
                for tensor, dim, fewer in zip(tensors, dims, fewer_axes, strict=True)
            ]
            found = operator(*mapped, *numbers)
            found = [
                each.expand(size, 0) if shape is None else each.reshape(size, *shape)
                for each, shape in zip(found, results(shapes, wanted), strict=True)
            ]
        return tuple(found), (0,) * len(found)

    return rule


def _rule_by_one(operator: Operator) -> Callable[..., Any]:
    """Return the vmap rule of an operator for packed sequences."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *given: Any) -> Any:
        found = _one_by_one(operator, info.batch_size, in_dims, given)
        return tuple(found), (0,) * len(found)

    return rule


def _lead(tensor: Tensor, dim: int | None, size: int, rank: int) -> Tensor:
    """Return a tensor with the mapped axis first, followed by `rank` axes."""
    mapped = tensor.unsqueeze(0) if dim is None else tensor.movedim(dim, 0)
    mapped = mapped.reshape(mapped.shape[0], *(1,) * (rank + 1 - mapped.ndim), *mapped.shape[1:])
    return mapped.expand(size, *mapped.shape[1:])


def _shape(tensor: Tensor | None, dim: int | None) -> Any:
    """Return the shape of one sample."""
    if tensor is None:
        return None
    shape = list(tensor.shape)
    if dim is not None:
        del shape[dim]
    return tuple(shape)


def _one_by_one(
    operator: Operator, size: int, dims: tuple[int | None, ...], given: tuple[Any, ...]
) -> list[Tensor]:
    """Call an operator for each sample, or once with valid numbers if there are no samples."""
    names = operator.tensors
    numbers = given[len(names) :]
    shapes = dict(zip(names, map(_shape, given, dims), strict=False))

    def sample(i: int) -> Any:
        for name, tensor, dim in zip(names, given, dims, strict=False):
            if dim is None:
                yield tensor
            elif size:
                yield tensor.select(dim, i)
            else:
                yield valid(name, tensor)

    def valid(name: str, tensor: Tensor) -> Tensor:
        # A cap must be positive.
        new = tensor.new_ones if tensor.is_floating_point() else tensor.new_zeros
        numbers = new(shapes[name])
        if name in ragged.starts:  # the last sequence has all rows
            numbers[-1:] = shapes[name.removesuffix("_starts")][0]
        return numbers

    found = [operator(*sample(i), *numbers) for i in range(max(size, 1))]
    return [torch.stack(each)[:size] for each in zip(*found, strict=True)]


def _rows(shapes: dict[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape = dense_shape(shapes["query"], shapes["key"], shapes["value"])
    return shape, shape[:-1]


def _of_attention(shapes: dict[str, Any], _: Any) -> tuple[Any, ...]:
    return _rows(shapes)


def _of_backward(shapes: dict[str, Any], wanted: dict[str, bool]) -> tuple[Any, ...]:
    return tuple(shapes[name] if wanted[name] else None for name in INPUTS)


def _of_jvp(shapes: dict[str, Any], _: Any) -> tuple[Any, ...]:
    output, lse = _rows(shapes)
    return output, output, lse, lse


def _of_double_backward(shapes: dict[str, Any], _: Any) -> tuple[Any, ...]:
    return *_rows(shapes), shapes["query"], shapes["key"], shapes["value"]


for _operator, _results in (
    (dense.attention, _of_attention),
    (dense.attention_backward, _of_backward),
    (attention_jvp, _of_jvp),
    (attention_double_backward, _of_double_backward),
):
    torch.library.register_vmap(
        f"regard::{_operator.name}", _rule(_operator, _results), lib=library
    )
for _operator in (ragged.attention, ragged.attention_backward):
    torch.library.register_vmap(f"regard::{_operator.name}", _rule_by_one(_operator), lib=library)
