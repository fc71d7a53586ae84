"""The call with its derivatives.

A call that nothing but autograd records is computed at once, because PyTorch's dispatcher takes far
longer than attention over small tensors. Otherwise, it is an operator. Both have the same autograd
functions.

Functions of the kind that users write cannot take part in `torch.func` within an operator, and
become wrong if the transform is compiled. PyTorch's own operators have functions of a single level,
as those here.

Gradients, and the derivatives of forward mode along query, key and value, are fused. Their
derivatives, and forward mode along other inputs, are those of the formula.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C import _get_tracing_state, _len_torch_dispatch_stack
from torch._C._functorch import TransformType, get_interpreter_stack
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction
from torch.compiler import is_compiling

from regard._gradients.formula import attention_formula
from regard.torch._memory import NO_TENSORS, arrays_of
from regard.torch._operators import (
    RESULTS,
    TANGENTS,
    all_gradients,
    attention,
    attention_backward,
    attention_jvp,
    compute,
    compute_gradients,
    library,
    output_shape,
)
from regard.torch._options import INPUTS, ROLES, STARTS, TENSORS, checked, packed, unpacked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_SECOND = "the second derivative of attention"
_FORWARD = "the derivative of attention in forward mode"
_NOT_PACKED = (
    "is not implemented for packed sequences: call regard.torch.scaled_dot_product_attention for "
    "each sequence"
)


def is_eager() -> bool:
    """Return whether no compiler, mode or dual number sees a call."""
    return not (
        is_compiling()
        or _len_torch_dispatch_stack()
        or _get_tracing_state() is not None
        or forward_ad._current_level >= 0
    )


def is_recorded(values: Iterable[Any]) -> bool:
    """Return whether autograd records a call with tensors among these values."""
    if torch.is_grad_enabled():
        for each in values:
            if type(each) not in NO_TENSORS and isinstance(each, Tensor) and each.requires_grad:
                return True
    return False


def has_tangents(tensors: Iterable[Tensor | None]) -> bool:
    """Return whether tensors have tangents at the current level of derivatives."""
    return forward_ad._current_level >= 0 and any(
        each is not None and forward_ad.unpack_dual(each).tangent is not None for each in tensors
    )


def attend(call: dict[str, Any], *, return_lse: bool) -> tuple[Tensor, Any]:
    """Compute output and lse, which may be None unless `return_lse`.

    `call` has the tensors by name, and the options that are not None.
    """
    if is_eager():
        records = is_recorded(call.values())
        # A caller may change lists and arrays before the backward pass.
        found = checked(call) if records else call
        arrays = arrays_of(found)
        if arrays is not None and records:
            return record(partial(compute, found, arrays), found)
        if arrays is not None:
            return compute(found, arrays, return_lse=return_lse)  # type: ignore[no-any-return]
    found = checked(call)
    # Only outside an operator can the formula see all levels.
    levels = [] if is_compiling() else get_interpreter_stack() or []
    if sum(level.key() == TransformType.Jvp for level in levels) > 1:
        return _by_formula(found)
    results: tuple[Tensor, Tensor] = attention(*packed(found))
    return results


def record(run: Callable[[], Any], call: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Compute output and lse by a function, and record the call."""
    tensors = _tensors_of(call)
    rest = {name: each for name, each in call.items() if name not in tensors}
    results: tuple[Tensor, Tensor] = _Attention.apply(run, rest, tuple(tensors), *tensors.values())
    return results


class _Attention(_SingleLevelFunction):  # type: ignore[misc]
    """A call: a function that computes it, options, and the names of tensors before the tensors."""

    @staticmethod
    def forward(ctx: Any, run: Any, rest: dict[str, Any], names: Any, *tensors: Tensor) -> Any:
        output, lse = run()
        ctx.rest, ctx.names = rest, names
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output, lse, *tensors)
        ctx.save_for_forward(*tensors)
        return output, lse

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None, grad_lse: Tensor | None) -> Any:
        if grad_output is None and grad_lse is None:
            return (None,) * len(ctx.needs_input_grad)
        output, lse, *tensors = ctx.saved_tensors
        needed = zip(ctx.names, ctx.needs_input_grad[3:], strict=True)
        wanted = tuple(name for name, is_needed in needed if is_needed)
        grad_output = torch.zeros_like(output) if grad_output is None else grad_output
        found = ctx.rest | dict(zip(ctx.names, tensors, strict=True))
        gradients = _gradients((grad_output, grad_lse, output, lse), found, wanted)
        each = dict(zip(wanted, gradients, strict=True))
        return None, None, None, *map(each.get, ctx.names)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, ...]:
        # PyTorch turns forward mode off here, at all levels. Results that are computed from the
        # tensors without their tangents have the derivatives that outer levels request, and no
        # others.
        tensors = [forward_ad.unpack_dual(each).primal for each in ctx.saved_tensors]
        found = ctx.rest | dict(zip(ctx.names, tensors, strict=True))
        _refuse(found, _FORWARD)
        with forward_ad._set_fwd_grad_enabled(True):
            results: tuple[Tensor, ...] = attention_jvp(*tangents[3:6], *packed(found))
        return results


def _gradients(
    results: tuple[Tensor | None, ...], call: dict[str, Any], wanted: tuple[str, ...]
) -> Any:
    """Return the gradients of inputs, which are recorded if their derivatives may be requested."""
    named = dict(zip(RESULTS, results, strict=True)) | call
    arrays = arrays_of(named) if is_eager() else None
    if arrays is not None:
        run = partial(compute_gradients, call, arrays, wanted)
        return _recorded_gradients(run, named, wanted) if is_recorded(named.values()) else run()
    # Outer levels may have tangents that this level does not show.
    is_dual = forward_ad._current_level >= 0 and not is_compiling()
    if is_dual and (get_interpreter_stack() or has_tangents(_tensors_of(named).values())):
        return _gradients_by_formula(wanted, named)
    return _chosen(attention_backward(*results, *packed(call), list(wanted)), wanted)


def _recorded_gradients(
    run: Callable[[], Any], named: dict[str, Any], wanted: tuple[str, ...]
) -> Any:
    """Compute gradients, in which output and lse are functions of the inputs."""
    moving = {name: each for name, each in named.items() if name not in RESULTS[2:]}
    return _fused(run, partial(_gradients_by_formula, wanted), moving)


def _tensors_of(found: dict[str, Any]) -> dict[str, Tensor]:
    return {
        name: each
        for name, each in found.items()
        if type(each) not in NO_TENSORS and isinstance(each, Tensor)
    }


class Fused(_SingleLevelFunction):  # type: ignore[misc]
    """Results that `run` computes from tensors, with gradients that `pull` computes.

    `pull` has the gradients of the results, the tensors, and the places of those whose gradients it
    returns. `what` is the derivative that forward mode would need.
    """

    @staticmethod
    def forward(ctx: Any, run: Any, pull: Any, what: str, *tensors: Tensor | None) -> Any:
        ctx.pull, ctx.what = pull, what
        ctx.save_for_backward(*tensors)
        return tuple(run())

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        needed = ctx.needs_input_grad[3:]
        wanted = [place for place, is_needed in enumerate(needed) if is_needed]
        gradients = ctx.pull(cotangents, ctx.saved_tensors, wanted)
        each = dict(zip(wanted, gradients, strict=True))
        return None, None, None, *map(each.get, range(len(needed)))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise NotImplementedError(f"{ctx.what} is not implemented")


def _fused(run: Callable[[], Any], formula: Callable[..., Any], call: dict[str, Any]) -> Any:
    """Compute a function of the tensors of a call, with the gradients of its formula."""
    tensors = _tensors_of(call)
    names = tuple(tensors)
    rest = {name: each for name, each in call.items() if name not in tensors}

    def pull(cotangents: Any, tensors: Any, wanted: list[int]) -> Any:
        saved = rest | dict(zip(names, tensors, strict=True))
        moved = [names[place] for place in wanted]

        def function(*some: Tensor) -> Any:
            return formula(saved | dict(zip(moved, some, strict=True)))

        return torch.func.vjp(function, *map(saved.get, moved))[1](cotangents)

    what = f"{_FORWARD} for a graph of gradients"
    return Fused.apply(run, pull, what, *tensors.values())


def _gradients_by_formula(wanted: tuple[str, ...], call: dict[str, Any]) -> tuple[Tensor, ...]:
    """Return gradients of a call whose tensors include the gradients of its results."""
    call = dict(call)
    grad_output, grad_lse, *_ = (call.pop(name, None) for name in RESULTS)
    if grad_lse is None:
        dtype = _arithmetic(grad_output)
        grad_lse = grad_output.new_zeros(grad_output.shape[:-1], dtype=dtype)
    gradients: tuple[Tensor, ...] = _pulled_back(call, wanted)[1]((grad_output, grad_lse))
    return gradients


def _tangents_by_formula(call: dict[str, Any]) -> tuple[Tensor, ...]:
    """Return the derivatives of the results of a call whose tensors include a direction."""
    call = dict(call)
    along = {role: call.pop(name) for role, name in zip(ROLES, TANGENTS, strict=True)}
    tangents = {role: tangent for role, tangent in along.items() if tangent is not None}
    results, pull = _pulled_back(call, tuple(tangents))
    # PyTorch has one level of dual numbers. The gradient of <gradients along u, tangents> with
    # respect to u is the derivative along the tangents.
    nothing = map(torch.zeros_like, results)
    derivatives: tuple[Tensor, ...] = torch.func.vjp(lambda *each: pull(each), *nothing)[1](
        (*tangents.values(),)
    )
    return derivatives


def _pulled_back(call: dict[str, Any], names: tuple[str, ...]) -> Any:
    """Return the formula's results, and the function from their gradients to those of inputs."""

    def attention(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        return _by_formula(call | dict(zip(names, tensors, strict=True)))

    return torch.func.vjp(attention, *map(call.get, names))


def _by_formula(found: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Compute output and lse by PyTorch's own operations, which have all derivatives."""
    _refuse(found, _SECOND)
    kind, dtype = found["query"].dtype, _arithmetic(found["query"])
    options = {
        name: each.to(dtype) if isinstance(each, Tensor) and each.is_floating_point() else each
        for name, each in found.items()
    }
    query, key, value = (options.pop(name) for name in ROLES)
    is_weighted = partial(_is_weighted, found)
    output, lse = attention_formula(torch, query, key, value, options, is_weighted)
    nothing = torch.finfo(dtype).min
    return output.to(kind), torch.where(lse == nothing, -torch.inf, lse)


def _arithmetic(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype is torch.float64 else torch.float32


def _is_weighted(found: dict[str, Any], names: Iterable[str]) -> Tensor:
    """Return which weights are not 0 if scores are equal, with only some of the options.

    They are the output of attention to the identity.
    """
    *rows, _ = output_shape(found)
    kv_len = found["key"].shape[-2]
    one = (1,) * (len(rows) > 1)
    call = {name: found[name] for name in names if name in found}
    call |= {"query": torch.zeros(*rows, 1), "key": torch.zeros(*one, kv_len, 1)}
    call["value"] = torch.eye(kv_len).expand(*one, -1, -1)
    output, _ = attention(*packed(call))
    return output != 0


def _refuse(found: dict[str, Any], what: str) -> None:
    """Raise NotImplementedError for calls without such derivatives."""
    if STARTS[0] in found:
        raise NotImplementedError(f"{what} {_NOT_PACKED}")
    if found.get("precision") is not None:
        raise NotImplementedError(
            "precision must be None in second derivatives and in forward mode, which are always "
            f"exact, got {found['precision']!r}"
        )
    if what is not _FORWARD and "score_function" in found:
        raise NotImplementedError(
            f"{what} is not implemented with score_function, whose second derivative is unknown"
        )


def _below(operator: Any, keyset: Any, given: tuple[Any, ...]) -> Any:
    """Compute an operator without its derivatives at this level of `torch.func` transforms.

    Autograd functions turn off both modes of derivatives, which other levels may need.
    """
    modes = torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True)
    with modes[0], modes[1], torch._C._AutoDispatchBelowAutograd():
        return operator.redispatch(keyset & torch._C._after_autograd_keyset, *given)


def add_derivatives(operator: Any, record: Callable[..., Any]) -> None:
    """Give an operator its rule of autograd.

    `record` has a function that computes the operator, and the arguments.
    """

    def rule(keyset: Any, *given: Any) -> Any:
        below = partial(_below, operator, keyset, given)
        tensors = [each for each in given if isinstance(each, Tensor)]
        if not (is_recorded(tensors) or has_tangents(tensors)):
            return below()
        with enable_single_level_autograd_function():
            return record(below, *given)

    library.impl(operator._schema.name, rule, "Autograd", with_keyset=True)


def _record_attention(below: Any, *given: Any) -> Any:
    call = unpacked(*given)
    if has_tangents(given[3 : len(TENSORS)]):
        _refuse(call, f"{_FORWARD} along other inputs than query, key and value")
        return _by_formula(call)
    return record(below, call)


def _record_backward(below: Any, *given: Any) -> Any:
    call, wanted = unpacked(*given[4:-1]), given[-1]
    if has_tangents(given[: 4 + len(TENSORS)]):
        _refuse(call, _SECOND)
    named = dict(zip(RESULTS, given, strict=False)) | call
    gradients = _recorded_gradients(lambda: _chosen(below(), wanted), named, tuple(wanted))
    return all_gradients(gradients, given[0], wanted)


def _record_jvp(below: Any, *given: Any) -> Any:
    call = unpacked(*given[3:])
    if has_tangents(given[: 3 + len(TENSORS)]):
        _refuse(call, _SECOND)
    return _fused(below, _tangents_by_formula, call | dict(zip(TANGENTS, given, strict=False)))


def _chosen(gradients: Any, wanted: Iterable[str]) -> list[Tensor]:
    """Return the wanted gradients among those of all inputs."""
    return [gradients[INPUTS.index(name)] for name in wanted]


add_derivatives(attention, _record_attention)
add_derivatives(attention_backward, _record_backward)
add_derivatives(attention_jvp, _record_jvp)
