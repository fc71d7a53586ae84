"""Linear attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Never

from regard import _core
from regard._arguments.arrays import as_computed, as_stored_arrays
from regard._arguments.foreign import readable
from regard._arguments.keywords import check_options
from regard._arguments.options import takes_options
from regard._runtime.public import public

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from regard._arguments.arrays import Array


@public
@takes_options()
def linear_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    decay: ArrayLike | None = None,
    beta: ArrayLike | None = None,
    state: ArrayLike | None = None,
    scale: float | None = None,
    starts: ArrayLike | None = None,
    return_state: bool = False,
    out: Array | tuple[Array | None, Array | None] | None = None,
    threads: int | None = None,
    **options: Never,
) -> Any:
    r"""Compute linear attention, whose memory of all earlier tokens is one matrix per head.

    The state :math:`S`, of shape (head_dim, value_dim), is updated by each token :math:`t`, and the
    query of the token reads it. `decay` and `beta` select one of the four rules of ONNX's operator
    LinearAttention [1]_:

    .. math::

        \text{linear:} \quad S_t &= S_{t-1} + k_t v_t^\top \\
        \text{gated (decay):} \quad S_t &= e^{g_t} S_{t-1} + k_t v_t^\top \\
        \text{delta (beta):} \quad S_t &= S_{t-1} + \beta_t k_t (v_t - S_{t-1}^\top k_t)^\top \\
        \text{gated delta (both):} \quad S_t &= e^{g_t} S_{t-1} +
            \beta_t k_t (v_t - e^{g_t} S_{t-1}^\top k_t)^\top \\
        o_t &= \mathrm{scale} \cdot S_t^\top q_t

    where a decay :math:`g_t` by key column multiplies the rows of :math:`S` by different numbers.

    Parameters
    ----------
    query : array_like, shape (..., heads, q_len, head_dim)
        The queries. Types, grouped heads, 2-D arrays and broadcasting of the batch axes are as in
        `scaled_dot_product_attention`.
    key : array_like, shape (..., kv_heads, q_len, head_dim)
        ``heads`` is a multiple of ``kv_heads``. The query heads of a group read the same state.
    value : array_like, shape (..., kv_heads, q_len, value_dim)
        The values.
    decay : array_like, optional
        The logarithm :math:`g_t` of the factor of the state, of shape ``(..., kv_heads, q_len)``,
        or by key column ``(..., kv_heads, q_len, head_dim)``: with an axis more than the first
        form. It broadcasts. Usually at most 0; -inf forgets everything before the token.
    beta : array_like, shape (..., kv_heads, q_len), optional
        The strength :math:`\beta_t` with which the value replaces what the state returns for the
        key. It broadcasts.
    state : array_like, shape (..., kv_heads, head_dim, value_dim), optional
        The state before the first token, zeros by default. It broadcasts, and is not changed unless
        it is also in `out`.
    scale : float, optional
        The factor of the outputs. Default: ``1 / sqrt(head_dim)``.
    starts : array_like of int, shape (texts + 1,), optional
        The texts are packed one after another, and text ``b`` consists of the tokens ``starts[b]``
        to ``starts[b + 1]``, as in `scaled_dot_product_attention_ragged`. `query`, `key` and
        `value` then have the shape ``(total, heads, dim)``, `decay` and `beta`
        ``(total, kv_heads)``, with head_dim after it if by column, and `state` has one state for
        each text, ``(texts, kv_heads, head_dim, value_dim)``.
    return_state : bool, default: False
        Whether to return the state after the last token too.
    out : ndarray, or pair of ndarray, optional
        Array to which the output is written; or with `return_state`, a pair for output and state,
        each of which may be None. The array for the state may be `state` itself.
    threads : int, optional
        Maximum number of threads. Default: see `set_num_threads`. The bits of the result do not
        depend on it.

    Returns
    -------
    output : ndarray, shape (..., heads, q_len, value_dim)
        Has the result type of query, key and value.
    state : ndarray, shape (..., kv_heads, head_dim, value_dim)
        Returned if `return_state`. Float64 if the output is float64, else float32, for float16 and
        bfloat16 too.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ValueError
        If shapes disagree, a number is out of range, or `out` overlaps an argument other than the
        state.
    MemoryError
        If a result or the workspace cannot be allocated.

    See Also
    --------
    scaled_dot_product_attention : attention with a softmax over all keys.

    Notes
    -----
    A text is computed in chunks of 64 tokens, counted from its first token: within a chunk by
    products of queries and keys, as in attention, and between chunks by the state [2]_ [3]_. The
    result differs from the recurrence only by rounding. Continuing from a returned state gives the
    bits of a single call if the state is that after a multiple of 64 tokens.

    All arithmetic is in float32 for types of at most 32 bits, to which `decay`, `beta` and `state`
    are rounded, and in float64 otherwise. Sums of decays are only exponentiated as differences, so
    they may be far below the smallest logarithm of a float.

    References
    ----------
    .. [1] ONNX operator LinearAttention, version 27.
       https://onnx.ai/onnx/operators/onnx__LinearAttention.html
    .. [2] Yang et al., "Parallelizing Linear Transformers with the Delta Rule over Sequence
       Length", 2024. https://arxiv.org/abs/2406.06484
    .. [3] Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta Rule", 2024.
       https://arxiv.org/abs/2412.06464

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> rng = np.random.default_rng(0)
    >>> query, key, value = rng.standard_normal((3, 4, 100, 16), dtype=np.float32)
    >>> key /= np.linalg.norm(key, axis=-1, keepdims=True)
    >>> decay, beta = -rng.random((4, 100)), rng.random((4, 100))
    >>> output, state = regard.linear_attention(
    ...     query, key, value, decay=decay, beta=beta, return_state=True
    ... )
    >>> output.shape, state.shape
    ((4, 100, 16), (4, 16, 16))

    One more token, which updates the state in place:

    >>> query, key, value = rng.standard_normal((3, 4, 1, 16), dtype=np.float32)
    >>> output, state = regard.linear_attention(
    ...     query,
    ...     key,
    ...     value,
    ...     decay=[[-0.1]] * 4,
    ...     beta=[[0.5]] * 4,
    ...     state=state,
    ...     return_state=True,
    ...     out=(None, state),
    ... )
    >>> output.shape
    (4, 1, 16)
    """
    if options:
        check_options("linear_attention", options, ())
    if isinstance(out, list | tuple):
        out = _pair_of(out, return_state)
    if starts is not None:
        starts = readable("starts", starts)
    result = _core.linear_attention(
        query, key, value, decay, beta, state, scale, starts, return_state, out, threads
    )
    if result is NotImplemented:
        arrays = stored_inputs(query, key, value, decay=decay, beta=beta, state=state)
        arrays = computed_inputs(arrays)
        result = _core.linear_attention(*arrays, scale, starts, return_state, out, threads)
    return result


def stored_inputs(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, **others: ArrayLike | None
) -> list[Array | None]:
    """Convert the inputs of a call to arrays of storage types. The others may be None."""
    inputs = {"query": query, "key": key, "value": value, **others}
    given = {name: array for name, array in inputs.items() if array is not None}
    arrays = dict(zip(given, as_stored_arrays(**given), strict=True))
    return [arrays.get(name) for name in inputs]


def computed_inputs(inputs: list[Any]) -> list[Any]:
    """Round the inputs after query, key and value to the type of the arithmetic."""
    arrays, others = inputs[:3], inputs[3:]
    return [*arrays, *(None if x is None else as_computed(x, *arrays) for x in others)]


def _pair_of(out: Any, return_state: bool) -> tuple[Any, Any]:
    if not return_state:
        raise TypeError(
            f"out must be an array unless return_state=True, got a {type(out).__name__}"
        )
    if len(out) != 2:
        raise ValueError(
            f"out must be a pair of arrays or None, for output and state, got {len(out)} elements"
        )
    return tuple(out)
