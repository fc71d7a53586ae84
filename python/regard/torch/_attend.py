"""The part of a call that all layouts share, once query, key and value have been checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

import regard
from regard._arguments.keywords import check_options
from regard._arguments.masks import is_sparse
from regard._arguments.numbers import flag
from regard._arguments.options import TorchOptions, names_of
from regard.torch._arguments import check_dense, masks
from regard.torch._direct import PLAIN, direct_call
from regard.torch._memory import NO_TENSORS
from regard.torch._observing import OBSERVERS, show_call
from regard.torch._options import call_with, check_without_gradient
from regard.torch._seed import draw_seed

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from regard.torch._operators import Layout

_OPTIONS = frozenset(names_of(TorchOptions))
_REASONS = {
    "block_mask": "pass attn_mask=regard.torch.block_mask(block_mask)",
    "score_mod": "pass score_function=, a compiled regard.ScoreFunction, or an option that adds "
    "the same: alibi_slopes, distance_bias, softcap or a float attn_mask",
}


def split_options(
    call: str, options: Mapping[str, Any], known: Collection[str]
) -> tuple[dict[str, Any], bool]:
    """Return the options that are not None, and whether lse is wanted.

    Raises TypeError if a call does not accept one of the options.
    """
    if not options:
        return {}, False
    if not _OPTIONS.issuperset(options):
        check_options(f"regard.torch.{call}", options, known, reasons=_REASONS)
    given = {name: option for name, option in options.items() if option is not None}
    if "query_offset" in options and "query_offset" not in given:
        raise TypeError('query_offset must be integers or "end", got None')
    return_lse = given.pop("return_lse", False)
    return given, return_lse if type(return_lse) is bool else flag("return_lse", return_lse)


def attend(
    layout: Layout,
    tensors: tuple[Tensor, ...],
    options: dict[str, Any],
    attn_mask: Any,
    dropout_p: Any,
    is_causal: Any,
    scale: Any,
    *,
    return_lse: bool,
    is_direct: bool,
) -> Any:
    """Compute a call whose query, key and value have been checked.

    Parameters
    ----------
    layout : Layout
        The layout of the sequences.
    tensors : tuple of Tensor
        Query, key and value, followed by the starts of packed sequences.
    options : dict
        The other options that are not None, which this function may change.
    attn_mask, dropout_p, is_causal, scale
        As the caller passed them.
    return_lse : bool
        Whether to return lse, too.
    is_direct : bool
        Whether the call may read the memory of `tensors`: `is_eager`, and all types are in `PLAIN`.
    """
    query, key, value, *starts = tensors
    kind = "cpu" if query.is_cpu else query.device.type
    if not query.shape[-1]:
        raise ValueError(
            "query and key must have a head_dim of at least 1, got shapes "
            f"{tuple(query.shape)} and {tuple(key.shape)}"
        )
    if dropout_p == 1 and not isinstance(dropout_p, Tensor):
        value, dropout_p = value * 0, 0.0
    is_traced = torch.is_grad_enabled() and (
        query.requires_grad or key.requires_grad or value.requires_grad
    )
    if dropout_p:
        options["dropout_p"] = dropout_p
        if "dropout_seed" not in options:
            options["dropout_seed"] = draw_seed()
    elif options:
        options.pop("dropout_seed", None)
    if is_causal is not False:
        options["is_causal"] = is_causal
    if scale is not None:
        options["scale"] = scale
    others: list[Tensor] = []
    shown = bias = None
    if attn_mask is not None:
        shown, bias = masks(attn_mask, query.device)
        others = [mask for mask in (shown, bias) if mask is not None and not is_sparse(mask)]
    for name, option in options.items():
        if type(option) not in NO_TENSORS and isinstance(option, Tensor):
            check_dense(name, option)
            check_without_gradient(name, option)
            others.append(option)
    if others:
        is_direct = is_direct and all(type(each) in PLAIN for each in others)
        is_traced |= torch.is_grad_enabled() and any(each.requires_grad for each in others)
    if OBSERVERS and not is_compiling():
        show_call((query, key, value, *starts), (shown, bias), options)
    if kind == "cuda":
        is_possible = is_direct and not is_traced
        return _on_gpu(is_possible, (query, key, value), attn_mask, options, return_lse)
    found: Any
    if is_direct and kind == "cpu":
        found = direct_call(
            layout,
            (query, key, value, *starts),
            (shown, bias),
            options,
            return_lse=return_lse,
            is_recorded=is_traced,
        )
    else:
        call = call_with(layout, (query, key, value, *starts), (shown, bias), options)
        found = _dispatched(layout, call)
    return found if return_lse else found[0]


def _dispatched(layout: Layout, call: Any) -> Any:
    """Call the operator, or raise TypeError if a tensor's class does not know operators."""
    try:
        return layout.attention(*call)
    except TypeError as error:
        found = [
            (name, each)
            for name, each in call._asdict().items()
            if isinstance(each, Tensor) and type(each) not in PLAIN
        ]
        if not found or not str(error).startswith("Multiple dispatch failed"):
            raise
        name, given = found[0]
        name = "attn_mask" if name in ("float_mask", "bool_mask") else name
        raise TypeError(
            f"{name} must be a dense tensor, got a {type(given).__name__}: its class does not "
            "handle operators that it does not know, so its elements cannot be read"
        ) from error


def _on_gpu(is_possible: bool, tensors: Any, attn_mask: Any, options: Any, more: bool) -> Any:
    """Compute a call on a GPU, without gradients or transforms."""
    if not is_possible:
        raise NotImplementedError(
            "attention on a CUDA device has no gradient and does not support torch.compile "
            "or torch.func: call it under torch.no_grad(), or copy the tensors with .cpu()"
        )
    query, key, value = tensors
    if more:
        options["return_lse"] = True
    return regard.scaled_dot_product_attention(query, key, value, attn_mask, **options)
