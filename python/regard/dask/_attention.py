"""Attention over Dask arrays."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from regard._arguments.numbers import flag
from regard._arguments.options import BackwardOptions, takes_options
from regard.dask import _tasks
from regard.dask._call import call_of, check_split_every, token_of
from regard.dask._graph import Graph, refer, refer_all

if TYPE_CHECKING:
    from dask.array import Array


@overload
def scaled_dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Any = None,
    *,
    return_lse: Literal[False] = False,
    split_every: int = 8,
    **options: Unpack[BackwardOptions],
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
    **options: Unpack[BackwardOptions],
) -> tuple[Array, Array]: ...
@takes_options(
    BackwardOptions,
    reference="as in `regard.scaled_dot_product_attention`, of the whole arrays",
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

    Every visible pair of a chunk of queries and a chunk of keys is a task that calls
    `regard.scaled_dot_product_attention`, and a tree of tasks merges the results as
    `regard.merge_attention_states` does. Pairs that causality, `window`, `key_lengths` and
    `left_padding` hide are not in the graph.

    Parameters
    ----------
    query : dask.array.Array, shape (..., heads, q_len, head_dim)
        In chunks along any axis but head_dim. Chunks along heads hold whole groups of query heads,
        those that share a key head, or lie within one group.
    key : dask.array.Array, shape (..., kv_heads, kv_len, head_dim)
        In chunks along any axis but head_dim. Along the batch they are those of `query`, unless one
        of the two is broadcast. Along kv_heads they are what the query heads of a chunk read.
    value : dask.array.Array, shape (..., kv_heads, kv_len, value_dim)
        In the chunks of `key`, and one chunk along value_dim.
    mask : array of bool or float, or a pair (bool, float) of both, optional
        Broadcasts to ``(..., heads, q_len, kv_len)``. A Dask array has the chunks of `query` and
        `key` along every axis that is not broadcast; a NumPy array is cut into them.
    {options}
    return_lse : bool, default False
        Also return the natural log-sum-exp of every row's visible scores, sink included.
    split_every : int, default 8
        How many partial results one task merges. The last bits of the result depend on it.
    threads : int or None, default 1
        How many threads of regard's own each task uses, beside those on which Dask runs tasks. None
        is what `regard.get_num_threads` says in the worker.

    Returns
    -------
    output : dask.array.Array, shape (..., heads, q_len, value_dim)
        In the chunks of `query`, and one along value_dim.
    lse : dask.array.Array, shape (..., heads, q_len)
        If `return_lse`; float32, or float64 if the output is.

    Raises
    ------
    TypeError
        If query, key or value is not a Dask array of NumPy arrays, or an argument has the wrong
        type.
    ValueError
        If shapes or chunks disagree, chunk sizes are unknown, or a number is out of range. The
        message says how to rechunk. No task has run then.

    See Also
    --------
    regard.dask.scaled_dot_product_attention_backward : gives the gradients.
    regard.scaled_dot_product_attention : says what the options mean.

    Notes
    -----
    Options are numbers or NumPy arrays, since the graph is made from them. Dropout drops the same
    weights as that function, however the arrays are cut.

    The order in which partial results are merged follows from the chunks and `split_every` alone,
    so every scheduler, any number of workers, and a computation in which workers were lost give the
    same bits. Other chunks give other bits, within the error of a single call. Partial results of
    float16 and bfloat16 arrays are float32.

    Weights are not returned, since they are as large as the scores; ``precision="int8"``, which
    rounds all keys together, and ``device`` are not offered.

    For dropout, a chunk must hold consecutive entries of the batch: with several batch axes, those
    before one that is cut are in chunks of 1.

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
    check_split_every(split_every)
    return_lse = flag("return_lse", return_lse)
    options = {"threads": 1, **options}
    name = "regard.dask.scaled_dot_product_attention"
    call = call_of(name, (query, key, value), mask, options, ("return_lse", "split_every"))
    token = token_of(call, split_every)
    graph = Graph("attention-parts", token, call.inputs)
    outputs, lses = {}, {}
    for block in call.grid.blocks():
        parts = []
        for number, keys in call.key_chunks(block):
            chunks = [call.refer(name, block, number) for name in _tasks.OPERANDS]
            own = call.options_of(block, keys)
            place = (*block.place, number)
            parts.append(
                graph.add(
                    "attention-part", place, _tasks.attend_part, *chunks, own, call.arithmetic
                )
            )
        if not parts:
            shape = call.output_shape(block)
            parts = [
                graph.add(
                    "attention-none", block.place, _tasks.attend_to_nothing, shape, call.arithmetic
                )
            ]
        merge = functools.partial(_tasks.merge_states, threads=options["threads"])
        parts = graph.add_tree("attention-merge", block.place, merge, parts, split_every)
        state = graph.add(
            "attention-state",
            block.place,
            _tasks.finish_states,
            refer_all(parts),
            call.sinks_of(block),
            call.dtype,
            options["threads"],
        )
        index = call.output_index(block)
        outputs[index] = (_tasks.part_of, refer(state), 0)
        lses[index[:-1]] = (_tasks.part_of, refer(state), 1)
    output = graph.array("attention", outputs, call.output_chunks, call.dtype)
    if not return_lse:
        return output
    return output, graph.array("attention-lse", lses, call.output_chunks[:-1], call.arithmetic)
