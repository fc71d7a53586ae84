"""The derivatives of the operators, in both modes.

Each operator has an autograd function whose backward and jvp are made of the other operators. With
t for tangents and G for gradients of results, the map (query, key, value) -> <G, output> has a
symmetric Hessian, so one operator gives the derivative of gradients along t and their gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from regard.torch import _operators
from regard.torch._operators import INPUT_COUNT, TENSOR_OPTION_COUNT, library

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    Maybe: TypeAlias = Tensor | None

_NAMES = ("query", "key", "value", "attn_mask", "alibi_slopes", "sinks")
_TENSORS = INPUT_COUNT + TENSOR_OPTION_COUNT
_OF_QUERY_KEY_VALUE = [True, True, True, False, False, False]


class _Derived(_SingleLevelFunction):  # type: ignore[misc]
    """An operator whose arguments are tensors or None, and then numbers."""

    operator: Any
    tensor_count: int

    @classmethod
    def call(cls, keyset: Any, *given: Any) -> tuple[Tensor, ...]:
        """Compute the operator where a derivative may be wanted: its kernel for autograd."""
        tensors = [tensor for tensor in given[: cls.tensor_count] if tensor is not None]
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
            results: tuple[Tensor, ...] = cls.operator.redispatch(keyset, *given)
            return results

    @classmethod
    def inside(cls, keyset: Any, given: tuple[Any, ...]) -> tuple[Tensor, ...]:
        """Compute the operator within `forward`, where PyTorch turns off both modes.

        They belong to this level of a nested derivative: outer levels, to which the operator goes
        on from here, have modes of their own.
        """
        with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
            return cls.below(keyset, given)

    @classmethod
    def keep(cls, ctx: Any, given: tuple[Any, ...], results: tuple[Tensor, ...]) -> None:
        """Keep arguments and results for the derivatives."""
        ctx.set_materialize_grads(False)
        ctx.numbers = given[cls.tensor_count :]
        ctx.save_for_backward(*given[: cls.tensor_count], *results)
        ctx.save_for_forward(*given[: cls.tensor_count])


def _primals(ctx: Any) -> list[Maybe]:
    """Return what was kept for forward mode, as constants of this level of derivatives.

    PyTorch turns forward mode off around a `jvp`, at all levels: what is computed from these
    tensors with forward mode on has the derivatives that outer levels want, and no others.
    """
    saved = ctx.saved_tensors
    return [None if tensor is None else forward_ad.unpack_dual(tensor).primal for tensor in saved]


def _has_tangent(tensors: list[Tensor]) -> bool:
    return forward_ad._current_level >= 0 and any(
        forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors
    )


def _refuse(tensors: tuple[Any, ...], what: str) -> None:
    """Raise NotImplementedError where mask, slopes or sinks take part in a derivative."""
    names = [name for name, taken in zip(_NAMES[3:], tensors, strict=True) if taken]
    if names:
        raise NotImplementedError(
            f"{what} with respect to query, key and value alone: {', '.join(names)} must not take "
            "part in it; pass detached tensors"
        )


def _given(tensors: tuple[Maybe, ...]) -> tuple[bool, ...]:
    return tuple(tensor is not None for tensor in tensors)


_SECOND = "the second derivative of attention is known"
_FORWARD = "the derivative of attention in forward mode is known"


class _Attention(_Derived):
    operator = _operators.attention
    tensor_count = _TENSORS

    @staticmethod
    def forward(ctx: Any, keyset: Any, *given: Any) -> tuple[Tensor, ...]:
        results = _Attention.inside(keyset, given)
        _Attention.keep(ctx, given, results)
        return results

    @staticmethod
    def backward(ctx: Any, grad_output: Maybe, grad_lse: Maybe) -> tuple[Maybe, ...]:
        *tensors, output, lse = ctx.saved_tensors
        rest = (None,) * (TENSOR_OPTION_COUNT + len(ctx.numbers))
        if grad_output is None and grad_lse is None:
            return (None,) * (1 + INPUT_COUNT) + rest
        wanted = list(ctx.needs_input_grad[1 : 1 + INPUT_COUNT])
        gradients = _operators.attention_backward(
            torch.zeros_like(output) if grad_output is None else grad_output,
            *(grad_lse, output, lse, *tensors, *ctx.numbers, wanted),
        )
        return None, *_wanted(gradients, wanted), *rest

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Any) -> tuple[Tensor, Tensor]:
        _refuse(_given(tangents[3:INPUT_COUNT]), _FORWARD)
        with forward_ad._set_fwd_grad_enabled(True):
            _, of_output, _, of_lse = _operators.attention_jvp(
                *tangents[:3], *_primals(ctx), *ctx.numbers
            )
        return of_output, of_lse


def _wanted(gradients: Iterable[Maybe], wanted: Iterable[bool]) -> tuple[Maybe, ...]:
    pairs = zip(gradients, wanted, strict=True)
    return tuple(gradient if is_wanted else None for gradient, is_wanted in pairs)


class _AttentionBackward(_Derived):
    """The gradients, which depend on the output and lse as functions of the inputs."""

    operator = _operators.attention_backward
    tensor_count = 4 + _TENSORS

    @staticmethod
    def forward(ctx: Any, keyset: Any, *given: Any) -> tuple[Tensor, ...]:
        results = _AttentionBackward.inside(keyset, given)
        _AttentionBackward.keep(ctx, given, ())
        return results

    @staticmethod
    def backward(ctx: Any, *cotangents: Maybe) -> tuple[Maybe, ...]:
        of_mask = 1 + 4 + 3
        cotangents = _wanted(cotangents, ctx.numbers[-1])
        _refuse(_given(cotangents[3:]), _SECOND)
        _refuse(ctx.needs_input_grad[of_mask : of_mask + 3], _SECOND)
        grad_output, grad_lse, *call = ctx.saved_tensors
        rest = (None,) * (3 + TENSOR_OPTION_COUNT + len(ctx.numbers))
        if not any(_given(cotangents[:3])):
            return (None,) * 8 + rest
        of_output, of_lse, *of_inputs = _operators.attention_double_backward(
            *cotangents[:3], grad_output, grad_lse, *call, *ctx.numbers[:-1]
        )
        of_lse = None if grad_lse is None else of_lse
        return None, of_output, of_lse, None, None, *of_inputs, *rest

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Any) -> tuple[Tensor, ...]:
        with forward_ad._set_fwd_grad_enabled(True):
            return _AttentionBackward._along(tangents, _primals(ctx), ctx.numbers)

    @staticmethod
    def _along(tangents: Any, primals: list[Any], numbers: Any) -> tuple[Tensor, ...]:
        of_grad_output, of_grad_lse, _, _, *of_inputs = tangents[: 4 + INPUT_COUNT]
        grad_output, grad_lse, output, *call = primals
        call += numbers[:-1]
        wanted = numbers[-1]
        is_curved = any(_given(tuple(of_inputs[:3])))
        _refuse(_given(tuple(of_inputs[3:])), _SECOND)
        _refuse(tuple(is_curved and is_wanted for is_wanted in wanted[3:]), _SECOND)
        parts = []
        if of_grad_output is not None or of_grad_lse is not None:
            start = torch.zeros_like(output) if of_grad_output is None else of_grad_output
            parts.append(
                _operators.attention_backward(start, of_grad_lse, output, *call, list(wanted))
            )
        if is_curved:
            _, _, *of_gradients = _operators.attention_double_backward(
                *of_inputs[:3], grad_output, grad_lse, output, *call
            )
            parts.append((*of_gradients, *(output.new_empty(0) for _ in range(3))))
        nothing = output.new_empty(0)
        return tuple(
            sum(each[1:], start=each[0]) if is_wanted and each else nothing
            for is_wanted, *each in zip(wanted, *parts, strict=True)
        )


class _AttentionJvp(_Derived):
    operator = _operators.attention_jvp
    tensor_count = 3 + _TENSORS

    @staticmethod
    def forward(ctx: Any, keyset: Any, *given: Any) -> tuple[Tensor, ...]:
        results = _AttentionJvp.inside(keyset, given)
        _AttentionJvp.keep(ctx, given, (results[0], results[2]))
        return results

    @staticmethod
    def backward(
        ctx: Any, of_output: Maybe, of_tangent: Maybe, of_lse: Maybe, of_tangent_lse: Maybe
    ) -> tuple[Maybe, ...]:
        of_mask = 1 + 3 + 3
        _refuse(ctx.needs_input_grad[of_mask : of_mask + 3], _SECOND)
        *given, output, lse = ctx.saved_tensors
        tangents, call = given[:3], (output, lse, *given[3:], *ctx.numbers)
        of_tangents: tuple[Maybe, ...] = (None,) * 3
        parts: list[tuple[Tensor, ...]] = []
        if of_output is not None or of_lse is not None:
            start = torch.zeros_like(output) if of_output is None else of_output
            parts.append(
                _operators.attention_backward(start, of_lse, *call, _OF_QUERY_KEY_VALUE)[:3]
            )
        if of_tangent is not None or of_tangent_lse is not None:
            start = torch.zeros_like(output) if of_tangent is None else of_tangent
            of_tangents = _operators.attention_backward(
                start, of_tangent_lse, *call, _OF_QUERY_KEY_VALUE
            )[:3]
            parts.append(
                _operators.attention_double_backward(*tangents, start, of_tangent_lse, *call)[2:]
            )
        of_inputs = [sum(each[1:], start=each[0]) for each in zip(*parts, strict=True)] or [
            None
        ] * 3
        of_tangents = _wanted(of_tangents, _given(tuple(tangents)))
        rest = (None,) * (3 + TENSOR_OPTION_COUNT + len(ctx.numbers))
        return None, *of_tangents, *of_inputs, *rest

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, ...]:
        raise NotImplementedError(
            "the derivative of attention in forward mode has no derivative in forward mode: use "
            "reverse mode for one of the two"
        )


class _AttentionDoubleBackward(_Derived):
    operator = _operators.attention_double_backward
    tensor_count = 7 + _TENSORS

    @staticmethod
    def forward(ctx: Any, keyset: Any, *given: Any) -> tuple[Tensor, ...]:
        return _AttentionDoubleBackward.inside(keyset, given)

    @staticmethod
    def backward(ctx: Any, *cotangents: Maybe) -> tuple[Maybe, ...]:
        raise NotImplementedError("attention has no third derivative")

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, ...]:
        raise NotImplementedError("attention has no third derivative")


for _name, _function in (
    ("attention", _Attention),
    ("attention_backward", _AttentionBackward),
    ("attention_jvp", _AttentionJvp),
    ("attention_double_backward", _AttentionDoubleBackward),
):
    library.impl(_name, _function.call, "Autograd", with_keyset=True)
