"""The attention function that a model's attention modules call."""

from __future__ import annotations

from typing import Any

import regard.torch
from regard._arguments.numbers import listed
from regard._arguments.options import TorchOptions, names_of
from regard._runtime.public import needed
from regard.torch._recorder import is_observed
from regard.transformers._combine import both, with_bias
from regard.transformers._continuous_batching import attend_to_texts
from regard.transformers._masks import padding_options
from regard.transformers._models import MaskKind, expected_masks
from regard.transformers._texts import within_texts

torch = needed("torch", "regard.transformers", "transformers")
logging = needed("transformers.utils.logging", "regard.transformers", "transformers")

logger = logging.get_logger(__name__)


def attend(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Any = None,
    sinks: Any = None,
    position_bias: Any = None,
    indices: Any = None,
    block_indices: Any = None,
    sliding_window: int | None = None,
    cache: Any = None,
    cu_seq_lens_q: Any = None,
    cu_seq_lens_k: Any = None,
    output_attentions: bool = False,
    **others: Any,
) -> tuple[Any, None]:
    """Compute the output of an attention module, with None in place of the weights.

    Parameters
    ----------
    module : torch.nn.Module
        If there is no mask, or only a causal mask, its attribute ``is_causal`` determines whether
        attention is causal, as with ``"sdpa"``.
    query : tensor, shape (batch, heads, q_len, head_dim)
    key : tensor, shape (batch, kv_heads, kv_len, head_dim)
    value : tensor, shape (batch, kv_heads, kv_len, value_dim)
    attention_mask : tensor of bool or float, or None
        Determines visibility, as described in `_masks`. Without a mask, query ``i`` of a causal
        module sees key ``j`` if ``j <= i``, and a single query sees everything, as with ``"sdpa"``.
        In models that ``"sdpa"`` does not support, all queries see everything, as with eager
        attention.
    dropout : float
        The probability of dropping a weight. Models pass 0 outside training.
    scaling, softcap : float, optional
        The options `scale` and `softcap` of `regard.scaled_dot_product_attention`.
    is_causal : bool, optional
        Overrides the module's attribute.
    s_aux, sinks : tensor, shape (heads,) or one that broadcasts to (batch, heads, q_len, 1)
        Logits that take part in the softmax without a value. The name depends on the model.
    position_bias : tensor, shape (1 or batch, heads, q_len, kv_len), optional
        Added to the scores.
    sliding_window : int, optional
        The number of keys that a query sees, counted back from its own, if `attention_mask` is a
        row of keys. Other masks contain the window.
    indices : tensor of int, shape (batch, q_len, count), optional
        The only keys that a query may see.
    block_indices
        Must be None: block attention is not supported.
    cache : PagedAttentionCache, optional
        In continuous batching, the cache that stores keys and values, if the module leaves that to
        the attention function.
    cu_seq_lens_q, cu_seq_lens_k : tensor of int, shape (texts + 1,), optional
        The starts of texts that are packed into one row, followed by the total. A query sees only
        the keys of its own text.
    output_attentions : bool
        If True, a warning is logged, since attention weights are not returned.
    **others
        Arguments that the mask already accounts for, and arguments of continuous batching. Masks of
        heads and regard's other options are refused.

    Returns
    -------
    output : tensor, shape (batch, q_len, heads, value_dim)
    weights : None
    """
    _refuse(others)
    if block_indices is not None:
        raise NotImplementedError(
            f"{type(module).__name__} attends to blocks that it selects, which "
            "attn_implementation='regard' does not support: use 'sdpa' or 'eager'"
        )
    if output_attentions:
        logger.warning_once(
            "attn_implementation='regard' returns no attention weights: use 'eager' for "
            "output_attentions=True"
        )
    sinks = s_aux if sinks is None else sinks
    of_heads: dict[str, Any] = {"softcap": softcap}
    if sinks is not None and sinks.ndim == 1:
        of_heads["sinks"], sinks = sinks.to(query.dtype), None
    if "write_index" in others:
        # transformers 5.23 makes a mask of only the new tokens, which the starts replace.
        mask = attention_mask if attention_mask is not None and attention_mask.ndim > 3 else None
        refused = {"attention_mask": mask, "indices": indices}
        refused |= {"position_bias": position_bias, "sinks of each query": sinks}
        output = attend_to_texts(
            module,
            (query, key, value),
            others
            | {"cu_seq_lens_q": cu_seq_lens_q, "cu_seq_lens_k": cu_seq_lens_k}
            | {"sliding_window": sliding_window},
            cache,
            is_causal=is_causal,
            options=of_heads | {"dropout_p": dropout, "scale": scaling},
            refused=refused,
        )
        return output, None
    if attention_mask is not None and attention_mask.ndim < 4:
        # A cache may have room for more keys.
        key, value = (x[:, :, : attention_mask.shape[-1]] for x in (key, value))
    q_len, kv_len = query.shape[2], key.shape[2]
    options, mask = _visibility(module, attention_mask, is_causal, q_len, kv_len, sliding_window)
    if cu_seq_lens_q is not None or cu_seq_lens_k is not None:
        counts_queries = bool(options.get("is_causal"))
        starts = cu_seq_lens_q, cu_seq_lens_k
        mask = within_texts(mask, query, key, *starts, counts_queries=counts_queries)
    if indices is not None:
        mask = both(mask, _selected(indices, kv_len))
    if position_bias is not None:
        mask = with_bias(mask, position_bias)
    if sinks is not None and is_observed():
        # A recording needs the same weights from options: sinks of 0, and scores that are smaller
        # by the sinks of their queries.
        mask, of_heads["sinks"] = (
            with_bias(mask, -sinks.to(query.dtype)),
            sinks.new_zeros(query.shape[1]),
        )
        sinks = None
    result: Any = regard.torch.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        dropout_p=dropout,
        scale=scaling,
        enable_gqa=True,
        return_lse=sinks is not None,
        **of_heads,
        **options,
    )
    if sinks is None:
        return result.transpose(1, 2).contiguous(), None
    # A sink that depends on the query scales an output that was computed without it.
    output, lse = result
    share = torch.sigmoid(lse[..., None] - sinks).to(output.dtype)
    return (output * share).transpose(1, 2).contiguous(), None


# Options of `regard.torch.scaled_dot_product_attention` that a model would pass on, and masks of
# heads, which older models multiplied the weights by.
_REFUSED = {*names_of(TorchOptions), "attn_mask", "dropout_p", "scale", "head_gates", "head_mask"}
_REFUSED |= {"layer_head_mask", "cross_attn_head_mask"}


def _refuse(others: dict[str, Any]) -> None:
    """Raise TypeError for arguments that would change the result, and that nothing applies."""
    names = [name for name in others if name in _REFUSED and others[name] is not None]
    if names:
        advice = "call regard.torch.scaled_dot_product_attention in the model"
        if any("head" in name for name in names):
            advice = (
                "to scale or remove heads, change the input of the module's output projection in "
                "a forward pre-hook"
            )
        raise TypeError(
            f"attn_implementation='regard' does not accept {listed(names)} from a model's call: "
            f"{advice}"
        )


def _visibility(
    module: Any,
    attention_mask: Any,
    is_causal: bool | None,
    q_len: int,
    kv_len: int,
    sliding_window: int | None,
) -> tuple[dict[str, Any], Any]:
    """Return the visibility as options, and a mask or None."""
    if attention_mask is None:
        return {"is_causal": q_len > 1 and _is_causal(module, is_causal)}, None
    if attention_mask.ndim > 3:
        if attention_mask.dtype == torch.bool and attention_mask.shape[1:3] == (1, 1):
            options = padding_options(attention_mask[:, 0, 0])
            if attention_mask.shape[3] == kv_len:
                return options, options.pop("attn_mask", None)
        return {}, attention_mask
    if attention_mask.shape[-1] != kv_len or kv_len < q_len:
        raise ValueError(
            f"attention_mask must have one element for each of the {kv_len} keys, and there must "
            f"be a key for each of the {q_len} queries, got shape {tuple(attention_mask.shape)}"
        )
    is_row = attention_mask.ndim == 2
    options = padding_options(attention_mask if is_row else attention_mask[:, 0])
    if is_row or _is_causal(module, is_causal):
        options |= {"is_causal": True, "query_offset": kv_len - q_len}
    if is_row and sliding_window is not None:
        options["window"] = sliding_window - 1, None
    return options, options.pop("attn_mask", None)


def _is_causal(module: Any, is_causal: bool | None) -> bool:
    """Return whether a module is causal by itself.

    Models that ``"sdpa"`` does not support receive every mask that hides a key, and the attribute
    of some of their modules is wrong.
    """
    if is_causal is None:
        if expected_masks(getattr(module, "config", None)) is not MaskKind.BOOL:
            return False
        is_causal = getattr(module, "is_causal", True)
    return bool(is_causal)


def _selected(indices: Any, kv_len: int) -> Any:
    """Return a bool mask of the keys that each query selects, for all heads."""
    nothing = indices.new_zeros((*indices.shape[:-1], kv_len), dtype=torch.bool)
    return nothing.scatter(-1, indices.long(), True).unsqueeze(1)
