"""The part of a call that all layouts share, once query, key and value have been checked."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C import _is_any_autocast_enabled
from torch.compiler import is_compiling

import regard
from regard import _core
from regard._arguments.keywords import check_options
from regard._arguments.masks import is_sparse
from regard._arguments.numbers import flag
from regard._arguments.options import TorchOptions, names_of
from regard._core import array_of_tensor
from regard.torch._arguments import TYPES, check_dense, masks
from regard.torch._autograd import attend, is_eager, record
from regard.torch._memory import NO_TENSORS, PLAIN, bfloat16, empty_output
from regard.torch._operators import compute, draw_seed
from regard.torch._options import ROLES, STARTS, check_without_gradient, seed_tensor
from regard.torch._recorder import OBSERVERS, show_call

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_OPTIONS = frozenset(names_of(TorchOptions))


def split_options(
    call: str, options: Mapping[str, Any], known: Collection[str]
) -> tuple[dict[str, Any], bool]:
    """Return the options that are not None, and whether lse is wanted.

    Raises TypeError if a call does not accept one of the options.
    """
    if not options:
        return {}, False
    if not _OPTIONS.issuperset(options):
        check_options(f"regard.torch.{call}", options, known)
    given = {name: option for name, option in options.items() if option is not None}
    if "query_offset" in options and "query_offset" not in given:
        raise TypeError('query_offset must be integers or "end", got None')
    return_lse = given.pop("return_lse", False)
    return given, return_lse if type(return_lse) is bool else flag("return_lse", return_lse)


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
        arrays = {"query": of_query, "key": of_key, "value": of_value, **words}
        call = {"query": query, "key": key, "value": value, **words}
        return record(partial(compute, call, arrays), call)[0]
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


def attend_checked(
    tensors: tuple[Tensor, ...],
    options: dict[str, Any],
    attn_mask: Any,
    dropout_p: Any,
    is_causal: Any,
    scale: Any,
    *,
    return_lse: bool,
) -> Any:
    """Compute a call, and its lse if `return_lse`.

    `tensors` are query, key and value, which have been checked, and the starts of packed sequences.
    `options` are the other options that are not None, which this function may change.
    """
    query, key, value, *starts = tensors
    if not query.shape[-1]:
        raise ValueError(
            "query and key must have a head_dim of at least 1, got shapes "
            f"{tuple(query.shape)} and {tuple(key.shape)}"
        )
    if dropout_p == 1 and not isinstance(dropout_p, Tensor):
        value, dropout_p = value * 0, 0.0
    if dropout_p:
        options["dropout_p"] = dropout_p
        seed = options.get("dropout_seed")
        options["dropout_seed"] = draw_seed() if seed is None else seed_tensor(seed)
    else:
        options.pop("dropout_seed", None)
    if is_causal is not False:
        options["is_causal"] = is_causal
    if scale is not None:
        options["scale"] = scale
    visible = bias = None
    if attn_mask is not None:
        visible, bias = masks(attn_mask, query.device)
    for name, option in options.items():
        if type(option) not in NO_TENSORS and isinstance(option, Tensor):
            check_dense(name, option)
            check_without_gradient(name, option)
    if OBSERVERS and not is_compiling():
        show_call((query, key, value, *starts), (visible, bias), options)
    if query.is_cuda:
        return _on_gpu((query, key, value), (visible, bias), attn_mask, options, return_lse)
    tensors = query, key, value, *starts
    call: dict[str, Any] = dict(zip((*ROLES, *STARTS), tensors, strict=False))
    if visible is not None:
        call["mask" if is_sparse(visible) else "bool_mask"] = visible
    if bias is not None:
        call["float_mask"] = bias
    call |= options
    try:
        results = attend(call, return_lse=return_lse)
    except TypeError as error:
        if not str(error).startswith("Multiple dispatch failed"):
            raise
        name, given = next(
            (name, each)
            for name, each in call.items()
            if isinstance(each, Tensor) and type(each) not in PLAIN
        )
        name = "attn_mask" if name in ("float_mask", "bool_mask") else name
        raise TypeError(
            f"{name} must be a dense tensor, got a {type(given).__name__}: its class does not "
            "handle operators that it does not know, so its elements cannot be read"
        ) from error
    return results if return_lse else results[0]


def _on_gpu(tensors: Any, masks: Any, attn_mask: Any, options: Any, return_lse: bool) -> Any:
    """Compute a call on a GPU, without gradients or transforms."""
    given = [each for each in (*tensors, *masks, *options.values()) if isinstance(each, Tensor)]
    is_recorded = torch.is_grad_enabled() and any(each.requires_grad for each in given)
    if is_recorded or not is_eager() or not all(type(each) in PLAIN for each in given):
        raise NotImplementedError(
            "attention on a CUDA device has no gradient and does not support torch.compile "
            "or torch.func: call it under torch.no_grad(), or copy the tensors with .cpu()"
        )
    if return_lse:
        options["return_lse"] = True
    query, key, value = tensors
    return regard.scaled_dot_product_attention(query, key, value, attn_mask, **options)
