"""The attention function that a model's attention modules call."""

from __future__ import annotations

from typing import Any

import regard.torch
from regard._arguments.masks import is_sparse
from regard._arguments.numbers import listed
from regard._arguments.options import TorchOptions, names_of
from regard._runtime.optional import needed
from regard.torch._observing import is_observed
from regard.transformers._combine import both, with_bias
from regard.transformers._continuous_batching import attend_to_texts
from regard.transformers._distances import distance_options, elements_of
from regard.transformers._models import MaskKind, expected_masks
from regard.transformers._pattern_mask import PatternMask
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
    attention_mask : PatternMask, tensor of bool or float, or None
        Determines visibility. Without a mask, query ``i`` of a causal module sees key ``j`` if
        ``j <= i``, and a single query sees everything, as with ``"sdpa"``. In models that
        ``"sdpa"`` does not support, all queries see everything, as with eager attention.
    dropout : float
        The probability of dropping a weight. Models pass 0 outside training.
    scaling, softcap : float, optional
        The options `scale` and `softcap` of `regard.scaled_dot_product_attention`.
    is_causal : bool, optional
        Overrides the module's attribute.
    s_aux, sinks : tensor, shape (heads,) or one that broadcasts to (batch, heads, q_len, 1)
        Logits that take part in the softmax without a value. The name depends on the model.
    position_bias : tensor, shape (1 or batch, heads, q_len, kv_len), optional
        Added to the scores. A bias that depends only on the distance between query and key, as in
        T5, becomes the option `distance_bias`.
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
        Arguments that the mask already accounts for, such as ``sliding_window``, and arguments of
        continuous batching. Masks of heads and regard's other options are refused.

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
        mask = None if isinstance(attention_mask, PatternMask) else attention_mask
        refused = {"attention_mask": mask, "indices": indices}
        refused |= {"position_bias": position_bias, "sinks of each query": sinks}
        output = attend_to_texts(
            module,
            (query, key, value),
            others | {"cu_seq_lens_q": cu_seq_lens_q, "cu_seq_lens_k": cu_seq_lens_k},
            cache,
            is_causal=is_causal,
            options=of_heads | {"dropout_p": dropout, "scale": scaling},
            refused=refused,
        )
        return output, None
    q_len, kv_len = query.shape[2], key.shape[2]
    options, mask = _visibility(module, attention_mask, is_causal, q_len, kv_len)
    if cu_seq_lens_q is not None or cu_seq_lens_k is not None:
        counts_queries = bool(options.get("is_causal") or "window" in options)
        starts = cu_seq_lens_q, cu_seq_lens_k
        mask = within_texts(mask, query, key, *starts, counts_queries=counts_queries)
    if indices is not None:
        mask = both(mask, _selected(indices, kv_len))
    if position_bias is not None:
        of_distances = distance_options(module, position_bias, options, kv_len)
        if of_distances is None:
            mask = with_bias(mask, elements_of(position_bias))
        else:
            options |= of_distances
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
    module: Any, attention_mask: Any, is_causal: bool | None, q_len: int, kv_len: int
) -> tuple[dict[str, Any], Any]:
    """Return the visibility as options, and a mask or None."""
    if isinstance(attention_mask, PatternMask):
        options, array = attention_mask.options_or_array()
        if array is None and not _is_for(options, attention_mask.shape, q_len, kv_len):
            array = attention_mask.array()
        if array is not None:
            return {}, array
        options = dict(options)
        if _is_left_to_module(options, q_len) and not _is_causal(
            module, is_causal, without_sdpa=True
        ):
            options = {"key_lengths": q_len} if q_len < kv_len else {}
        return options, options.pop("attn_mask", None)
    if attention_mask is not None:
        return {}, attention_mask
    return {"is_causal": q_len > 1 and _is_causal(module, is_causal, without_sdpa=False)}, None


def _is_left_to_module(options: dict[str, Any], q_len: int) -> bool:
    """Return whether ``"sdpa"`` makes no mask, and lets the module decide whether it is causal.

    Further keys are unused entries of a cache.
    """
    others = dict(options)
    lengths = others.pop("key_lengths", None)
    if others != {"is_causal": True, "query_offset": 0}:
        return False
    return lengths is None or bool((lengths == q_len).all())


def _is_causal(module: Any, is_causal: bool | None, *, without_sdpa: bool) -> bool:
    """Return whether a module is causal by itself.

    Models that ``"sdpa"`` does not support receive every mask that hides a key, and the attribute
    of some of their modules is wrong.
    """
    if is_causal is None:
        if expected_masks(getattr(module, "config", None)) is not MaskKind.BOOL:
            return without_sdpa
        is_causal = getattr(module, "is_causal", True)
    return bool(is_causal)


def _is_for(options: dict[str, Any], shape: Any, q_len: int, kv_len: int) -> bool:
    """Return whether options have the same meaning for these lengths as for a mask's shape.

    A mask of another shape may broadcast: some models make one mask row for all queries.
    """
    if not options:
        return True
    counts_queries = options.keys() & {"is_causal", "window"} or is_sparse(options.get("attn_mask"))
    return shape[3] == kv_len and (shape[2] == q_len or not counts_queries)


def _selected(indices: Any, kv_len: int) -> Any:
    """Return a bool mask of the keys that each query selects, for all heads."""
    nothing = indices.new_zeros((*indices.shape[:-1], kv_len), dtype=torch.bool)
    return nothing.scatter(-1, indices.long(), True).unsqueeze(1)
