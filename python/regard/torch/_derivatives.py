"""The derivatives of the operators, in forward and reverse mode.

Each operator has an autograd function whose backward and jvp call the other operators. The
functions for packed sequences have only a first derivative in reverse mode. With t for tangents and
G for gradients of results, the map (query, key, value) -> <G, output> has a symmetric Hessian, so
one operator computes both the derivative of gradients along t and their gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from regard.torch._operators import (
    INPUTS,
    Layout,
    Operator,
    attention_double_backward,
    attention_jvp,
    dense,
    library,
    ragged,
    tensor_name,
)
from regard.torch._options import WITHOUT_GRADIENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import Tensor

    Maybe: TypeAlias = Tensor | None

_QUERY_KEY_VALUE = ("query", "key", "value")
# Inputs with only a first derivative in reverse mode.
_OTHER_INPUTS = tuple(name for name in INPUTS if name not in _QUERY_KEY_VALUE)
# The tensors that must not take part in other derivatives, with their names in the public call.
_NAMES_OF_OTHERS = {name: name for name in _OTHER_INPUTS} | {"float_mask": "attn_mask"}
_NAMES_OF_OTHERS |= {tensor_name(name): name for name in WITHOUT_GRADIENT}
_OF_QUERY_KEY_VALUE = [name in _QUERY_KEY_VALUE for name in INPUTS]


class _OperatorFunction(_SingleLevelFunction):  # type: ignore[misc]
    """An operator whose arguments are tensors or None, followed by numbers."""

    operator: Operator

    @classmethod
    def call(cls, keyset: Any, *given: Any) -> tuple[Tensor, ...]:
        """Compute the operator and record it if a derivative may be requested."""
        tensors = [each for each in given[: len(cls.operator.tensors)] if each is not None]
        is_traced = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        if is_traced or _has_tangent(tensors):
            with enable_single_level_autograd_function():
                results: tuple[Tensor, ...] = cls.apply(keyset, *given)
            return results
        return cls.below(keyset, given)

    @classmethod
    def below(cls, keyset: Any, given: tuple[Any, ...]) -> tuple[Tensor, ...]:
        """Compute the operator without its derivatives."""
        with torch._C._AutoDispatchBelowAutograd():
            keyset = keyset & torch._C._after_autograd_keyset
            results: tuple[Tensor, ...] = cls.operator.run.redispatch(keyset, *given)
            return results

    @classmethod
    def inside(cls, keyset: Any, given: tuple[Any, ...]) -> tuple[Tensor, ...]:
        """Compute the operator within `forward`, where PyTorch turns off both modes.

        PyTorch turns them off for this level of a nested derivative. Outer levels, to which the
        operator is redispatched, have separate modes.
        """
        with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
            return cls.below(keyset, given)

    @classmethod
    def keep(cls, ctx: Any, given: tuple[Any, ...], results: tuple[Tensor, ...]) -> None:
        """Save arguments and results for the derivatives."""
        count = len(cls.operator.tensors)
        ctx.set_materialize_grads(False)
        ctx.numbers = given[count:]
        ctx.save_for_backward(*given[:count], *results)
        ctx.save_for_forward(*given[:count])

    @classmethod
    def kept(cls, ctx: Any, tensors: Iterable[Maybe] | None = None) -> tuple[Any, list[Any]]:
        """Return the arguments by name, and the saved results."""
        saved = list(ctx.saved_tensors if tensors is None else tensors)
        count = len(cls.operator.tensors)
        return cls.operator.arguments(*saved[:count], *ctx.numbers), saved[count:]

    @classmethod
    def named(cls, each: Iterable[Any]) -> dict[str, Any]:
        """Return values for the tensor arguments by argument name."""
        return dict(zip(cls.operator.tensors, each, strict=False))

    @classmethod
    def gradients(cls, **gradients: Maybe) -> tuple[Maybe, ...]:
        """Return the gradients of all arguments, including the keyset."""
        return None, *(gradients.get(name) for name in cls.operator.arguments._fields)


def _primals(ctx: Any) -> list[Maybe]:
    """Return the tensors saved for forward mode, as constants at this level of derivatives.

    PyTorch turns forward mode off around a `jvp`, at all levels. Results computed from these
    tensors with forward mode on have the derivatives that outer levels request, and no others.
    """
    saved = ctx.saved_tensors
    return [None if tensor is None else forward_ad.unpack_dual(tensor).primal for tensor in saved]


def _has_tangent(tensors: list[Tensor]) -> bool:
    return forward_ad._current_level >= 0 and any(
        forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors
    )


def _refuse(taken: Mapping[str, Any], what: str) -> None:
    """Raise NotImplementedError if a tensor other than query, key and value takes part."""
    given = {name: taken.get(name) for name in _NAMES_OF_OTHERS}
    names = [name for name, part in given.items() if part is not None and part is not False]
    if names:
        listed = ", ".join(_NAMES_OF_OTHERS[name] for name in names)
        raise NotImplementedError(
            f"{what} is implemented with respect to query, key and value only: {listed} must not "
            "take part in it; pass detached tensors"
        )


def _refuse_score_function(call: Any) -> None:
    """Raise NotImplementedError in second derivatives of a call with a score function."""
    if call.score_function:
        raise NotImplementedError(
            f"{_SECOND} is not implemented with score_function, whose second derivative is unknown"
        )


_SECOND = "the second derivative of attention"
_FORWARD = "the derivative of attention in forward mode"
_NOT_PACKED = (
    "is not implemented for packed sequences: call regard.torch.scaled_dot_product_attention for "
    "each sequence"
)


class _Attention(_OperatorFunction):
    """The call, in reverse mode."""

    layout: Layout

    @classmethod
    def forward(cls, ctx: Any, keyset: Any, *given: Any) -> tuple[Tensor, ...]:
        results = cls.inside(keyset, given)
        cls.keep(ctx, given, results)
        return results

    @classmethod
    def backward(cls, ctx: Any, grad_output: Maybe, grad_lse: Maybe) -> tuple[Maybe, ...]:
        call, (output, lse) = cls.kept(ctx)
        if grad_output is None and grad_lse is None:
            return cls.gradients()
        needed = cls.named(ctx.needs_input_grad[1:])
        wanted = [needed[name] for name in INPUTS]
        grad_output = torch.zeros_like(output) if grad_output is None else grad_output
        gradients = cls.layout.attention_backward(grad_output, grad_lse, output, lse, *call, wanted)
        return cls.gradients(**_wanted(gradients, wanted))


class _DenseAttention(_Attention):
    operator, layout = dense.attention, dense

    @classmethod
    def jvp(cls, ctx: Any, _: None, *tangents: Any) -> tuple[Tensor, Tensor]:
        along = cls.named(tangents)
        _refuse(along, _FORWARD)
        call = cls.kept(ctx, _primals(ctx))[0]
        with forward_ad._set_fwd_grad_enabled(True):
            _, of_output, _, of_lse = attention_jvp(
                *(along[name] for name in _QUERY_KEY_VALUE), *call
            )
        return of_output, of_lse


def _wanted(gradients: Iterable[Maybe], wanted: Iterable[bool]) -> dict[str, Maybe]:
    """Return the gradients of the inputs by name, with None for unwanted gradients."""
    each = zip(INPUTS, gradients, wanted, strict=True)
    return {name: gradient if is_wanted else None for name, gradient, is_wanted in each}


class _PackedAttention(_Attention):
    operator, layout = ragged.attention, ragged

    @classmethod
    def jvp(cls, ctx: Any, *tangents: Any) -> tuple[Tensor, ...]:
        raise NotImplementedError(f"{_FORWARD} {_NOT_PACKED}")


class _DenseBackward(_OperatorFunction):
    """The gradients, in which the output and lse are functions of the inputs."""

    operator = dense.attention_backward

    @classmethod
    def forward(cls, ctx: Any, keyset: Any, *given: Any) -> tuple[Tensor, ...]:
        results = cls.inside(keyset, given)
        cls.keep(ctx, given, ())
        return results

    @classmethod
    def backward(cls, ctx: Any, *cotangents: Maybe) -> tuple[Maybe, ...]:
        given, _ = cls.kept(ctx)
        along = _wanted(cotangents, given.wanted)
        _refuse(along, _SECOND)
        _refuse(cls.named(ctx.needs_input_grad[1:]), _SECOND)
        of_inputs = [along[name] for name in _QUERY_KEY_VALUE]
        if all(each is None for each in of_inputs):
            return cls.gradients()
        _refuse_score_function(given)
        rest = given.output, given.lse, *dense.call_of(given)
        of_output, of_lse, *found = attention_double_backward(
            *of_inputs, given.grad_output, given.grad_lse, *rest
        )
        return cls.gradients(
            grad_output=of_output,
            grad_lse=None if given.grad_lse is None else of_lse,
            **dict(zip(_QUERY_KEY_VALUE, found, strict=True)),
        )

    @classmethod
    def jvp(cls, ctx: Any, _: None, *tangents: Any) -> tuple[Tensor, ...]:
        given = cls.kept(ctx, _primals(ctx))[0]
        with forward_ad._set_fwd_grad_enabled(True):
            return cls._along(cls.named(tangents), given)

    @staticmethod
    def _along(tangents: dict[str, Maybe], given: Any) -> tuple[Tensor, ...]:
        of_grad_output, of_grad_lse = tangents["grad_output"], tangents["grad_lse"]
        of_inputs = [tangents[name] for name in _QUERY_KEY_VALUE]
        is_curved = any(each is not None for each in of_inputs)
        wanted = dict(zip(INPUTS, given.wanted, strict=True))
        _refuse(tangents, _SECOND)
        _refuse({name: is_curved and is_wanted for name, is_wanted in wanted.items()}, _SECOND)
        rest = given.output, given.lse, *dense.call_of(given)
        parts = []
        if of_grad_output is not None or of_grad_lse is not None:
            start = torch.zeros_like(given.output) if of_grad_output is None else of_grad_output
            parts.append(dense.attention_backward(start, of_grad_lse, *rest, list(given.wanted)))
        nothing = given.output.new_empty(0)
        if is_curved:
            _refuse_score_function(given)
            _, _, *of_gradients = attention_double_backward(
                *of_inputs, given.grad_output, given.grad_lse, *rest
            )
            parts.append((*of_gradients, *(nothing for _ in _OTHER_INPUTS)))
        return tuple(
            sum(each[1:], start=each[0]) if is_wanted and each else nothing
            for is_wanted, *each in zip(given.wanted, *parts, strict=True)
        )


class _PackedBackward(_OperatorFunction):
    """The gradients for packed sequences, which have no derivatives."""

    operator = ragged.attention_backward

    @classmethod
    def forward(cls, ctx: Any, keyset: Any, *given: Any) -> tuple[Tensor, ...]:
        return cls.inside(keyset, given)

    @classmethod
    def backward(cls, ctx: Any, *cotangents: Maybe) -> tuple[Maybe, ...]:
        raise NotImplementedError(f"{_SECOND} {_NOT_PACKED}")

    @classmethod
    def jvp(cls, ctx: Any, *tangents: Any) -> tuple[Tensor, ...]:
        raise NotImplementedError(f"{_SECOND} {_NOT_PACKED}")


class _DenseJvp(_OperatorFunction):
    operator = attention_jvp

    @classmethod
    def forward(cls, ctx: Any, keyset: Any, *given: Any) -> tuple[Tensor, ...]:
        results = cls.inside(keyset, given)
        cls.keep(ctx, given, (results[0], results[2]))
        return results

    @classmethod
    def backward(
        cls, ctx: Any, of_output: Maybe, of_tangent: Maybe, of_lse: Maybe, of_tangent_lse: Maybe
    ) -> tuple[Maybe, ...]:
        _refuse(cls.named(ctx.needs_input_grad[1:]), _SECOND)
        given, (output, lse) = cls.kept(ctx)
        _refuse_score_function(given)
        tangents = {
            f"tangent_{name}": getattr(given, f"tangent_{name}") for name in _QUERY_KEY_VALUE
        }
        rest = output, lse, *dense.call_of(given)
        found: dict[str, Maybe] = {}
        parts: list[tuple[Tensor, ...]] = []
        if of_output is not None or of_lse is not None:
            start = torch.zeros_like(output) if of_output is None else of_output
            parts.append(dense.attention_backward(start, of_lse, *rest, _OF_QUERY_KEY_VALUE)[:3])
        if of_tangent is not None or of_tangent_lse is not None:
            start = torch.zeros_like(output) if of_tangent is None else of_tangent
            of_tangents = dense.attention_backward(
                start, of_tangent_lse, *rest, _OF_QUERY_KEY_VALUE
            )[:3]
            for (name, tangent), gradient in zip(tangents.items(), of_tangents, strict=True):
                found[name] = None if tangent is None else gradient
            _, _, *of_inputs = attention_double_backward(
                *tangents.values(), start, of_tangent_lse, *rest
            )
            parts.append(tuple(of_inputs))
        for name, *each in zip(_QUERY_KEY_VALUE, *parts, strict=False):
            found[name] = sum(each[1:], start=each[0]) if each else None
        return cls.gradients(**found)

    @classmethod
    def jvp(cls, ctx: Any, *tangents: Any) -> tuple[Tensor, ...]:
        raise NotImplementedError(
            "forward mode of forward mode is not implemented for attention: use reverse mode for "
            "one of the two"
        )


class _DenseDoubleBackward(_OperatorFunction):
    operator = attention_double_backward

    @classmethod
    def forward(cls, ctx: Any, keyset: Any, *given: Any) -> tuple[Tensor, ...]:
        return cls.inside(keyset, given)

    @classmethod
    def backward(cls, ctx: Any, *cotangents: Maybe) -> tuple[Maybe, ...]:
        raise NotImplementedError("the third derivative of attention is not implemented")

    @classmethod
    def jvp(cls, ctx: Any, *tangents: Any) -> tuple[Tensor, ...]:
        raise NotImplementedError("the third derivative of attention is not implemented")


for _function in (
    _DenseAttention,
    _DenseBackward,
    _DenseJvp,
    _DenseDoubleBackward,
    _PackedAttention,
    _PackedBackward,
):
    library.impl(_function.operator.name, _function.call, "Autograd", with_keyset=True)
