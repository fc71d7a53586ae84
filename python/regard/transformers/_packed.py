"""Texts that are packed into one row, and continuous batching (`generate_batch`).

A caller of a model may pass the start of each text, followed by the total, as ``cu_seq_lens_q`` and
``cu_seq_lens_k``, in the format that flash attention accepts. A query sees only the keys in its
text. In continuous batching, a text has new queries, and all its keys. The transformers cache
stores keys and values in pages, and gathers those of a step before it calls attention.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import numpy as np

import regard.torch
from regard._arguments.arrays import shown
from regard._runtime.public import needed
from regard.transformers._masks import both
from regard.transformers._models import NAME

torch = needed("torch", "regard.transformers", "transformers")
masking_utils = needed("transformers.masking_utils", "regard.transformers", "transformers")
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

    `tensors` are query, key and value, of shape (1, heads, length, dim), in which everything after
    the last text is padding. If there is a `cache`, key and value are only the new ones: it stores
    them, and returns all. `step` are the arguments that transformers passes: the starts of texts,
    and ``sliding_window``, the number of keys that a query sees, counted back from its own. The
    last query of a text is at its last key. Raises NotImplementedError unless all arguments in
    `refused` are None.
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


def within_texts(
    mask: Any, query: Any, key: Any, query_starts: Any, key_starts: Any, *, counts_queries: bool
) -> Any:
    """Return a mask, as in `both`, that also hides the keys of other texts.

    `counts_queries` is whether options of the call depend on the positions of queries and keys.
    Raises TypeError or ValueError if starts do not fit the one row of `query` and `key`, or if the
    texts of queries and keys differ although positions count.
    """
    if query.shape[0] != 1:
        raise ValueError(
            f"cu_seq_lens_q needs one row of packed texts, got a batch of {query.shape[0]}: pack "
            "all texts into one row, or pass position_ids that restart in each text"
        )
    given = ("cu_seq_lens_q", query_starts, query), ("cu_seq_lens_k", key_starts, key)
    for name, starts, _ in given:
        _check_type(name, starts)
    if any(masking_utils.is_tracing(starts) for _, starts, _ in given):
        numbers = [_traced_numbers(starts, tokens.shape[2]) for _, starts, tokens in given]
        return both(mask, (numbers[0][:, None] == numbers[1])[None, None])
    counts = [_counts(name, starts, tokens.shape[2]) for name, starts, tokens in given]
    if counts_queries and not np.array_equal(*counts):
        raise ValueError(
            "cu_seq_lens_q and cu_seq_lens_k must be equal if a mask is causal or a window, "
            f"got {query_starts.tolist()} and {key_starts.tolist()}"
        )
    numbers = [np.repeat(np.arange(len(each)), each) for each in counts]
    return both(mask, regard.masks.documents(*numbers))


def _check_type(name: str, starts: Any) -> None:
    if not isinstance(starts, torch.Tensor):
        got = "nothing" if starts is None else shown(starts)
        raise TypeError(
            f"{name} must be a tensor of integers, got {got}: cu_seq_lens_q and cu_seq_lens_k "
            "belong together"
        )
    if starts.is_floating_point() or starts.is_complex() or starts.dtype == torch.bool:
        raise TypeError(f"{name} must be a tensor of integers, got {starts.dtype}")


def _counts(name: str, starts: Any, length: int) -> Any:
    """Return the number of tokens of each text, or raise ValueError."""
    values = starts.detach().cpu().numpy()
    counts = np.diff(values) if values.ndim == 1 else None
    if counts is None or not len(values) or values[0] or values[-1] != length or counts.min() < 0:
        raise ValueError(
            f"{name} must contain the start of each text and the total, from 0 to {length} and "
            f"never decreasing, got {starts.tolist()}"
        )
    return counts


def _traced_numbers(starts: Any, length: int) -> Any:
    """Return the number of the text of each token, if values cannot be read."""
    places = torch.arange(length, device=starts.device)
    return torch.searchsorted(starts[1:].contiguous(), places, right=True)
