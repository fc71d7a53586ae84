"""The gradients of attention over Dask arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from regard import AttentionGradients
from regard._arguments.arrays import stored
from regard._arguments.numbers import count
from regard._arguments.options import DaskOptions, takes_options
from regard._gradients.wanted import wanted_gradients
from regard.dask._call import call_of, token_of
from regard.dask._chunks import check_chunks, check_dask_array
from regard.dask._gradients import add_parts, gradient_sums
from regard.dask._graph import Graph

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dask.array import Array

    from regard.dask._call import DaskCall


@takes_options(DaskOptions, reference="as given to the forward call", threads=1)
def scaled_dot_product_attention_backward(
    grad_output: Array,
    query: Array,
    key: Array,
    value: Array,
    output: Array,
    lse: Array,
    mask: Any = None,
    *,
    grad_lse: Array | None = None,
    with_respect_to: Iterable[str] = ("query", "key", "value"),
    split_every: int = 8,
    **options: Unpack[DaskOptions],
) -> AttentionGradients:
    """Compute the exact gradients of attention over Dask arrays, lazily.

    For every visible pair of a query chunk and a key chunk, one task calls
    `regard.scaled_dot_product_attention_backward` with the output and lse of the whole rows. Trees
    of tasks add the results to the chunks of each gradient.

    Parameters
    ----------
    grad_output : dask.array.Array, shape (..., heads, q_len, value_dim)
        The gradient of the loss with respect to the output, in the chunks of `output`.
    query, key, value : dask.array.Array
        As given to `regard.dask.scaled_dot_product_attention`.
    output : dask.array.Array, shape (..., heads, q_len, value_dim)
        The output of the forward call.
    lse : dask.array.Array, shape (..., heads, q_len)
        The lse of the forward call, returned with ``return_lse=True``.
    mask : array of bool or float, SparseMask, or a pair (bool, float), optional
        As given to the forward call, like all options below.
    grad_lse : dask.array.Array, shape (..., heads, q_len), optional
        The gradient of the loss with respect to `lse`, in the chunks of `lse`. Default: zero.
    with_respect_to : iterable of str, default ("query", "key", "value")
        The fields of the result to compute. ``"mask"`` requires a float mask; ``"alibi_slopes"``,
        ``"distance_bias"`` and ``"sinks"`` require the option of the same name.
    split_every : int, default 8
        Maximum number of partial results that one task adds. The last bits of the result depend on
        it.
    {options}
    threads : int or None, default 1
        Number of regard threads per task. See `regard.dask.scaled_dot_product_attention`.

    Returns
    -------
    AttentionGradients
        Named tuple of Dask arrays, with None for gradients that were not requested. A gradient has
        the shape, type and chunks of its input; the gradient of a NumPy array has the chunks of the
        Dask arrays. Compute all gradients together with ``dask.compute(*gradients)``, since they
        share tasks.

    Raises
    ------
    TypeError, ValueError
        As in the forward call and in `regard.scaled_dot_product_attention_backward`.

    See Also
    --------
    regard.dask.scaled_dot_product_attention : the forward call.

    Notes
    -----
    The order of summation depends only on the chunks and `split_every`, so the bits of the result
    do not depend on the scheduler or the number of workers. Sums are computed in float32, or in
    float64 if the arithmetic is float64, and are rounded to the type of the input at the end.

    Examples
    --------
    >>> import dask
    >>> import dask.array as da
    >>> import numpy as np
    >>> import regard.dask
    >>> rng = np.random.default_rng(0)
    >>> arrays = rng.standard_normal((3, 4, 300, 16))
    >>> query, key, value = (da.from_array(x, chunks=(4, 100, 16)) for x in arrays)
    >>> output, lse = regard.dask.scaled_dot_product_attention(
    ...     query, key, value, is_causal=True, return_lse=True
    ... )
    >>> gradients = regard.dask.scaled_dot_product_attention_backward(
    ...     2 * output, query, key, value, output, lse, is_causal=True
    ... )
    >>> of_query, of_key, of_value = dask.compute(*gradients[:3])
    >>> of_key.shape
    (4, 300, 16)
    """
    count("split_every", split_every, minimum=2)
    options = {"threads": 1, **options}
    name = "regard.dask.scaled_dot_product_attention_backward"
    call = call_of(name, (query, key, value), mask, options)
    given = _given(call, grad_output, output, lse, grad_lse)
    wanted = _wanted(call, with_respect_to, options)
    sums = gradient_sums(call, wanted, options)
    arrays = [*call.inputs, *(array for array in given if array is not None)]
    token = token_of(call, given, wanted, split_every)
    graph = Graph("attention-gradient-parts", token, arrays)
    add_parts(call, graph, given, sums)
    return AttentionGradients(
        **{name: each.finish(graph, split_every) for name, each in sums.items()}
    )


def _given(call: DaskCall, *arrays: Any) -> tuple[Any, ...]:
    """Check the incoming gradients and the results of the forward call."""
    names = ("grad_output", "output", "lse", "grad_lse")
    rows = call.output_chunks[:-1]
    for name, array in zip(names, arrays, strict=True):
        if name == "grad_lse" and array is None:
            continue
        check_dask_array(name, array)
        stored(name, np.empty(0, array.dtype))
        wanted = rows if "lse" in name else call.output_chunks
        check_chunks(name, array, wanted, may_broadcast=False)
    return arrays


def _wanted(call: DaskCall, with_respect_to: Iterable[str], options: Any) -> tuple[str, ...]:
    """Return the names of the requested gradients, in the order of the result."""
    has_bool_mask = call.shown is not None or call.whole.masks.shown is not None
    mask = np.empty(0, bool) if has_bool_mask else None
    if call.bias is not None:
        mask = np.empty(0, call.bias.dtype)
    fields = AttentionGradients._fields
    request = wanted_gradients(with_respect_to, fields, mask, options, None, {})
    wanted = {
        name for name, is_wanted in zip(fields[:3], request.flags[:3], strict=True) if is_wanted
    }
    return tuple(name for name in fields if name in wanted | request.sums.keys())
