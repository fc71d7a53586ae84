"""Attention over Dask arrays."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from regard._arguments.numbers import count, flag
from regard._arguments.options import DaskOptions, takes_options
from regard.dask import _tasks
from regard.dask._call import call_of
from regard.dask._graph import Graph, refer, refer_all

if TYPE_CHECKING:
    from dask.array import Array

    from regard.dask._graph import Key


@overload
def scaled_dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Any = None,
    *,
    return_lse: Literal[False] = False,
    split_every: int = 8,
    **options: Unpack[DaskOptions],
) -> Array: ...
@overload
def scaled_dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Any = None,
    *,
    return_lse: Literal[True],
    split_every: int = 8,
    **options: Unpack[DaskOptions],
) -> tuple[Array, Array]: ...
@takes_options(
    DaskOptions,
    reference="as in `regard.scaled_dot_product_attention`, for the whole arrays",
    threads=1,
)
def scaled_dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Any = None,
    *,
    return_lse: bool = False,
    split_every: int = 8,
    **options: Any,
) -> Array | tuple[Array, Array]:
    """Compute exact scaled-dot-product attention over Dask arrays, lazily.

    For every visible pair of a query chunk and a key chunk, one task calls
    `regard.scaled_dot_product_attention`. A tree of tasks merges the results with
    `regard.merge_attention_states`. Pairs hidden by causality, `window`, `key_lengths`,
    `left_padding` or a sparse mask are not in the graph.

    Parameters
    ----------
    query : dask.array.Array, shape (..., heads, q_len, head_dim)
        May be chunked along any axis except head_dim. A group is the query heads that share a key
        head. Each chunk along heads consists of whole groups, or is part of one group.
    key : dask.array.Array, shape (..., kv_heads, kv_len, head_dim)
        May be chunked along any axis except head_dim. Along the batch axes, the chunks must equal
        the chunks of `query`, unless one of the two is broadcast. Along kv_heads, a chunk contains
        the heads that one chunk of query heads reads.
    value : dask.array.Array, shape (..., kv_heads, kv_len, value_dim)
        Must have the chunks of `key`, and one chunk along value_dim.
    mask : array of bool or float, SparseMask, or a pair (bool, float), optional
        Broadcasts to ``(..., heads, q_len, kv_len)``. A Dask array must have the chunks of `query`
        and `key` along every axis that is not broadcast. A NumPy array is split into these chunks.
        Every task receives the part of a sparse mask that belongs to its chunks.
    {options}
    return_lse : bool, default False
        Also return the natural log-sum-exp of every row's visible scores, including the sink.
    split_every : int, default 8
        Maximum number of partial results that one task merges. The last bits of the result depend
        on it.
    threads : int or None, default 1
        Number of regard threads per task, in addition to the threads on which Dask runs tasks. None
        means the value of `regard.get_num_threads` in the worker.

    Returns
    -------
    output : dask.array.Array, shape (..., heads, q_len, value_dim)
        Has the chunks of `query`, and one chunk along value_dim.
    lse : dask.array.Array, shape (..., heads, q_len)
        Returned if `return_lse`, in float64 if the output is float64, else in float32.

    Raises
    ------
    TypeError
        If query, key or value is not a Dask array of NumPy arrays, or an argument has the wrong
        type.
    ValueError
        If shapes or chunks disagree, chunk sizes are unknown, or a number is out of range. The
        message explains how to rechunk. It is raised before any task runs.

    See Also
    --------
    regard.dask.scaled_dot_product_attention_backward : computes the gradients.
    regard.scaled_dot_product_attention : documents the options.

    Notes
    -----
    Options must be numbers or NumPy arrays, since the graph depends on their values. Dropout drops
    the same weights as `regard.scaled_dot_product_attention`, regardless of the chunks.

    The order in which partial results are merged depends only on the chunks and `split_every`, so
    the bits of the result do not depend on the scheduler, the number of workers or lost workers.
    Hidden pairs change no bit, whether they are in the graph or not: a sparse mask gives the same
    bits as the equal bool array. Different chunks change the last bits, within the error of a
    single call; in float64, the rounding of each partial lse is added. Partial results of float16
    and bfloat16 arrays are float32.

    Weights are not returned, since they are as large as the scores. `precision` and `device` are
    not supported.

    With dropout, a chunk must contain consecutive batch entries. If there are several batch axes,
    the axes before a chunked axis must have chunks of 1.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> import regard
    >>> import regard.dask
    >>> rng = np.random.default_rng(0)
    >>> arrays = rng.standard_normal((3, 2, 4, 300, 16))
    >>> query, key, value = (da.from_array(x, chunks=(1, 2, 100, 16)) for x in arrays)
    >>> output = regard.dask.scaled_dot_product_attention(query, key, value, is_causal=True)
    >>> output.chunks
    ((1, 1), (2, 2), (100, 100, 100), (16,))
    >>> whole = regard.scaled_dot_product_attention(*arrays, is_causal=True)
    >>> bool(np.allclose(output.compute(), whole, rtol=0, atol=1e-14))
    True
    """
    count("split_every", split_every, minimum=2)
    return_lse = flag("return_lse", return_lse)
    options = {"threads": 1, **options}
    name = "regard.dask.scaled_dot_product_attention"
    call = call_of(name, (query, key, value), mask, options)
    graph = Graph("attention-parts", call.token(split_every), call.inputs)
    merge = functools.partial(_tasks.merge_states, threads=options["threads"])
    outputs, lses = {}, {}
    for block in call.blocks():
        parts: list[Key | None] = [None] * len(call.keys)
        for number, keys in call.key_chunks(block):
            place = (*block.place, number)
            arguments = call.arguments_of(block, number, keys)
            parts[number] = graph.add(
                "attention-part", place, _tasks.attend_part, *arguments, call.arithmetic
            )
        index = call.output_index(block)
        shape = tuple(axis[i] for axis, i in zip(call.output_chunks, index, strict=True))
        merged = graph.add_tree("attention-merge", block.place, merge, parts, split_every)
        state = graph.add(
            "attention-state",
            block.place,
            _tasks.finish_states,
            refer_all(merged),
            shape,
            call.sinks_of(block),
            (call.arithmetic, call.dtype),
            options["threads"],
        )
        outputs[index] = (_tasks.part_of, refer(state), 0)
        lses[index[:-1]] = (_tasks.part_of, refer(state), 1)
    output = graph.array("attention", outputs, call.output_chunks, call.dtype)
    if not return_lse:
        return output
    return output, graph.array("attention-lse", lses, call.output_chunks[:-1], call.arithmetic)
