"""The attention function that a model's attention modules call, and its registration."""

from __future__ import annotations

from typing import Any

import regard.masks
import regard.torch
from regard._arguments.numbers import listed
from regard._arguments.options import TorchOptions, names_of
from regard._runtime.public import needed
from regard.torch._recorder import is_observed
from regard.transformers._linear import replace_delta_rules
from regard.transformers._masks import both, make_mask, padding_options, with_bias
from regard.transformers._models import BOOL, NAME, expected_masks
from regard.transformers._packed import allow_continuous_batching, attend_to_texts, within_texts

torch = needed("torch", "regard.transformers", "transformers")
transformers = needed("transformers", "regard.transformers", "transformers")
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

    The arguments are those that models pass to all attention functions. `attention_mask` is as in
    `_masks`. Without a mask, query ``i`` of a causal module sees key ``j`` if ``j <= i``, and a
    single query sees everything, as with ``"sdpa"``; `is_causal` overrides the module's attribute.
    In models that ``"sdpa"`` does not support, all queries see everything, as with eager attention.
    `sliding_window` counts the keys back from the query's own, and holds only for a row of keys:
    other masks contain it. `s_aux` and `sinks`, of shape (heads,) or one that broadcasts to (batch,
    heads, q_len, 1), are logits that take part in the softmax without a value; `position_bias` is
    added to the scores. `indices`, of shape (batch, q_len, count), are the only keys that a query
    may see, and `block_indices`, of shape (batch, heads of the indexer, q_len, count), the only
    blocks of ``module.indexer.block_size`` keys; -1 is none. In continuous batching, `cache` may
    store keys and values. The other arguments are accounted for by the mask, or refused.
    """
    _refuse(others)
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
        refused = {"attention_mask": mask, "indices": indices, "block_indices": block_indices}
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
    if block_indices is not None:
        indices = _keys_of_blocks(block_indices, module.indexer.block_size, query.shape[1])
    elif indices is not None:
        indices = indices[:, None]
    if indices is not None:
        mask = _selected(indices, mask, kv_len)
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
        if expected_masks(getattr(module, "config", None)) != BOOL:
            return False
        is_causal = getattr(module, "is_causal", True)
    return bool(is_causal)


def _keys_of_blocks(blocks: Any, size: int, heads: int) -> Any:
    """Return the keys of the selected blocks, for all query heads; -1 is none."""
    within = torch.arange(size, device=blocks.device)
    keys = torch.where(blocks[..., None] < 0, -1, blocks[..., None] * size + within).flatten(-2)
    return keys.repeat_interleave(heads // blocks.shape[1], dim=1)


def _selected(indices: Any, mask: Any, kv_len: int) -> Any:
    """Return a mask of the keys that each query selects, of those that another mask shows.

    A graph holds no sparse mask, and a mask of numbers does not only hide.
    """
    indices = torch.where(indices < kv_len, indices, -1).long()
    is_tensor = torch.is_tensor(mask)  # packed texts give a sparse mask
    if torch.compiler.is_compiling() or (is_tensor and mask.dtype != torch.bool):
        shown = indices.new_zeros((*indices.shape[:-1], kv_len + 1), dtype=torch.bool)
        shown = shown.scatter(-1, torch.where(indices < 0, kv_len, indices), True)[..., :kv_len]
        return both(mask, shown)
    if is_tensor:
        rows = torch.broadcast_shapes(indices.shape[:-1], mask.shape[:-1])
        indices, mask = indices.expand(*rows, -1), mask.expand(*rows, -1)
        indices, mask = torch.where(mask.gather(-1, indices.clamp(min=0)), indices, -1), None
    return both(mask, regard.masks.Selected(indices.cpu().numpy(), kv_len=kv_len))


def register() -> None:
    """Add ``"regard"`` to the transformers attention implementations in this process.

    Afterward, ``attn_implementation="regard"`` works for any model whose attention uses
    ``transformers.AttentionInterface``, and ``model.set_attn_implementation("regard")`` switches an
    existing model. Repeated calls have no effect.

    Notes
    -----
    Two functions are registered: one computes attention, and the other makes masks. Causal masks,
    sliding windows and padding are a row of keys, as for flash attention, if all models of the
    configuration support it. All other masks are those that ``"sdpa"`` makes, or those of eager
    attention if ``"sdpa"`` does not support the model.

    The transformers method of continuous batching that refuses unknown implementations is replaced;
    it calls the original method for models with another implementation. So are the delta rules of
    hybrid models, such as Qwen3-Next and Kimi Linear, which on the CPU are then computed by
    `regard.torch.linear_attention` if the model's implementation is ``"regard"``.

    The dropout seed is drawn from PyTorch's default generator, so that ``torch.manual_seed``
    reproduces it. Attention weights are not returned, as with ``"sdpa"``.

    Examples
    --------
    >>> import regard.transformers, torch, transformers
    >>> regard.transformers.register()
    >>> config = transformers.LlamaConfig(
    ...     hidden_size=32, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2,
    ...     num_hidden_layers=2, vocab_size=100,
    ... )
    >>> model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="regard")
    >>> model(torch.tensor([[1, 2, 3]])).logits.shape
    torch.Size([1, 3, 100])
    """
    transformers.AttentionInterface.register(NAME, attend)
    transformers.AttentionMaskInterface.register(NAME, make_mask)
    allow_continuous_batching()
    replace_delta_rules()
