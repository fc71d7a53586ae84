"""Build masks from the sequences to which keys belong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

import numpy as np

from regard._arguments.keywords import refuses_unknown
from regard._arguments.numbers import count, integers
from regard.masks._per_batch import lengths
from regard.masks._rows import check_axes

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


@refuses_unknown
def padding(
    key_lengths: ArrayLike, kv_len: SupportsIndex, *, side: Literal["right", "left"] = "right"
) -> NDArray[np.bool_]:
    """Hide the padding of sequences that are shorter than their array.

    Parameters
    ----------
    key_lengths : int or integer array
        Number of keys that are not padding, scalar or one per batch entry, in ``0 .. kv_len``.
    kv_len : int
        Number of keys, including padding.
    side : {"right", "left"}, default "right"
        The side of the padding: after the sequence, or before it, where Hugging Face tokenizers
        put it for generation (``padding_side="left"``).

    Returns
    -------
    numpy.ndarray of bool
        Shape ``(*batch, 1, 1, kv_len)`` for lengths of shape ``batch``, where the ones are the
        heads and queries axes; ``(1, kv_len)`` for one length.

    Raises
    ------
    TypeError
        If a length is not an integer.
    ValueError
        If a length is not in ``0 .. kv_len``, or `side` is neither "right" nor "left".

    See Also
    --------
    regard.scaled_dot_product_attention : ``key_lengths`` hides padding on the right, and
        ``left_padding`` on the left, without a mask.

    Notes
    -----
    A tokenizer's ``attention_mask`` ``(batch, kv_len)`` of ones and zeros gives the same mask:
    ``attention_mask.astype(bool)[:, None, None, :]``. Padding on the left does not change positions
    within the array, so ``padding(...) & causal(...)`` is correct without an offset. Positional
    encodings, however, must count from the first token of each sequence.

    Examples
    --------
    >>> import regard
    >>> regard.masks.padding([3, 1], 4).astype(int)[:, 0, 0]
    array([[1, 1, 1, 0],
           [1, 0, 0, 0]])
    >>> regard.masks.padding([3, 1], 4, side="left").astype(int)[:, 0, 0]
    array([[0, 1, 1, 1],
           [0, 0, 0, 1]])
    """
    kv_len = count("kv_len", kv_len)
    if side not in ("right", "left"):
        raise ValueError(f'side must be "right" or "left", got {side!r}')
    real = lengths("key_lengths", key_lengths, kv_len)
    keys = np.arange(kv_len)
    visible: NDArray[np.bool_] = keys < real if side == "right" else keys >= kv_len - real
    return visible if visible.ndim > 1 else visible[None]


@refuses_unknown
def segments(query_segments: ArrayLike, key_segments: ArrayLike | None = None) -> NDArray[np.bool_]:
    """Separate documents that are packed into one sequence.

    A query may attend to a key iff both have the same number. ``segments(ids) & causal(length)``
    is causal within each document, because the documents follow one another.

    Parameters
    ----------
    query_segments : array_like of int, shape (q_len,) or (*batch, q_len)
        The document number of each query. The numbers are arbitrary. Give padding a separate
        number, and ignore its output rows.
    key_segments : array_like of int, shape (kv_len,) or (*batch, kv_len), optional
        The document number of each key; `query_segments` when not given. Batch axes broadcast.

    Returns
    -------
    numpy.ndarray of bool
        Shape ``(q_len, kv_len)``, or ``(*batch, 1, q_len, kv_len)`` if either has batch axes.

    Raises
    ------
    TypeError
        If the numbers are not integers.
    ValueError
        If an array has no axis, or batch axes do not broadcast.

    See Also
    --------
    regard.scaled_dot_product_attention_ragged : accepts packed sequences without a mask, and
        computes no score between two documents.

    Examples
    --------
    >>> import regard
    >>> ids = [0, 0, 1, 1, 1]
    >>> regard.masks.segments(ids).astype(int)
    array([[1, 1, 0, 0, 0],
           [1, 1, 0, 0, 0],
           [0, 0, 1, 1, 1],
           [0, 0, 1, 1, 1],
           [0, 0, 1, 1, 1]])
    >>> (regard.masks.segments(ids) & regard.masks.causal(5)).astype(int)
    array([[1, 0, 0, 0, 0],
           [1, 1, 0, 0, 0],
           [0, 0, 1, 0, 0],
           [0, 0, 1, 1, 0],
           [0, 0, 1, 1, 1]])
    """
    queries = sequence_numbers("query_segments", query_segments)
    keys = queries if key_segments is None else sequence_numbers("key_segments", key_segments)
    try:
        np.broadcast_shapes(queries.shape[:-1], keys.shape[:-1])
    except ValueError:
        raise ValueError(
            "batch axes of query_segments and key_segments must broadcast, got shapes "
            f"{queries.shape} and {keys.shape}"
        ) from None
    queries, keys = queries[..., :, None], keys[..., None, :]
    if max(queries.ndim, keys.ndim) > 2:
        queries, keys = queries[..., None, :, :], keys[..., None, :, :]
    same: NDArray[np.bool_] = queries == keys
    return same


def sequence_numbers(name: str, value: ArrayLike) -> NDArray[Any]:
    """Return the number of the sequence of each token, or raise TypeError or ValueError."""
    ids = integers(name, value, "an integer array", any_size=True)
    check_axes(name, ids.shape)
    if ids.ndim == 0:
        raise ValueError(f"{name} must have one number for each row, got a single number")
    return ids
