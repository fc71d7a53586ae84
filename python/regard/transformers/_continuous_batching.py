"""Continuous batching (`generate_batch`): all texts of a step in one row.

The transformers cache stores keys and values in pages, and gathers the keys and values of a step
before it calls attention. Each text has its own new queries, and all its keys.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import regard.torch
from regard._runtime.public import needed
from regard.transformers._models import NAME

torch = needed("torch", "regard.transformers", "transformers")
continuous_batching = needed(
    "transformers.generation.continuous_batching.continuous_api",
    "regard.transformers",
    "transformers",
)


def allow_continuous_batching() -> None:
    """Let transformers batch continuously with regard.

    It refuses all names except its own, and would replace other names with flash attention. For
    names other than regard's, its behavior does not change.
    """
    manager = continuous_batching.ContinuousBatchingManager
    switch = getattr(manager, "switch_to_cb_friendly_attn", None)
    if switch is None or getattr(switch, "_knows_regard", False):
        return

    @wraps(switch)
    def switch_unless_regard(self: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        if model.config._attn_implementation != NAME:
            switch(self, model, *args, **kwargs)

    switch_unless_regard._knows_regard = True  # type: ignore[attr-defined]
    manager.switch_to_cb_friendly_attn = switch_unless_regard


def attend_to_texts(
    module: Any,
    tensors: tuple[Any, Any, Any],
    step: dict[str, Any],
    cache: Any,
    *,
    is_causal: bool | None,
    options: dict[str, Any],
    refused: dict[str, Any],
) -> Any:
    """Compute the output for the texts of a step, of shape (1, q_len, heads, value_dim).

    Parameters
    ----------
    module, is_causal
        As in `attend`.
    tensors : tuple of tensor
        Query, key and value, of shape (1, heads, length, dim). Keys and values are all that the
        texts see, or only the new keys and values if there is a `cache`. Everything after the last
        text is padding.
    step : dict
        The arguments that transformers passes: the starts of the texts among queries and keys, as
        ``cu_seq_lens_q`` and ``cu_seq_lens_k``, and ``sliding_window``, the number of keys that a
        query sees, counted back from its own. The last query of a text is at its last key.
    cache : PagedAttentionCache or None
        Stores the new keys and values, and returns all of them.
    options : dict
        Other options of the call.
    refused : dict
        Arguments that must be None, by name.

    Raises
    ------
    NotImplementedError
        If one of these arguments is not None.
    """
    refused = refused | {"block_table": step.get("block_table")}
    for name, argument in refused.items():
        if argument is not None:
            raise NotImplementedError(
                f"{type(module).__name__} attends with {name}, which attn_implementation='regard' "
                "does not support in continuous batching: use generate in place of generate_batch"
            )
    query, key, value = tensors
    if cache is not None:  # transformers 5.23 leaves this to attention functions
        key, value = cache.update(key, value, module.layer_idx, step)
    window = step.get("sliding_window")
    # Padding is one more text.
    query_starts, key_starts = (
        torch.nn.functional.pad(each, (0, 1), value=tokens.shape[2])
        for each, tokens in ((step["cu_seq_lens_q"], query), (step["cu_seq_lens_k"], key))
    )
    query, key, value = (each[0].transpose(0, 1) for each in (query, key, value))
    output: Any = regard.torch.scaled_dot_product_attention_ragged(
        query,
        key,
        value,
        query_starts,
        key_starts,
        is_causal=getattr(module, "is_causal", True) if is_causal is None else is_causal,
        enable_gqa=True,
        window=None if window is None else (window - 1, None),
        query_offset="end",
        **options,
    )
    return output[None]
