"""The mask function that transformers calls once per forward pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import regard
from regard._runtime.optional import needed
from regard.transformers._combine import both
from regard.transformers._lazy_bias import compute_lazily
from regard.transformers._models import MaskKind, expected_masks
from regard.transformers._pattern_mask import PatternMask
from regard.transformers._patterns import Extent, read_pattern

torch = needed("torch", "regard.transformers", "transformers")
masking_utils = needed("transformers.masking_utils", "regard.transformers", "transformers")


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Any = masking_utils.causal_mask_function,
    attention_mask: Any = None,
    allow_is_causal_skip: bool = True,
    device: Any = "cpu",
    **others: Any,
) -> Any:
    """Return the mask that combines `mask_function` and the padding.

    Parameters
    ----------
    batch_size, q_length, kv_length : int
        The mask's shape is ``(batch_size, 1, q_length, kv_length)``.
    q_offset, kv_offset : int or tensor
        The positions of the first query and of the first key.
    mask_function : callable
        Returns whether a query sees a key, given their indices.
    attention_mask : tensor of bool, shape (batch_size, tokens), optional
        Which tokens are not padding.
    allow_is_causal_skip : bool, default True
        Whether a traced model may receive None for a causal mask, as with ``"sdpa"``.
    device : torch.device or str
        The device of the mask.
    **others
        Other arguments of ``transformers.masking_utils.sdpa_mask``.

    Returns
    -------
    mask : PatternMask, or tensor, or None
        The elements are bool if ``"sdpa"`` supports the model, and otherwise added to scores. None
        only if the model is traced, or if it allows a mask that hides nothing to be omitted.
    """
    expected = expected_masks(others.get("config"))
    arguments = {
        "batch_size": batch_size,
        "q_length": q_length,
        "kv_length": kv_length,
        "q_offset": q_offset,
        "kv_offset": kv_offset,
        "mask_function": mask_function,
        "attention_mask": attention_mask,
        "device": device,
    }
    if expected is MaskKind.OWN:
        return masking_utils.eager_mask(**arguments | others)
    shown = partial(masking_utils.sdpa_mask, **arguments | others, allow_is_causal_skip=False)
    dtype = torch.bool if expected is MaskKind.BOOL else others.get("dtype", torch.float32)
    if _is_traced(attention_mask, q_offset, device):
        if expected is MaskKind.BOOL:
            return shown(allow_is_causal_skip=allow_is_causal_skip)
        return _added(shown(), dtype)
    kind: type = type(others.get("config"))
    compute_lazily(kind)
    # None for a causal mask would leave causality to the module and lose the offsets.
    options = None
    if _is_plain(attention_mask, q_offset):
        options = _options(arguments | {"q_offset": int(q_offset)})
    if options is None:
        array = shown()
        if expected is MaskKind.BOOL or array is None:
            return array
        options, make = {"attn_mask": array}, partial(_added, array, dtype)
    elif not options and others.get("allow_is_bidirectional_skip", False):
        return None
    else:
        # A model may read the mask within an operator, where vmap does not work.
        make = partial(_made, shown, dtype)
    shape = (batch_size, 1, q_length, kv_length)
    return PatternMask.of(options, shape, dtype, device, make)


def _made(shown: Callable[..., Any], dtype: Any) -> Any:
    """Return the array of a pattern, computed without vmap."""
    return _added(shown(allow_is_bidirectional_skip=False, use_vmap=False), dtype)


def _added(shown: Any, dtype: Any) -> Any:
    """Return a bool mask, or the bias that eager attention adds to its scores instead."""
    if shown is None or dtype == torch.bool:
        return shown
    nothing = torch.zeros((), dtype=dtype, device=shown.device)
    return torch.where(shown, nothing, torch.finfo(dtype).min)


def _options(arguments: dict[str, Any]) -> dict[str, Any] | None:
    """Return the options equivalent to a mask, or None if its pattern is unknown."""
    attention_mask = arguments["attention_mask"]
    q_offset, q_length = arguments["q_offset"], arguments["q_length"]
    kv_offset, kv_length = arguments["kv_offset"], arguments["kv_length"]
    end = max(q_offset + q_length, kv_offset + kv_length)
    extent = Extent(end, attention_mask is not None)
    pattern = read_pattern(arguments["mask_function"], extent)
    if pattern is None or (pattern.texts and torch.device(arguments["device"]).type != "cpu"):
        return None  # sparse masks are for the CPU
    options: dict[str, Any] = _padding_options(attention_mask, kv_offset, kv_length)
    for text in pattern.texts:
        queries, keys = text[:, q_offset:][:, :q_length], text[:, kv_offset:][:, :kv_length]
        within = regard.masks.documents(queries.numpy(), keys.numpy())
        others = options.get("attn_mask")
        options["attn_mask"] = within if others is None else both(others, within)
    if pattern.is_causal:
        options["is_causal"] = True
    if pattern.window is not None:
        options["window"] = pattern.window
    if options.keys() & {"is_causal", "window"}:
        options["query_offset"] = q_offset - kv_offset
    return options


def _is_traced(attention_mask: Any, q_offset: Any, device: Any) -> bool:
    """Return whether the elements cannot be read."""
    tensors = [each for each in (attention_mask, q_offset) if isinstance(each, torch.Tensor)]
    if torch.device(device).type == "meta" or any(each.is_meta for each in tensors):
        return True
    return any(masking_utils.is_tracing(each) for each in tensors or [None])


def _is_plain(attention_mask: Any, q_offset: Any) -> bool:
    """Return whether padding and offset have the shapes that transformers documents."""
    if isinstance(q_offset, torch.Tensor) and q_offset.numel() != 1:
        return False
    return attention_mask is None or (
        attention_mask.ndim == 2 and attention_mask.dtype == torch.bool
    )


def _padding_options(attention_mask: Any, kv_offset: int, kv_length: int) -> dict[str, Any]:
    """Return the options that hide padding, or no options if no key is padding.

    Keys beyond `attention_mask` are padding. The other keys nearly always form one interval in each
    batch entry. An interval is cheaper than a mask, since keys outside it are not even read.
    """
    if attention_mask is None:
        return {}
    is_token = attention_mask[:, kv_offset : kv_offset + kv_length]
    if is_token.shape[-1] < kv_length:
        is_token = torch.nn.functional.pad(is_token, (0, kv_length - is_token.shape[-1]))
    counts = is_token.sum(dim=-1)
    if (counts == kv_length).all():
        return {}
    places = torch.arange(kv_length, device=is_token.device)
    first = torch.where(is_token, places, kv_length).amin(dim=-1)
    beyond = torch.where(is_token, places + 1, 0).amax(dim=-1)
    if not (counts == (beyond - first).clamp(min=0)).all():
        return {"attn_mask": is_token[:, None, None, :]}
    options = {}
    if (beyond < kv_length).any():
        options["key_lengths"] = beyond
    if (first > 0).any():
        options["left_padding"] = first
    return options
