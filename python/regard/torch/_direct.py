"""Calls that only autograd records, which go directly to the calls on NumPy arrays.

PyTorch's dispatcher and autograd functions of its operators take far longer than attention over
small tensors. A call that no compiler, transform or mode sees has a single separate autograd
function, which keeps the same data as the operators. The operators compute derivatives of its
gradients.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch._C import (
    _are_functorch_transforms_active,
    _get_tracing_state,
    _is_any_autocast_enabled,
    _len_torch_dispatch_stack,
)
from torch._C._functorch import is_legacy_batchedtensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling

import regard
from regard import _core
from regard._arguments.masks import Masks, is_sparse
from regard._core import array_of_tensor
from regard.torch._arguments import TYPES, with_own_names
from regard.torch._memory import (
    as_array,
    as_optional_array,
    as_tensor,
    bfloat16,
    empty_output,
)
from regard.torch._operators import INPUTS, dense
from regard.torch._options import call_with, numpy_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from regard.torch._operators import Layout

    Array = NDArray[Any]

# The types whose elements are in memory, so that a call may read them itself.
PLAIN = frozenset((Tensor, torch.nn.Parameter))
_QUERY_KEY_VALUE = ("query", "key", "value")
# The names of gradients in `regard.AttentionGradients`, for gradients whose name differs.
_FIELDS = {"float_mask": "mask"}


def is_eager() -> bool:
    """Return whether a call may bypass the dispatcher: nothing records or transforms it."""
    return not (
        is_compiling()
        or _are_functorch_transforms_active()
        or _len_torch_dispatch_stack()
        or _get_tracing_state() is not None
        or forward_ad._current_level >= 0
    )


class DirectCall(NamedTuple):
    """A checked call of tensors on the CPU."""

    layout: Layout
    arrays: tuple[Array, ...]
    """Query, key, value and starts, sharing the memory of the tensors."""
    words: dict[str, Any]
    """The options that are not tensors, and `mask` if it is sparse."""
    names: tuple[str, ...] = ()
    """The names of the tensors among masks and options."""

    def keywords(self, tensors: tuple[Tensor, ...]) -> dict[str, Any]:
        """Return the keywords of the call on NumPy arrays, with the tensors of these names."""
        if not self.names:
            return self.words
        given = dict(zip(self.names, tensors, strict=True))
        words = dict(self.words)
        shown: Any = words.pop("mask", None)
        if "bool_mask" in given:
            shown = as_array(given.pop("bool_mask"))
        bias = given.pop("float_mask", None)
        mask = Masks(shown, as_optional_array(bias)).argument
        return words | {"mask": mask} | numpy_options(given)


def plain_call(
    query: Tensor, key: Tensor, value: Tensor, is_causal: Any, scale: Any
) -> Tensor | None:
    """Compute a call without masks and options, or return None if it needs further checks.

    These are the fewest steps that distinguish the two cases: each costs a fraction of a
    microsecond.
    """
    dtype = query.dtype
    if not (
        dtype in TYPES
        and key.dtype is dtype
        and value.dtype is dtype
        and (is_causal is False or is_causal is True)
        and (scale is None or type(scale) is float)
        and not _is_any_autocast_enabled()
        and is_eager()
    ):
        return None
    brain = bfloat16() if dtype is torch.bfloat16 else None
    of_query = array_of_tensor(query, brain)
    of_key = array_of_tensor(key, brain)
    of_value = array_of_tensor(value, brain)
    if of_query is None or of_key is None or of_value is None:
        return None
    if query.is_neg() or key.is_neg() or value.is_neg():
        return None
    shape, key_shape, value_shape = of_query.shape, of_key.shape, of_value.shape
    is_self_attention = shape == key_shape == value_shape
    if (
        len(shape) < 2
        or not (is_self_attention or shape[:-2] == key_shape[:-2] == value_shape[:-2])
        or not shape[-1]
    ):
        return None
    words: dict[str, Any] = {}
    if is_causal:
        words["is_causal"] = True
    if scale is not None:
        words["scale"] = scale
    if torch.is_grad_enabled() and (
        query.requires_grad or key.requires_grad or value.requires_grad
    ):
        call = DirectCall(dense, (of_query, of_key, of_value), words)
        recorded: Tensor = _Recorded.apply(call, False, query, key, value)
        return recorded
    if is_self_attention:
        output = torch.empty_like(query)
    else:
        output = empty_output(query, (*shape[:-1], value_shape[-1]))
    words["out"] = array_of_tensor(output, brain)
    try:
        result = _core.attention(of_query, of_key, of_value, None, words)
    except (TypeError, ValueError):  # the slower path raises it with a hint
        return None
    # Unaligned memory needs a copy, which the slower path makes.
    return None if result is NotImplemented else output


def direct_call(
    layout: Layout,
    tensors: tuple[Tensor, ...],
    masks: tuple[Any, Tensor | None],
    options: Mapping[str, Any],
    *,
    return_lse: bool,
    is_recorded: bool,
) -> tuple[Tensor, Tensor | None]:
    """Compute a checked call, and its lse if `return_lse`.

    `tensors` are query, key and value, followed by the starts of packed sequences. `masks` are the
    bool or sparse mask and the float mask, and `options` are the options that are not None.
    """
    shown, bias = masks
    others = {name: each for name, each in options.items() if isinstance(each, Tensor)}
    words = {name: each for name, each in options.items() if name not in others}
    if is_recorded:  # the caller may change arrays and lists before the backward pass
        words = {
            name: deepcopy(each) if type(each) in (np.ndarray, list) else each
            for name, each in words.items()
        }
    if bias is not None:
        others["float_mask"] = bias
    if is_sparse(shown):
        words["mask"] = shown
    elif shown is not None:
        others["bool_mask"] = shown
    call = DirectCall(layout, tuple(map(as_array, tensors)), words, tuple(others))
    each = tuple(others.values())
    if is_recorded:
        found: Any = _Recorded.apply(call, return_lse, *tensors, *each)
        return found if return_lse else (found, None)
    return _computed(call, tensors, call.keywords(each), return_lse=return_lse)


def _computed(
    call: DirectCall, tensors: tuple[Tensor, ...], words: dict[str, Any], *, return_lse: bool
) -> tuple[Tensor, Tensor | None]:
    """Compute output and lse, the output in the layout of the query."""
    query, key, value, *_ = tensors
    output = None
    if not query.is_contiguous():
        output = empty_output(query, call.layout.output_shape(query.shape, key.shape, value.shape))
        words = words | {"out": as_array(output)}
    try:
        if return_lse:
            result, lse = call.layout.attend(*call.arrays, return_lse=True, **words)
        else:
            result, lse = call.layout.attend(*call.arrays, **words), None
    except (TypeError, ValueError) as error:
        raise with_own_names(error) from None
    return as_tensor(result) if output is None else output, None if lse is None else as_tensor(lse)


class _Recorded(torch.autograd.Function):  # type: ignore[misc]
    """A call that autograd records.

    Its arguments are a call, whether to return lse, query, key, value and starts, and then the
    tensors that the call names.
    """

    @staticmethod
    def forward(ctx: Any, call: DirectCall, return_lse: bool, *tensors: Tensor) -> Any:
        count = len(call.arrays)
        words = call.keywords(tensors[count:])
        output, lse = _computed(call, tensors[:count], words, return_lse=True)
        ctx.call = call._replace(arrays=())  # autograd decides how long the memory is kept
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output, lse, *tensors)
        return (output, lse) if return_lse else output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None, grad_lse: Tensor | None = None) -> Any:
        if grad_output is None and grad_lse is None:
            return (None,) * len(ctx.needs_input_grad)
        output, lse, *tensors = ctx.saved_tensors
        if grad_output is None:
            grad_output = torch.zeros_like(output)
        names = (*_QUERY_KEY_VALUE, *ctx.call.layout.starts, *ctx.call.names)
        inputs = dict(zip(names, tensors, strict=True))
        needed = zip(names, ctx.needs_input_grad[2:], strict=True)
        wanted = {name: inputs[name] for name, is_needed in needed if is_needed}
        # `is_grads_batched` is a transform that `is_eager` does not see.
        is_batched = any(
            each is not None and is_legacy_batchedtensor(each) for each in (grad_output, grad_lse)
        )
        is_direct = not torch.is_grad_enabled() and not is_batched and is_eager()
        gradients = _gradients if is_direct else _by_operator
        found = gradients(ctx.call, inputs, wanted, (grad_output, grad_lse, output, lse))
        return None, None, *map(found.get, names)


def _by_operator(
    call: DirectCall, inputs: dict[str, Tensor], wanted: dict[str, Tensor], given: Any
) -> dict[str, Tensor]:
    """Return gradients that have derivatives themselves, or that are batched or recorded."""
    grad_output, grad_lse, output, lse = given
    layout, options = call.layout, call.words | inputs
    tensors = tuple(options.pop(name) for name in (*_QUERY_KEY_VALUE, *layout.starts))
    shown = options.pop("mask", None)
    masks = options.pop("bool_mask", shown), options.pop("float_mask", None)
    found = layout.attention_backward(
        grad_output,
        grad_lse,
        output,
        lse,
        *call_with(layout, tensors, masks, options),
        [name in wanted for name in INPUTS],
    )
    return {name: each for name, each in zip(INPUTS, found, strict=True) if name in wanted}


def _gradients(
    call: DirectCall, inputs: dict[str, Tensor], wanted: dict[str, Tensor], given: Any
) -> dict[str, Tensor]:
    """Return gradients that autograd does not record."""
    grad_output, grad_lse, output, lse = given
    layout = call.layout
    # A gradient in the layout of its tensor needs no copy when views of the tensor are undone.
    new = {
        name: torch.empty_like(tensor)
        for name, tensor in wanted.items()
        if not tensor.is_contiguous()
    }
    fields = {name: _FIELDS.get(name, name) for name in wanted}
    out = None
    if new:
        out = regard.AttentionGradients(
            **{fields[name]: as_array(each) for name, each in new.items()}
        )
    gradients = layout.backward(
        as_array(grad_output),
        *(as_array(inputs[name]) for name in (*_QUERY_KEY_VALUE, *layout.starts)),
        as_array(output),
        as_array(lse),
        grad_lse=as_optional_array(grad_lse),
        with_respect_to=list(fields.values()),
        out=out,
        **call.keywords(tuple(inputs[name] for name in call.names)),
    )
    return {
        name: new[name] if name in new else as_tensor(getattr(gradients, field))
        for name, field in fields.items()
    }
