"""Attention to more keys than memory holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.foreign import is_on_cuda
from regard._arguments.hints import warn_if_zero_one
from regard._arguments.keywords import check_options
from regard._arguments.numbers import flag
from regard._arguments.options import StreamOptions, names_of, takes_options
from regard._runtime.progress import check_progress
from regard._runtime.public import public
from regard._stream.call import StreamCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import ArrayLike

    Progress = bool | Callable[[int, int | None], object] | None


@public
@takes_options(StreamOptions)
def attend_stream(
    query: ArrayLike,
    chunks: Iterable[Any],
    mask: Any = None,
    *,
    return_lse: bool = False,
    progress: Progress = None,
    **options: Any,
) -> Any:
    r"""Compute exact attention to keys and values that arrive in chunks, one after another.

    The keys and values need not fit in memory. In addition to the queries, memory holds two chunks
    (one is computed while a thread copies the next; an iterator may hold a third), and some results
    in float64, up to about ten times the output.

    Parameters
    ----------
    query : array_like, shape (..., heads, q_len, head_dim)
        As in `scaled_dot_product_attention`.
    chunks : iterable of (key, value) or (key, value, mask)
        Keys of shape ``(..., kv_heads, length, head_dim)`` and values of shape
        ``(..., kv_heads, length, value_dim)``, of any length. All other axes and the types must
        match the first chunk. Anything that NumPy converts to an array is accepted. To cut two
        arrays into chunks, such as `numpy.memmap`, Zarr or HDF5 arrays, pass `KeyValueChunks`.
    mask : array_like of bool or float, SparseMask, or a pair (bool, float), optional
        As in `scaled_dot_product_attention`, over the keys of all chunks. An array in a file is
        accepted too, and is read with the chunks. If a chunk contains a mask over its own keys,
        `mask` must be None.
    return_lse : bool, default False
        Also return the natural log-sum-exp of every row's visible scores, including sinks.
    progress : bool or callable, optional
        True shows a progress bar, which requires the tqdm or rich package. A function is called
        after every computed chunk, in the caller's thread, with two numbers: the end of the chunk,
        and the end of the keys that any query can see, or None if that is not known.
    {options}
    out : ndarray, optional
        Array to which the output is written at the end. It must have the type and shape of the
        result, and must not overlap an input. Any strides are accepted.

    Returns
    -------
    output : ndarray, shape (..., heads, q_len, value_dim)
        Has the result type of query, key and value. Has no heads axis if all three are 2-D.
    lse : ndarray, shape (..., heads, q_len)
        Returned if `return_lse`, in float64 if the output is float64, else in float32.

    Raises
    ------
    TypeError
        If an argument has the wrong type, a chunk is not a pair or a triple, or its types differ
        from the types of the first chunk.
    ValueError
        If shapes disagree, a number is out of range, `chunks` is empty, or it has fewer keys than
        `mask` or `key_lengths` require. Messages name the chunk, counted from 0. Shapes that are
        known in advance are checked before any chunk is read.
    MemoryError
        If there is no memory for the result, for a chunk or for the thread that reads chunks.
    ImportError
        If `progress` is True and neither tqdm nor rich is installed.

    See Also
    --------
    KeyValueChunks : cuts two arrays into chunks.
    scaled_dot_product_attention : computes the same for keys and values in memory.
    merge_attention_states : merges the states of chunks.

    Notes
    -----
    Positions count from the first key of the first chunk. ``query_offset="end"`` requires that the
    number of keys is known: from `key_lengths`, or from `chunks` that are a list, a tuple or
    `KeyValueChunks`. As long as positions fit in 64 bits, the dropped weights do not depend on how
    keys are cut.

    A chunk is not computed if no query can see it because of causality, a window, lengths, padding
    or a sparse mask. It is not read either if it is not yet in memory: in `KeyValueChunks`, or if
    it is a `numpy.memmap`, a Zarr array or an HDF5 dataset. No chunk is requested after the last
    key that a query can see. A generator is closed when the call ends.

    An iterator runs in the reading thread, and the call raises its exceptions. Each chunk is copied
    before the next one is requested, so an iterator may reuse its memory.

    **Order and error.** Each chunk's output is computed as in a separate call with
    ``query_offset=-start``, with its lse in float64. These states are merged in float64, in order:
    16 chunks at a time, then 16 groups of chunks, and so on, as in ::

        while len(states) > 1:
            states = [reduce(merge, states[i : i + 16]) for i in range(0, len(states), 16)]

    where ``merge(a, b)`` is ``merge_attention_states([a[0], b[0]], [a[1], b[1]])``. `sinks` are
    merged last, as a state with output 0. Then output and lse are rounded to their types. In
    float32, the error is the same as in a single call, for any number of chunks. In float64, where
    an lse is rounded before it is merged, weights are off by up to ``|lse|`` eps more. The result
    of a single chunk without sinks is bitwise equal to a single call.

    An interrupt (Ctrl-C) ends the call within 0.3 s. A longer read continues in the thread, which
    ends after it. Any other exception is raised after the current read.

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> rng = np.random.default_rng(0)
    >>> query = rng.standard_normal((8, 5, 64))
    >>> key, value = rng.standard_normal((2, 8, 1000, 64))
    >>> chunks = regard.KeyValueChunks(key, value, length=300)
    >>> output = regard.attend_stream(query, chunks, is_causal=True, query_offset="end")
    >>> whole = regard.scaled_dot_product_attention(
    ...     query, key, value, is_causal=True, query_offset="end"
    ... )
    >>> bool(np.allclose(output, whole, rtol=0, atol=1e-14))
    True

    From a generator, which might read a file or decode a message for each chunk:

    >>> def days():
    ...     for seed in range(3):
    ...         rng = np.random.default_rng(seed)
    ...         yield rng.standard_normal((2, 8, 100 + seed, 64))
    >>> chunks = ((key, value) for key, value in days())
    >>> output, lse = regard.attend_stream(query, chunks, return_lse=True)
    >>> lse.shape
    (8, 5)
    """
    check_options("attend_stream", options, names_of(StreamOptions))
    return_lse = flag("return_lse", return_lse)
    check_progress(progress, "attend_stream")
    if is_on_cuda(query):
        raise TypeError("query must be in the host's memory, got an array on a GPU")
    if not isinstance(mask, np.memmap):
        warn_if_zero_one(mask)
    output, lse = StreamCall(query, chunks, mask, options).run(progress)
    return (output, lse) if return_lse else output
