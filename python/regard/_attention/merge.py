"""Merge attention over disjoint sets of keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard import _core
from regard._arguments.arrays import as_stored_arrays
from regard._arguments.numbers import iterated
from regard._runtime.public import public

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike

    from regard._arguments.arrays import Array

_PARTS = "a sequence of arrays, one for each part"


@public
def merge_attention_states(
    outputs: Iterable[ArrayLike], lses: Iterable[ArrayLike], *, threads: int | None = None
) -> tuple[Array, Array]:
    r"""Merge attention over disjoint sets of keys into attention over all keys.

    .. math:: \mathrm{lse} = \log \sum_i e^{\mathrm{lse}_i}, \quad
              \mathrm{output} = \sum_i e^{\mathrm{lse}_i - \mathrm{lse}}\, \mathrm{output}_i

    because a softmax over the concatenation of two vectors is the softmax over each vector,
    weighted by its share of the common denominator [1]_ [2]_. Merging is associative and
    commutative up to rounding [3]_. Keys may be split across blocks, files or machines, and a
    shared prefix needs to be attended to only once.

    Parameters
    ----------
    outputs : sequence of array_like, each of shape (..., q_len, value_dim)
        The outputs of one or more parts, or one array with the parts along its first axis. Float16,
        bfloat16, float32 or float64; integers and lists become float64. Parts broadcast against
        each other, except in value_dim.
    lses : sequence of array_like, each of shape (..., q_len)
        The natural log-sum-exp of each part's visible scores, as returned with ``return_lse``, in
        the same order. If another library returns it to base 2, multiply it by ``log(2)``.
    threads : int, optional
        Maximum number of threads. Default: see `set_num_threads`. The bits of the result do not
        depend on it.

    Returns
    -------
    output : ndarray, shape (..., q_len, value_dim)
        Has the result type of `outputs`.
    lse : ndarray, shape (..., q_len)
        Float64 if any array is float64, else float32.

    Raises
    ------
    TypeError
        If an array has the wrong type.
    ValueError
        If there is no part, `outputs` and `lses` have different numbers of parts, or shapes
        disagree.

    See Also
    --------
    scaled_dot_product_attention : computes a part, with ``return_lse=True``.

    Notes
    -----
    A part in which a row is fully masked (lse -inf) changes no bit of that row. A row that is fully
    masked in all parts has lse -inf and the sum of the parts' outputs. This sum is 0, the output of
    attention for a fully masked row, or NaN if a part saw only scores of -inf. NaN and infinity in
    a part propagate to the result. A part whose lse is +inf outweighs all finite parts; two such
    parts in a row give NaN. A single part is returned unchanged.

    The weights of the parts are computed in float64. Products and sums are computed in float64 for
    float64 outputs, and in float32 for all narrower types, always in the order of the parts.

    No two parts may see the same key, and only one of the calls may have `sinks`, because its lse
    includes them.

    References
    ----------
    .. [1] Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
       https://arxiv.org/abs/1805.02867
    .. [2] Dao et al., "FlashAttention: Fast and Memory-Efficient Exact Attention with
       IO-Awareness", 2022, section 3.1. https://arxiv.org/abs/2205.14135
    .. [3] Ye et al., "FlashInfer: Efficient and Customizable Attention Engine for LLM Inference
       Serving", 2025, which calls (output, lse) an attention state.
       https://arxiv.org/abs/2501.01005

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> rng = np.random.default_rng(0)
    >>> query = rng.standard_normal((8, 5, 64))
    >>> key, value = rng.standard_normal((2, 8, 1000, 64))
    >>> outputs, lses = [], []
    >>> for start in range(0, 1000, 300):
    ...     block = slice(start, start + 300)
    ...     output, lse = regard.scaled_dot_product_attention(
    ...         query, key[:, block], value[:, block], return_lse=True
    ...     )
    ...     outputs.append(output)
    ...     lses.append(lse)
    >>> merged, lse = regard.merge_attention_states(outputs, lses)
    >>> whole = regard.scaled_dot_product_attention(query, key, value)
    >>> bool(np.allclose(merged, whole, rtol=0, atol=1e-14))
    True
    """
    states, sums = iterated("outputs", outputs, _PARTS), iterated("lses", lses, _PARTS)
    merged: tuple[Array, Array] = _core.merge_attention_states(states, sums, threads)
    if merged is NotImplemented:
        states, sums = native_parts("outputs", states), native_parts("lses", sums)
        merged = _core.merge_attention_states(states, sums, threads)
    return merged


def native_parts(name: str, parts: Iterable[ArrayLike]) -> list[Array]:
    """Return arrays that the kernels read, or raise TypeError or ValueError."""
    named = {f"{name}[{i}]": part for i, part in enumerate(iterated(name, parts, _PARTS))}
    return list(as_stored_arrays(**named))
