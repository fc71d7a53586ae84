"""Keys selected for each query by an index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from regard import _core
from regard._arguments.arrays import as_stored_arrays, broadcasts_to
from regard._arguments.foreign import with_arrays
from regard._arguments.keywords import check_options
from regard._arguments.numbers import count
from regard._arguments.options import SelectionOptions, names_of, takes_options
from regard._attention.check import check_call
from regard._runtime.public import public

if TYPE_CHECKING:
    from typing import SupportsIndex

    from numpy.typing import ArrayLike, NDArray


@public
@takes_options(SelectionOptions)
def select_keys(
    query: ArrayLike,
    key: ArrayLike,
    weights: ArrayLike,
    k: SupportsIndex,
    mask: ArrayLike | None = None,
    **options: Unpack[SelectionOptions],
) -> NDArray[np.int64]:
    """Select the keys with the largest index for each query, as DeepSeek V3.2's indexer does.

    The index of key j for query i is::

        sum over heads h of weights[h, i] * max(0, query[h, i] . key[j])

    The indices of all keys are never stored: the memory of a call grows with `k`, not with
    ``q_len * kv_len``.

    Parameters
    ----------
    query : array_like, shape (..., heads, q_len, head_dim)
        The queries of the index, whose heads are usually not the heads of attention.
    key : array_like, shape (..., kv_heads, kv_len, head_dim)
        The keys of the index, usually of one head. With more heads, the keys are selected for each
        of them by its group of query heads.
    weights : array_like of float, shape (..., heads, q_len)
        The weight of each head. They broadcast. A factor of the products, such as
        ``1 / sqrt(head_dim)``, belongs here.
    k : int
        The number of keys to select, at least 1.
    mask : array_like of bool or SparseMask, optional
        True for keys that may be selected, the same for all heads.
    {options}

    Returns
    -------
    ndarray of int64, shape (..., kv_heads, q_len, k)
        The selected keys in ascending order, followed by -1 if a query sees fewer than `k` keys:
        what `regard.masks.Selected` accepts. Among keys with the same index, the first are
        selected. A key whose index is NaN or -inf is not selected. The result does not depend on
        the number of threads.

    Raises
    ------
    TypeError
        If an argument has the wrong type; for example, if `mask` is a float mask.
    ValueError
        If shapes disagree, a number is out of range, or `mask` differs between heads.
    MemoryError
        If the result or the workspace cannot be allocated.

    See Also
    --------
    regard.masks.Selected : the mask that shows the selected keys.

    References
    ----------
    DeepSeek-AI (2025). DeepSeek-V3.2-Exp: Boosting Long-Context Efficiency with DeepSeek Sparse
    Attention. Equation 1.

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> rng = np.random.default_rng(0)
    >>> query = rng.standard_normal((4, 100, 16), dtype=np.float32)
    >>> key = rng.standard_normal((1, 100, 16), dtype=np.float32)
    >>> weights = rng.random((4, 100), dtype=np.float32)
    >>> selected = regard.select_keys(query, key, weights, 8, is_causal=True)
    >>> selected.shape
    (1, 100, 8)
    >>> selected[0, 2]  # the third query sees three keys
    array([ 0,  1,  2, -1, -1, -1, -1, -1])

    Attention to these keys, for all heads of a layer:

    >>> q, k, v = rng.standard_normal((3, 6, 100, 32), dtype=np.float32)
    >>> mask = regard.masks.Selected(selected, kv_len=100)
    >>> regard.scaled_dot_product_attention(q, k, v, mask).shape
    (6, 100, 32)
    """
    check_options("select_keys", options, names_of(SelectionOptions))
    k = count("k", k, minimum=1)
    call = check_call(query, key, None, mask, with_arrays(options))
    if call.masks.bias is not None:
        raise TypeError(
            "mask must be bool or a SparseMask, since it shows the keys that may be selected, got "
            f"{call.masks.bias.dtype}"
        )
    (weights,) = as_stored_arrays(weights=weights)
    if weights.dtype.itemsize < 4:
        weights = weights.astype(np.float32)
    if not broadcasts_to(weights.shape, call.rows):
        raise ValueError(
            f"weights must have one number for each head and query, shape {call.rows}, got shape "
            f"{weights.shape}"
        )
    weights = np.broadcast_to(weights, call.rows)
    arguments: tuple[Any, ...] = call.query, call.key, call.masks.shown, call.options, weights, k
    selected: NDArray[np.int64] = _core.select_keys(*arguments)
    return selected
