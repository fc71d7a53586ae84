"""The gradients of attention over Dask arrays."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from regard import AttentionGradients
from regard._arguments.arrays import stored
from regard._arguments.numbers import count
from regard._arguments.option_table import OPTIONS
from regard._arguments.options import DaskOptions, takes_options
from regard._gradients.wanted import wanted_gradients
from regard.dask import _tasks
from regard.dask._call import call_of, check_chunks, check_dask_array, chunk_index
from regard.dask._graph import Graph, refer, refer_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dask.array import Array

    from regard.dask._call import Block, Chunks, DaskCall, Index
    from regard.dask._graph import Key

# The names of the inputs of gradients in a `DaskCall`.
_OPERANDS = {"query": "query", "key": "key", "value": "value", "mask": "bias"}


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
    sums = {name: _Sum.of(call, name, options) for name in wanted}
    arrays = [*call.inputs, *(array for array in given if array is not None)]
    graph = Graph("attention-gradient-parts", call.token(given, wanted, split_every), arrays)
    for block in call.blocks():
        _add_parts(call, graph, block, given, sums)
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
        check_chunks(name, array, wanted)
    return arrays


def _wanted(call: DaskCall, with_respect_to: Iterable[str], options: Any) -> tuple[str, ...]:
    """Return the names of the requested gradients, in the order of the result."""
    shown, bias = call.arrays["shown"], call.arrays["bias"]
    has_bool_mask = shown is not None or call.whole.masks.shown is not None
    mask = np.empty(0, bool) if has_bool_mask else None
    if bias is not None:
        mask = np.empty(0, bias.dtype)
    names = wanted_gradients(with_respect_to, mask, options).names
    return tuple(name for name in AttentionGradients._fields if name in names)


class _Sum:
    """A gradient whose chunks are sums of task results."""

    def __init__(self, name: str, chunks: tuple[Chunks, ...], dtype: np.dtype[Any]) -> None:
        self._name, self._chunks = name, chunks
        self._dtype = stored(name, np.empty(0, dtype)).dtype
        places = itertools.product(*(range(len(axis)) for axis in chunks))
        self._parts: dict[Index, list[Key | None]] = {index: [] for index in places}

    @classmethod
    def of(cls, call: DaskCall, name: str, options: Mapping[str, Any]) -> _Sum:
        """Return the sum of a gradient, which has the chunks of its input."""
        if name in _OPERANDS:
            array = call.arrays[_OPERANDS[name]]
            return cls(name, array.chunks, array.dtype)
        array = np.asarray(options[name])
        of_axis = {"batch": call.batch, "heads": (call.heads,), "columns": ((),)}
        axes = [full for axis in OPTIONS[name].axes for full in of_axis[axis]]
        sizes = zip(array.shape, axes[len(axes) - array.ndim :], strict=True)
        chunks = tuple(full if size == sum(full) else (size,) for size, full in sizes)
        return cls(name, chunks, array.dtype)

    def add(self, call: DaskCall, block: Block, number: int, part: Key | None) -> None:
        """Add the result of a task for a block and a key chunk, or None for a hidden pair.

        The sum has the order of the calls.
        """
        if self._name in _OPERANDS:
            index = call.chunk_of(_OPERANDS[self._name], block, number)
        else:
            columns = (0,) * OPTIONS[self._name].axes.count("columns")
            index = chunk_index(self._chunks, (*block.place[:-1], *columns))
        self._parts[index].append(part)

    def finish(self, graph: Graph, split_every: int) -> Any:
        """Return the gradient as a Dask array."""
        kind = f"attention-gradient-of-{self._name}"
        blocks: dict[Index, tuple[Any, ...]] = {}
        for index, parts in self._parts.items():
            left = graph.add_tree(f"{kind}-sum", index, _tasks.add_up, parts, split_every)
            shape = tuple(axis[i] for axis, i in zip(self._chunks, index, strict=True))
            blocks[index] = (_tasks.finish_sum, refer_all(left), shape, self._dtype)
        return graph.array(kind, blocks, self._chunks, self._dtype)


def _add_parts(
    call: DaskCall, graph: Graph, block: Block, given: tuple[Any, ...], sums: Mapping[str, _Sum]
) -> None:
    """Add a task for every visible pair of a block and a key chunk, and its results to the sums."""
    if block.is_empty:
        return
    kind = "attention-gradient-part"
    index = call.output_index(block)
    rows = refer_all(
        [None if array is None else (array.name, *index[: array.ndim]) for array in given]
    )
    if "sinks" in sums:
        arguments = _tasks.gradient_of_sinks, rows, call.sinks_of(block)
        part = graph.add(f"{kind}-of-sinks", block.place, *arguments)
        sums["sinks"].add(call, block, 0, part)
    names = tuple(name for name in sums if name != "sinks")
    visible = dict(call.key_chunks(block)) if names else {}
    for number in range(len(call.keys) if names else 0):
        parts: list[Key | None] = [None] * len(names)
        if number in visible:
            place = (*block.place, number)
            arrays, options = call.arguments_of(block, number, visible[number])
            task = _tasks.gradients_of_part, arrays, options, call.arithmetic, rows, names
            pair = graph.add(kind, place, *task)
            parts = [
                graph.add(f"{kind}-of-{name}", place, _tasks.part_of, refer(pair), position)
                for position, name in enumerate(names)
            ]
        for name, of_pair in zip(names, parts, strict=True):
            sums[name].add(call, block, number, of_pair)
