"""The cache of one layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from regard._arguments.keywords import refuses_unknown
from regard._cache.entries import Entries
from regard._cache.layer import Layer
from regard._runtime.public import public

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike

    from regard import _core
    from regard._cache.geometry import Geometry


@public
class KVCache(Layer, Entries):
    """Cache of the keys and values of past tokens, to which new queries attend.

    A layer that generates text appends the keys and values of its new tokens and attends with their
    queries. Earlier keys and values are neither computed again nor copied::

        cache.append(key, value)
        output = cache.attend(query)

    Positions are absolute: the first token of a batch entry is at position 0, and the next new
    token is at ``cache.lengths``, even after evictions.

    Parameters
    ----------
    batch, num_kv_heads, head_dim : int
        Sizes of the keys. `batch` may be 0: see `adopt`.
    value_dim : int, optional
        Size of the values; `head_dim` by default.
    capacity : int, optional
        Maximum number of tokens per entry; appending more is an error. Without `page_size`, each
        entry has one page of this size from the beginning, so that its tokens are contiguous. With
        `keep_last`, texts may have any length, and the limit applies to a single append: it may
        fill the rest of the capacity or have ``capacity - keep_first - keep_last`` tokens (at least
        1), whichever is more.
    dtype : dtype, default float32
        Storage type of keys and values: float16, bfloat16 (from the ml_dtypes package, or its
        name), float32 or float64; int8 or ``"float8_e4m3fn"`` with a quarter of the memory of
        float32; or ``"q4_1"``, 4 bits and scales, with 5/32 of that memory (see Notes). Results
        have the result type of the query and `dtype`, or the type of the query if `dtype` has fewer
        than 16 bits.
    keep_last : int, optional
        Number of last tokens that a query sees, its own token included, as with the option
        ``window=(keep_last - 1, 0)`` of `scaled_dot_product_attention`. Pages of tokens that no
        future query sees are evicted and reused.
    keep_first : int, default 0
        With `keep_last`, number of first tokens that are also kept and visible (Xiao et al. 2024,
        "Efficient Streaming Language Models with Attention Sinks").
    page_size : int, optional
        Number of tokens in a page, a multiple of 16. Memory is allocated page by page, and each
        entry has a table of its pages. Growing copies nothing, and `reorder` and `fork` share
        pages, so that a prompt shared by many texts is stored once. The default is 192, or less
        with a small `keep_last`, or all of `capacity`.
    max_bytes : int, optional
        Budget of the pages of this cache and of the forks that share them. An append that needs
        more raises MemoryError, and nothing changes. Pages of texts that are dropped or truncated
        are reused.
    key_scales, value_scales : float or array_like, shape (num_kv_heads,), optional
        With ``"float8_e4m3fn"``, the factor of the stored numbers, scalar or one per head; 1 by
        default. Numbers may be up to 448 times as large.
    key_means : array_like, shape (num_kv_heads, head_dim), optional
        With fewer than 16 bits, constants of the keys of each head, which are subtracted before
        keys are rounded. Scores get the product of the query and `key_means` back, unrounded. Keys
        with a large constant in some channels, such as a bias, would otherwise lose digits.
    value_from_key : bool, default False
        Whether values are the first `value_dim` numbers of the keys, as in multi-head latent
        attention (MLA), and are not stored: ``append(key)`` has no value. Keys of fewer than 16
        bits are then not rotated.

    Raises
    ------
    TypeError
        If an argument has the wrong type, or `dtype` is not a storage type.
    ValueError
        If a size, a scale or a mean is out of range, if head_dim or value_dim is not a multiple of
        32 with ``"q4_1"``, or if there are `key_means` with ``value_from_key=True``.
    MemoryError
        If there is not enough memory for `capacity`, or no array can have these sizes.

    See Also
    --------
    scaled_dot_product_attention : attention without a cache, with every option.
    merge_attention_states : merges results over a shared prompt with results over continuations.

    Notes
    -----
    Results are bitwise identical to the results of `scaled_dot_product_attention` with the same
    keys, stored as `dtype`, for any page size, in memory or in a mapped file. With `keep_last`,
    this holds for the option ``window=(keep_last - 1, 0)``, and with `keep_first` for a bool mask
    that shows the same keys.

    With `keep_last`, the memory is bounded: each entry has pages for the kept tokens and for two
    consecutive appends, and at most two more pages (three if the first tokens do not fill a page).
    Pages are reused rather than released, so the largest two appends count. The last append can
    always be undone with `truncate`.

    Types with fewer than 16 bits round keys and values as follows, and `docs/numerics.md` describes
    the loss of accuracy:

    - int8: each key and value is a row of integers from -127 to 127 and a scale. The scale is the
      largest magnitude in the row divided by 127, but at least 2**-126: rows below about 1.5e-36
      lose digits.
    - float8_e4m3fn: each number is divided by the scale of its head and rounded to 4 bits of
      exponent and 3 bits of mantissa.
    - q4_1: each 32 numbers of a row are integers from 0 to 15, with a scale and a minimum in
      float16, as in llama.cpp's type of this name. Scores are computed with queries that are
      rounded to integers of at most 32767. Groups whose numbers differ by less than about 1e-5 lose
      digits.

    Keys are rotated first, and so are queries: dot products do not change, and single large
    channels are spread over all channels. With `key_means`, the means are subtracted before the
    rotation; `keys` includes them. Apart from the queries of q4_1, results are exact for
    the stored, rounded numbers, up to rounding in the query's precision.

    These types cannot store infinity, NaN and numbers that are too large for them: `append` raises
    ValueError. The other types store infinity and NaN unchanged. A finite number that is too large
    for a floating-point type, such as 1e6 for float16, becomes infinite. `append` then warns or
    raises an error, according to the overflow setting of `numpy.errstate`.

    A call that raises an error or is interrupted by a signal leaves the cache as it was before the
    call or as it is after the call. Calls that change a cache must not run at the same time as
    other calls on the same cache. Forks of the cache may be used in other threads.

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> rng = np.random.default_rng(0)
    >>> cache = regard.KVCache(batch=1, num_kv_heads=2, head_dim=64)
    >>> for new in (5, 1, 1):  # a prompt, then token by token
    ...     key, value = rng.standard_normal((2, 1, 2, new, 64), dtype=np.float32)
    ...     cache.append(key, value)
    ...     output = cache.attend(rng.standard_normal((1, 8, new, 64), dtype=np.float32))
    >>> cache.lengths
    array([7])
    >>> output.shape
    (1, 8, 1, 64)

    The last 4 tokens and the first, in bounded memory:

    >>> cache = regard.KVCache(1, 2, 64, keep_last=4, keep_first=1)
    >>> for _ in range(1000):
    ...     cache.append(*rng.standard_normal((2, 2, 1, 64)))
    >>> len(cache), cache.nbytes < 64 * 2 * 2 * 64 * 4
    (1000, True)

    A prompt that is stored once, and two texts that begin with it:

    >>> prompt = regard.KVCache(1, 2, 64, page_size=16, dtype="int8")
    >>> prompt.append(*rng.standard_normal((2, 2, 100, 64)))
    >>> texts = [prompt.fork(), prompt.fork()]
    >>> for text in texts:
    ...     text.append(*rng.standard_normal((2, 2, 1, 64)))
    >>> prompt.lengths, texts[0].lengths
    (array([100]), array([101]))
    """

    _layers = 1

    @refuses_unknown
    def __init__(
        self,
        batch: int,
        num_kv_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        *,
        capacity: int | None = None,
        dtype: DTypeLike = np.float32,
        keep_last: int | None = None,
        keep_first: int = 0,
        page_size: int | None = None,
        max_bytes: int | None = None,
        key_scales: ArrayLike | None = None,
        value_scales: ArrayLike | None = None,
        key_means: ArrayLike | None = None,
        value_from_key: bool = False,
    ) -> None:
        self._create(
            None,
            batch,
            num_kv_heads,
            head_dim,
            value_dim,
            max_bytes=max_bytes,
            capacity=capacity,
            dtype=dtype,
            keep_last=keep_last,
            keep_first=keep_first,
            page_size=page_size,
            key_scales=key_scales,
            value_scales=value_scales,
            key_means=key_means,
            value_from_key=value_from_key,
        )

    def _set(self, pages: _core.PageTable, geometry: Geometry) -> None:
        self._set_layer(pages, geometry, 0)
