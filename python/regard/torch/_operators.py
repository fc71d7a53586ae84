"""Regard's PyTorch operators: `attention`, `attention_backward` and `attention_jvp`.

They have the arguments of a call as `_options` packs them. Packed sequences are calls with the
tensors ``query_starts`` and ``key_starts``. `compute` and `compute_gradients` are what the
operators do on the CPU, for calls that nothing but autograd records.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._subclasses import FakeTensor
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy
from torch.utils.flop_counter import register_flop_formula

import regard
from regard._arguments.option_table import OPTIONS
from regard.torch._arguments import with_own_names
from regard.torch._counting import count_call
from regard.torch._memory import as_array, as_tensor, dense_shape, empty_output
from regard.torch._options import (
    ARGUMENTS,
    INPUTS,
    ROLES,
    SCHEMA,
    STARTS,
    TENSORS,
    numpy_keywords,
    unpacked,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from torch.fx import Graph, Node

RESULTS = ("grad_output", "grad_lse", "output", "lse")
TANGENTS = tuple(f"tangent_{name}" for name in ROLES)
_BEFORE = "Tensor grad_output, Tensor? grad_lse, Tensor output, Tensor lse"
_GRADIENTS = ", ".join(f"Tensor grad_{name}" for name in INPUTS)

library = torch.library.Library("regard", "FRAGMENT")
library.define(f"attention({SCHEMA}) -> (Tensor output, Tensor lse)")
library.define(f"attention_backward({_BEFORE}, {SCHEMA}, str[] wanted) -> ({_GRADIENTS})")
library.define(
    f"attention_jvp({', '.join(f'Tensor? {name}' for name in TANGENTS)}, {SCHEMA}) -> "
    "(Tensor tangent_output, Tensor tangent_lse)"
)
attention = torch.ops.regard.attention.default
attention_backward = torch.ops.regard.attention_backward.default
attention_jvp = torch.ops.regard.attention_jvp.default


def output_shape(call: dict[str, Any]) -> tuple[int, ...]:
    """Return the shape of the output of a call."""
    query, key, value = (call[name].shape for name in ROLES)
    return (*query[:-1], value[-1]) if STARTS[0] in call else dense_shape(query, key, value)


def compute(call: dict[str, Any], arrays: dict[str, Any], *, return_lse: bool = True) -> Any:
    """Compute the output, in the query's layout, and lse, which is None unless `return_lse`.

    `arrays` is the call with arrays in place of tensors.
    """
    words, query, output = numpy_keywords(arrays), call["query"], None
    if not query.is_contiguous():
        output = empty_output(query, output_shape(call))
        words["out"] = as_array(output)
    attend: Callable[..., Any] = regard.scaled_dot_product_attention
    if STARTS[0] in words:
        attend = regard.scaled_dot_product_attention_ragged
    try:
        if return_lse:
            result, lse = attend(**words, return_lse=True)
        else:
            result, lse = attend(**words), None
    except (TypeError, ValueError) as error:
        raise with_own_names(error) from None
    return as_tensor(result) if output is None else output, None if lse is None else as_tensor(lse)


def compute_gradients(
    call: dict[str, Any], arrays: dict[str, Any], wanted: tuple[str, ...]
) -> list[Tensor]:
    """Compute the gradients of the inputs `wanted`.

    `arrays` is the call with arrays in place of tensors, including the results and their gradients.
    """
    fields = {name: "mask" if name == "float_mask" else name for name in wanted}
    # A gradient in the layout of its tensor needs no copy when views of the tensor are undone.
    new = {name: torch.empty_like(call[name]) for name in wanted if not call[name].is_contiguous()}
    out = None
    if new:
        out = regard.AttentionGradients(**{fields[n]: as_array(each) for n, each in new.items()})
    backward: Callable[..., Any] = regard.scaled_dot_product_attention_backward
    if STARTS[0] in call:
        backward = regard.scaled_dot_product_attention_ragged_backward
    words = numpy_keywords(arrays)
    found = backward(**words, with_respect_to=[*fields.values()], out=out)
    return [
        new[name] if name in new else as_tensor(getattr(found, field))
        for name, field in fields.items()
    ]


def _attention(*given: Any) -> tuple[Tensor, Tensor]:
    call = unpacked(*given)
    results: tuple[Tensor, Tensor] = compute(call, call)
    count_call()
    return results


def _attention_backward(*given: Any) -> tuple[Tensor, ...]:
    results, call, wanted = given[:4], unpacked(*given[4:-1]), given[-1]
    gradients = compute_gradients(call, call | dict(zip(RESULTS, results, strict=True)), wanted)
    return all_gradients(gradients, results[0], wanted)


def _attention_jvp(*given: Any) -> tuple[Tensor, ...]:
    """Compute the derivatives of output and lse along tangents, None for those that are zero."""
    call = unpacked(*given[3:]) | dict(zip(TANGENTS, given, strict=False))
    results = regard.scaled_dot_product_attention_jvp(**numpy_keywords(call), return_lse=True)
    return tuple(as_tensor(np.ascontiguousarray(each)) for each in results[1::2])


def all_gradients(gradients: list[Tensor], like: Tensor, wanted: Any) -> tuple[Tensor, ...]:
    """Return the gradients of all inputs, as an operator does: empty tensors if unwanted."""
    each = dict(zip(wanted, gradients, strict=True))
    return tuple(each[name] if name in each else like.new_empty(0) for name in INPUTS)


def _fake_attention(*given: Any) -> tuple[Tensor, Tensor]:
    call = unpacked(*given)
    query, shape = call["query"], output_shape(call)
    dtype = torch.float64 if query.dtype is torch.float64 else torch.float32
    return empty_output(query, shape), query.new_empty(shape[:-1], dtype=dtype)


def _fake_backward(*given: Any) -> tuple[Tensor, ...]:
    call = unpacked(*given[4:-1])
    gradients = [torch.empty_like(call[name]) for name in given[-1]]
    return all_gradients(gradients, given[0], given[-1])


def _fake_jvp(*given: Any) -> tuple[Tensor, ...]:
    return tuple(each.new_empty(each.shape) for each in _fake_attention(*given[3:]))


# Arguments that depend on the number of a batch entry, or whose tensors have no batch axes.
_APART = (STARTS[0], "dropout_p", "score_function")
# The first tensor of a sparse mask has the axes of the mask before queries, and one more.
_FEWER_AXES = {"grad_lse": 1, "lse": 1, "mask_starts": 1}


def _axes_of(name: str, rank: int) -> int | None:
    """Return how many axes a tensor of a call of `rank` axes may have; None if without batch."""
    option = OPTIONS.get(name)
    if option is None:
        return None if name in ("mask_spans", "mask_bits") else rank - _FEWER_AXES.get(name, 0)
    return rank - 4 + len(option.axes) if "batch" in option.axes else None


def _vmap_rule(
    operator: Any, fake: Callable[..., Any], before: tuple[str, ...]
) -> Callable[..., Any]:
    """Return the rule of an operator under `torch.vmap`.

    The mapped axis becomes another batch axis of one call, if all that is mapped has batch axes and
    nothing depends on the number of an entry. Otherwise, there is a call for each sample.
    """
    names = (*before, *TENSORS)
    count = len(names)

    def rule(info: Any, in_dims: tuple[Any, ...], *given: Any) -> Any:
        size, tensors, dims, after = info.batch_size, given[:count], in_dims[:count], given[count:]
        samples = [
            x if dim is None else x.new_empty([*x.shape[:dim], *x.shape[dim + 1 :]])
            for x, dim in zip(tensors, dims, strict=True)
        ]
        one = dict(zip((*before, *ARGUMENTS), (*samples, *after), strict=False))
        wanted = given[-1] if len(given) > len(before) + len(ARGUMENTS) else ()
        rank = max(3, *(one[role].ndim for role in ROLES))
        axes = [_axes_of(name, rank) for name in names]
        is_apart = any(one[name] is not None for name in _APART) or any(
            axis is None and (dim is not None or name in wanted)
            for name, dim, axis in zip(names, dims, axes, strict=True)
        )
        if not size:
            found = [x.new_empty((0, *x.shape)) for x in fake(*samples, *after)]
        elif is_apart:
            each = [
                operator(
                    *(
                        x if dim is None else x.select(dim, i)
                        for x, dim in zip(tensors, dims, strict=True)
                    ),
                    *after,
                )
                for i in range(size)
            ]
            found = [torch.stack(x) for x in zip(*each, strict=True)]
        else:
            shapes = [x.shape for x in fake(*samples, *after)]
            merged = [
                x if x is None or axis is None else _lead(x, dim, size, axis)
                for x, dim, axis in zip(tensors, dims, axes, strict=True)
            ]
            found = [
                x.reshape(size, *shape) if x.ndim > 1 else x.expand(size, 0)
                for x, shape in zip(operator(*merged, *after), shapes, strict=True)
            ]
        return tuple(found), (0,) * len(found)

    return rule


def _lead(tensor: Tensor, dim: int | None, size: int, axes: int) -> Tensor:
    """Return a tensor with the mapped axis first, followed by a number of axes."""
    mapped = tensor.unsqueeze(0) if dim is None else tensor.movedim(dim, 0)
    mapped = mapped.reshape(mapped.shape[0], *(1,) * (axes + 1 - mapped.ndim), *mapped.shape[1:])
    return mapped.expand(size, *mapped.shape[1:])


def _flops(products: tuple[int, int], *given: Any, **_: Any) -> int:
    """Return the operations of matrix products over all pairs, as for PyTorch's own attention."""
    call = unpacked(*given)
    shape = output_shape(call)
    kv_len, head_dim = call["key"].shape[-2:]
    starts = [call[name] for name in STARTS if name in call]
    if not starts:
        pairs = prod(shape[:-1]) * kv_len
    elif any(isinstance(each, FakeTensor) or each.is_meta for each in starts):
        pairs = shape[-2] * len(call["query"]) * len(call["key"])  # an upper bound
    else:
        queries, keys = (each.diff().long() for each in starts)
        pairs = shape[-2] * int(torch.dot(queries, keys))
    over_head_dim, over_value_dim = products
    columns = over_head_dim * head_dim + over_value_dim * shape[-1]
    return int(2 * pairs * columns)


def draw_seed() -> Tensor:
    """Draw a seed from PyTorch's default CPU generator."""
    # As torch.randint, which Inductor replaces by separate generators, which forget the mark.
    seed: Tensor = torch.ops.aten.randint.low_generator(
        0, 2**63 - 1, (), generator=None, dtype=torch.int64, device="cpu"
    )
    return seed


def _recorded_with_seed(mode: Any, operator: Any, types: Any, given: Any, named: Any) -> Any:
    """Record a call in a graph.

    To save memory, a compiler may compute any part of the forward pass again in the backward pass.
    It restores the state of the generator only for random operators that are marked as if they were
    in a checkpointed region. It refuses to compile a forward pass by itself with such an operator.
    """
    results = mode.__torch_dispatch__(operator, types, given, named)
    graph = mode.tracer.graph
    seed = graph.find_nodes(op="call_function", target=operator)[-1].args[
        TENSORS.index("dropout_seed")
    ]
    if seed is not None and _has_backward(graph):
        _mark(seed)
    return results


def _has_backward(graph: Graph) -> bool:
    return any("tangents" in str(node.target) for node in graph.find_nodes(op="placeholder"))


def _mark(seed: Node) -> None:
    """Mark the random operators from which a seed is computed."""
    nodes = [seed]
    for node in nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            node.meta["recompute"] = CheckpointPolicy.PREFER_RECOMPUTE
        nodes += [each for each in node.all_input_nodes if each not in nodes]


def _register() -> None:
    library.impl("attention", _attention, "CPU")
    library.impl("attention_backward", _attention_backward, "CPU")
    library.impl("attention_jvp", _attention_jvp, "CPU")
    for operator, fake, before in (
        (attention, _fake_attention, ()),
        (attention_backward, _fake_backward, RESULTS),
        (attention_jvp, _fake_jvp, TANGENTS),
    ):
        torch.library.register_fake(operator, fake, lib=library)
        torch.library.register_vmap(operator, _vmap_rule(operator, fake, before), lib=library)
    torch.library.register_torch_dispatch(
        attention, ProxyTorchDispatchMode, _recorded_with_seed, lib=library
    )
    # The backward pass computes the scores again.
    register_flop_formula(torch.ops.regard.attention, get_raw=True)(
        lambda *given, **_: _flops((1, 1), *given)
    )
    register_flop_formula(torch.ops.regard.attention_backward, get_raw=True)(
        lambda *given, **_: _flops((3, 2), *given[4:-1])
    )
    register_flop_formula(torch.ops.regard.attention_jvp, get_raw=True)(
        lambda *given, **_: _flops((3, 3), *given[3:])
    )


_register()
