"""Texts that are packed into one row, in the format that flash attention accepts.

A caller of a model may pass the start of each text, followed by the total, as ``cu_seq_lens_q`` and
``cu_seq_lens_k``. A query sees only the keys of its own text.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import regard
from regard._arguments.arrays import shown
from regard._runtime.public import needed
from regard.transformers._combine import both

torch = needed("torch", "regard.transformers", "transformers")
masking_utils = needed("transformers.masking_utils", "regard.transformers", "transformers")


def within_texts(
    mask: Any, query: Any, key: Any, query_starts: Any, key_starts: Any, *, counts_queries: bool
) -> Any:
    """Return a mask, as in `both`, that also hides the keys of other texts.

    Parameters
    ----------
    mask : tensor, SparseMask, pair, or None
    query, key : tensor
        As in `attend`.
    query_starts, key_starts : tensor of int, shape (texts + 1,)
        The arguments ``cu_seq_lens_q`` and ``cu_seq_lens_k``.
    counts_queries : bool
        Whether options of the call depend on the positions of queries and keys.

    Raises
    ------
    TypeError
        If starts are not tensors of integers.
    ValueError
        If starts do not begin with 0, decrease or do not end at the number of tokens, if there is
        more than one row, or if the texts of queries and keys differ although positions count.
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
