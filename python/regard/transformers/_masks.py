"""The mask function that transformers calls once per forward pass.

Causal masks and padding are a row of keys, as for flash attention. Other masks are those of
``"sdpa"``, or of eager attention in models that ``"sdpa"`` does not support.

====================  =========================================================================
mask                  meaning
====================  =========================================================================
None                  the module decides whether it is causal
(batch, keys)         causal; the last query is at the last of these keys, of which False are
                      padding, and the keys beyond them do not exist. A sliding window holds
(batch, 1, keys)      the same, but the module decides whether it is causal
four axes             visibility, or a bias that is added to the scores
====================  =========================================================================
"""

from __future__ import annotations

from typing import Any

from regard._arguments.masks import is_sparse
from regard._runtime.public import needed
from regard.transformers._models import BOOL, OWN, expected_masks, takes_rows_of_keys

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

    The arguments are those of ``transformers.masking_utils.sdpa_mask``. The positions of the first
    query and of the first key are `q_offset` and `kv_offset`, and `attention_mask` contains which
    tokens are not padding. `allow_is_causal_skip` is False if the function differs from a causal
    mask, a window or chunks.
    """
    config = others.get("config")
    arguments = others | {
        "batch_size": batch_size,
        "q_length": q_length,
        "kv_length": kv_length,
        "q_offset": q_offset,
        "kv_offset": kv_offset,
        "mask_function": mask_function,
        "attention_mask": attention_mask,
        "device": device,
    }
    expected = expected_masks(config)
    if expected == OWN:
        return masking_utils.eager_mask(**arguments)
    is_bool = expected == BOOL
    if _has_values(attention_mask, q_offset, device):
        if mask_function is masking_utils.bidirectional_mask_function and is_bool:
            tokens = _tokens(attention_mask, batch_size, kv_offset, kv_length, device)
            may_skip = others.get("allow_is_bidirectional_skip", False)
            return None if may_skip and tokens.all() else tokens[:, None, None, :]
        window = others.get("local_size")
        end = int(q_offset) + q_length - kv_offset
        if (
            allow_is_causal_skip
            and takes_rows_of_keys(config)
            and q_length <= end <= kv_length
            and (mask_function is masking_utils.causal_mask_function or _is_window(config, window))
        ):
            # The keys up to the last query.
            tokens = _tokens(attention_mask, batch_size, kv_offset, end, device)
            is_left_to_module = (
                is_bool
                and tokens.all()
                and (window is None or kv_length < window)
                and (q_length == 1 or end == q_length)
            )
            if not is_left_to_module:
                return tokens
            return None if end == kv_length else tokens[:, None]
    shown = masking_utils.sdpa_mask(
        **arguments, allow_is_causal_skip=allow_is_causal_skip and is_bool
    )
    return shown if is_bool else _added(shown, others.get("dtype", torch.float32))


def _is_window(config: Any, size: int | None) -> bool:
    """Return whether a local mask is the window of the configuration, and not its chunks."""
    return (
        size is not None
        and size == getattr(config, "sliding_window", None)
        and size != getattr(config, "attention_chunk_size", None)
    )


def _tokens(attention_mask: Any, batch_size: int, start: int, length: int, device: Any) -> Any:
    """Return which keys are tokens. Keys beyond `attention_mask` are not."""
    if attention_mask is None:
        return torch.ones(batch_size, length, dtype=torch.bool, device=device)
    tokens = attention_mask[:, start : start + length]
    return torch.nn.functional.pad(tokens, (0, length - tokens.shape[-1]))


def _has_values(attention_mask: Any, q_offset: Any, device: Any) -> bool:
    """Return whether padding and offset can be read, and have the documented shapes."""
    tensors = [each for each in (attention_mask, q_offset) if isinstance(each, torch.Tensor)]
    if torch.device(device).type == "meta" or any(each.is_meta for each in tensors):
        return False
    if any(masking_utils.is_tracing(each) for each in tensors or [None]):
        return False
    if isinstance(q_offset, torch.Tensor) and q_offset.numel() != 1:
        return False
    return attention_mask is None or (
        attention_mask.ndim == 2 and attention_mask.dtype == torch.bool
    )


def _added(shown: Any, dtype: Any) -> Any:
    """Return the bias that eager attention adds to its scores in place of a bool mask."""
    if shown is None:
        return None
    nothing = torch.zeros((), dtype=dtype, device=shown.device)
    return torch.where(shown, nothing, torch.finfo(dtype).min)


def padding_options(tokens: Any) -> dict[str, Any]:
    """Return the options that hide padding, or no options if no key is padding.

    The other keys nearly always form one interval in each batch entry. An interval is cheaper than
    a mask, since keys outside it are not even read.
    """
    if masking_utils.is_tracing(tokens):
        return {"attn_mask": tokens[:, None, None, :]}
    length = tokens.shape[-1]
    counts = tokens.sum(dim=-1)
    if (counts == length).all():
        return {}
    places = torch.arange(length, device=tokens.device)
    first = torch.where(tokens, places, length).amin(dim=-1)
    beyond = torch.where(tokens, places + 1, 0).amax(dim=-1)
    if not (counts == (beyond - first).clamp(min=0)).all():
        return {"attn_mask": tokens[:, None, None, :]}
    options = {}
    if (beyond < length).any():
        options["key_lengths"] = beyond
    if (first > 0).any():
        options["left_padding"] = first
    return options


def both(mask: Any, shown: Any) -> Any:
    """Return the intersection of a mask and a bool mask.

    Parameters
    ----------
    mask : tensor of bool or float, SparseMask, pair (shown, float tensor), or None
    shown : tensor of bool, or SparseMask
    """
    if mask is None:
        return shown
    if isinstance(mask, tuple):
        return both(mask[0], shown), mask[1]
    if not is_shown(mask):
        return shown, mask
    if is_sparse(mask) == is_sparse(shown):
        return mask & shown
    sparse, dense = (mask, shown) if is_sparse(mask) else (shown, mask)
    return sparse & dense.numpy()


def with_bias(mask: Any, bias: Any) -> Any:
    """Combine a mask as in `both` with a float tensor that is added to the scores."""
    if mask is None:
        return bias
    if isinstance(mask, tuple):
        return mask[0], mask[1] + bias
    return (mask, bias) if is_shown(mask) else mask + bias


def is_shown(mask: Any) -> bool:
    """Return whether a mask determines visibility, and is not added to the scores."""
    return is_sparse(mask) or mask.dtype == torch.bool
