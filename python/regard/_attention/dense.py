"""The fused call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard import _core
from regard._arguments.arrays import as_stored_arrays
from regard._arguments.foreign import is_on_cuda, with_arrays
from regard._arguments.hints import raise_with_hint, refuse_grid, warn_if_zero_one
from regard._arguments.keywords import check_options
from regard._arguments.masks import Masks
from regard._arguments.numbers import choice, slice_ends
from regard._arguments.options import AttentionOptions, ResultOptions, takes_options
from regard._runtime.public import importing, public

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike

# The options that do not concern the weights of some queries.
_OF_THE_WHOLE = frozenset(("out", "device", "return_weights", "return_lse"))


@public
@takes_options(AttentionOptions, ResultOptions, in_full=True)
def scaled_dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    rows: slice | None = None,
    **options: Any,
) -> Any:
    r"""Compute exact scaled-dot-product attention, fused.

    .. math:: \mathrm{output} = \mathrm{softmax}(\mathrm{scores})\,\mathrm{value}, \qquad
              \mathrm{scores} = \mathrm{scale} \cdot \mathrm{query}\,\mathrm{key}^T + \mathrm{mask}

    (Vaswani et al. 2017, "Attention Is All You Need", equation 1), without ever storing the scores.
    Extra memory is a fixed amount per thread, independent of the lengths. Options can be combined:
    a key is visible to a query if every option allows it, and keys that no query sees are not
    computed.

    Parameters
    ----------
    query : array_like, shape (..., heads, q_len, head_dim)
        Float16, bfloat16 (from the ml_dtypes package), float32 or float64; integers and lists
        become float64. A 2-D array ``(q_len, head_dim)`` has no heads axis. Leading axes broadcast
        as in NumPy. Any strides are read in place.
    key : array_like, shape (..., kv_heads, kv_len, head_dim)
        ``heads`` is a multiple of ``kv_heads``: query head ``h`` reads key head
        ``h // (heads // kv_heads)``, without a copy (grouped-query attention).
    value : array_like, shape (..., kv_heads, kv_len, value_dim)
        ``value_dim`` may differ from ``head_dim``.
    mask : array_like of bool or float, SparseMask, or a pair (bool, float) of both, optional
        Broadcasts to ``(..., heads, q_len, kv_len)``. Bool: True = may attend. Float: added to the
        scores; -inf = may not attend. A pair does both, and its shapes may differ: a padding mask
        and a position bias, for example. A `regard.masks.SparseMask` is a bool mask for which
        hidden blocks take neither memory nor time. It may have fewer keys, and hides the others.
    rows : slice, optional
        The queries whose weights are returned, as a slice without a step. Requires
        `return_weights`. The output contains all queries, and the weights of other queries cost
        neither time nor memory.
    {options}

    Returns
    -------
    output : ndarray, shape (..., heads, q_len, value_dim)
        Has the result type of query, key and value. Has no heads axis if all three are 2-D.
    weights : ndarray, shape (..., heads, q_len, kv_len)
        Returned if `return_weights`, in the output's type. Hidden keys have weight 0. With `rows`,
        ``q_len`` is the number of rows.
    lse : ndarray, shape (..., heads, q_len)
        Returned if `return_lse`, in float64 if the output is float64, else in float32.

    Raises
    ------
    TypeError
        If an argument has the wrong type: an integer mask, an `out` of another type, a window that
        is not a pair, `dropout_p` without a seed, `rows` without `return_weights`.
    ValueError
        If shapes disagree, a number is out of range, `out` overlaps an input, or `precision` is
        given for float64 arrays, or is ``"int8"`` with a head_dim above 1024.
    MemoryError
        If a result or the workspace cannot be allocated. Nothing has been written then, except
        possibly the output if `rows` is given.

    See Also
    --------
    scaled_dot_product_attention_ragged : for packed sequences of different lengths.
    explain : reports what a call would compute, and how.
    merge_attention_states : merges attention over parts of the keys.
    scaled_dot_product_attention_backward : computes the gradients.

    Notes
    -----
    A score is ``scale * (query . key)``, then capped, then changed by `score_function`, then biased
    by ALiBi and by its distance, then by a float mask.

    A fully masked row has output 0, weights 0 and lse -inf (or the sink's logit, with `sinks`).
    Hidden keys and values, even NaN, never affect the output of a query; visible keys and values
    always do. Float64 is computed in float64, all other types in float32. A row's bits do not
    depend on the number of threads, on other rows, on the batch or on strides.

    Whether a weight is dropped depends only on the seed and on its position. It is dropped if word
    ``j % 4`` of the random generator Philox4x32-10 (Salmon et al. 2011, "Parallel Random Numbers:
    As Easy as 1, 2, 3") for the counter (j // 4, p, head, number of the batch entry), all modulo
    2**32, is less than ``dropout_p * 2**32``. `dropout_origin` is added first, its position to both
    j and p. So no mask is stored, and the same arguments drop the same weights again, also in
    `scaled_dot_product_attention_backward`.

    With ``precision="int8"`` (Zhang et al. 2024, "SageAttention"), on CPUs with VNNI, a score is

    .. math:: \mathrm{scale}\,(a_q\, a_k\, \hat{q} \cdot \hat{k} + q \cdot m), \\
              \hat{q} = \mathrm{round}(H q / a_q), \quad \hat{k} = \mathrm{round}(H (k - m) / a_k),

    with m the mean of all keys of the kv head in this batch entry, H a fixed rotation (a Hadamard
    matrix for each group of dimensions, whose size is the largest power of two that divides
    head_dim; Ashkboos et al. 2024, "QuaRot"), and a the largest magnitude of the rounded vector
    divided by 127. The sum of 8-bit products is exact, and all other arithmetic, values included,
    is float32, so the only loss is the rounding to 255 steps. Through m, a row's bits depend on
    every finite element of these keys, even if causality, a window or a mask hides it. Keys at and
    beyond `key_lengths` do not contribute, and NaN or inf stays in the scores of its own row. The
    integers are the same on every such CPU, and `explain` reports the instruction. On other CPUs,
    integers would not be faster, and nothing is rounded. Calls with few queries gain nothing, since
    all keys are rounded first.

    With ``precision="bfloat16"``, on CPUs with AVX512-BF16, queries, keys and values are rounded to
    bfloat16, and so is each weight after it has been added to its row's sum. The products of these
    numbers are exact; their sums and the softmax are float32, and the output has the type of the
    arrays. If the arrays are bfloat16, only the weights lose bits. Subnormal numbers count as
    0. Calls with few queries, which are limited by memory bandwidth, and calls on other CPUs
    compute in float32. Gradients accept this precision, too: they also round `grad_output`, and the
    weights and the gradients of the scores before these are multiplied.

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> rng = np.random.default_rng(0)
    >>> query = rng.standard_normal((1, 8, 6, 64), dtype=np.float32)
    >>> key = rng.standard_normal((1, 2, 10, 64), dtype=np.float32)
    >>> value = rng.standard_normal((1, 2, 10, 64), dtype=np.float32)
    >>> regard.scaled_dot_product_attention(query, key, value).shape
    (1, 8, 6, 64)
    >>> output, weights = regard.scaled_dot_product_attention(
    ...     query, key, value, is_causal=True, query_offset=4, return_weights=True
    ... )
    >>> weights[0, 0, 0].round(2)[5:]
    array([0., 0., 0., 0., 0.], dtype=float32)

    A window of 4 keys, and a batch of two whose second entry has 7 keys:

    >>> regard.scaled_dot_product_attention(
    ...     query, key, value, window=(3, 0), query_offset=4
    ... ).shape
    (1, 8, 6, 64)
    >>> keys = np.concatenate([key, key])
    >>> values = np.concatenate([value, value])
    >>> regard.scaled_dot_product_attention(query, keys, values, key_lengths=[10, 7]).shape
    (2, 8, 6, 64)
    """
    if rows is not None:
        return _with_weights_of_rows((query, key, value), mask, rows, options)
    if mask is not None:
        warn_if_zero_one(mask)
    try:
        if options:
            options = with_arrays(options)
        result = _core.attention(query, key, value, mask, options)
    except ValueError as error:
        raise_with_hint(error, query, key)
    except TypeError:
        if not any(map(is_on_cuda, (query, key, value))):
            refuse_grid(options.get("window"))
            raise
        result = NotImplemented  # an option is also an array on a GPU
    if result is NotImplemented:
        name, arrays = "scaled_dot_product_attention", (query, key, value)
        result = retry_converted(name, _core.attention, arrays, (), mask, options)
    return result


def _with_weights_of_rows(
    arrays: tuple[ArrayLike, ArrayLike, ArrayLike],
    mask: ArrayLike | None,
    rows: slice,
    options: dict[str, Any],
) -> Any:
    """Return the results of a call, with the weights of some queries.

    The weights come from a second call with these queries and without values.
    """
    with importing:
        from regard._attention.check import check_call

    if not options.get("return_weights"):
        raise TypeError(
            "rows need return_weights=True: they select the queries whose weights are returned"
        )
    if options.get("device") == "cuda" or any(map(is_on_cuda, arrays)):
        raise TypeError("rows select weights to return, which the GPU kernels do not keep")
    kept = {name: each for name, each in options.items() if name not in _OF_THE_WHOLE}
    call = check_call(*arrays, mask, with_arrays(kept))
    first, end = slice_ends("rows", rows, call.sizes.q_len, "a slice")
    whole: Any = {**options, "return_weights": False}
    results: Any = scaled_dot_product_attention(*call.arguments(), **whole)
    part = call.chunk(slice(first, end), slice(None))
    _, weights = scaled_dot_product_attention(
        part.query,
        part.key,
        part.value[..., :0],
        part.masks.argument,
        return_weights=True,
        **part.options,
    )
    output, *lse = results if isinstance(results, tuple) else (results,)
    return (output, weights, *lse)


def retry_converted(
    name: str,
    call: Callable[..., Any],
    arrays: tuple[ArrayLike, ArrayLike, ArrayLike],
    between: tuple[Any, ...],
    mask: ArrayLike | None,
    options: dict[str, Any],
) -> Any:
    """Call the module again, with arrays that the kernels can read, or compute on a GPU.

    The first call returned NotImplemented because an array must be converted or is on a GPU, the
    call requests a device, or an option is unknown.
    """
    check_options(name, options)
    options = dict(options)
    device = choice("device", options.pop("device", None), (None, "cpu", "cuda"))
    if any(map(is_on_cuda, arrays)):
        if device == "cpu":
            raise ValueError(
                "device must be None or 'cuda' for arrays on a GPU, got 'cpu': copy them to the "
                "host first"
            )
        from regard.cuda._host import attend_on_device

        return attend_on_device(name, arrays, between, mask, options)
    if device == "cuda":
        from regard.cuda._host import attend_from_host

        return attend_from_host(name, arrays, between, mask, options)
    query, key, value = arrays
    native = as_stored_arrays(query=query, key=key, value=value)
    return call(*native, *between, Masks.of(mask).argument, options)
