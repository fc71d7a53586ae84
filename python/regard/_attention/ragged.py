"""Attention over packed sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard import _core
from regard._arguments.foreign import is_on_cuda, readable, with_arrays
from regard._arguments.hints import refuse_grid, warn_if_zero_one
from regard._arguments.keywords import refuses_unknown
from regard._arguments.options import AttentionOptions, ResultOptions, takes_options
from regard._attention.dense import retry_converted
from regard._runtime.public import public

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@public
@refuses_unknown
@takes_options(AttentionOptions, ResultOptions)
def scaled_dot_product_attention_ragged(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    query_starts: ArrayLike,
    key_starts: ArrayLike,
    mask: ArrayLike | None = None,
    **options: Any,
) -> Any:
    """Compute attention over sequences of different lengths, packed one after another.

    Sequence ``b`` has the queries ``query[query_starts[b]:query_starts[b + 1]]`` and the keys and
    values of rows ``key_starts[b]`` to ``key_starts[b + 1]``. It attends only to its own keys. No
    padding is stored or computed, and the result of every sequence is bitwise equal to a separate
    call of `scaled_dot_product_attention`.

    Parameters
    ----------
    query : array_like, shape (total, heads, head_dim)
        The queries of all sequences. Types as in `scaled_dot_product_attention`.
    key : array_like, shape (total_keys, kv_heads, head_dim)
        ``heads`` is a multiple of ``kv_heads``.
    value : array_like, shape (total_keys, kv_heads, value_dim)
        The values of all sequences.
    query_starts, key_starts : array_like of int, shape (sequences + 1,)
        The start of each sequence, followed by the total. Starts begin with 0 and never decrease. A
        sequence may be empty.
    mask : array_like of bool or float, SparseMask, or a pair (bool, float) of both, optional
        Broadcasts to ``(total, heads, longest)``, where ``longest`` is the length of the longest
        key sequence: a row for every query, a column for every key of its sequence. Columns beyond
        a sequence's keys are not read. A `regard.masks.SparseMask` has the shape
        ``(heads, total, longest)`` or ``(total, longest)``, or fewer keys, which count from the
        first of each sequence.
    query_offset, key_lengths, left_padding : int or array_like of int
        Scalar, or one per sequence; `query_offset` may be ``"end"``. Positions count from each
        sequence's first key, and dropout identifies sequences by their number.
    {options}

    Returns
    -------
    output : ndarray, shape (total, heads, value_dim)
        Has the result type of query, key and value.
    weights : ndarray, shape (total, heads, longest)
        Returned if `return_weights`; 0 beyond a sequence's keys.
    lse : ndarray, shape (total, heads)
        Returned if `return_lse`.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As `scaled_dot_product_attention`; also ValueError if starts do not begin with 0, decrease
        or do not end at the total.

    Examples
    --------
    Three sentences of 2, 0 and 3 words:

    >>> import numpy as np
    >>> import regard
    >>> rng = np.random.default_rng(0)
    >>> words = rng.standard_normal((5, 4, 16), dtype=np.float32)
    >>> starts = [0, 2, 2, 5]
    >>> output = regard.scaled_dot_product_attention_ragged(words, words, words, starts, starts)
    >>> output.shape
    (5, 4, 16)
    >>> last = words[2:].swapaxes(0, 1)
    >>> alone = regard.scaled_dot_product_attention(last, last, last)
    >>> np.array_equal(output[2:], alone.swapaxes(0, 1))
    True
    """
    if mask is not None:
        warn_if_zero_one(mask)
    starts: tuple[Any, Any] = query_starts, key_starts
    try:
        options = with_arrays(options)
        starts = readable("query_starts", query_starts), readable("key_starts", key_starts)
        result = _core.attention_ragged(query, key, value, *starts, mask, options)
    except TypeError:
        if not any(map(is_on_cuda, (query, key, value))):
            refuse_grid(options.get("window"))
            raise
        result = NotImplemented  # an option is also an array on a GPU
    if result is NotImplemented:
        name, arrays = "scaled_dot_product_attention_ragged", (query, key, value)
        result = retry_converted(name, _core.attention_ragged, arrays, starts, mask, options)
    return result
