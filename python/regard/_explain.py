"""What a call would compute, and how."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from regard import _core
from regard._inputs import as_mask
from regard._storage import as_stored_arrays

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Explanation:
    """What one call of `scaled_dot_product_attention` computes; ``print`` shows it as text.

    Attributes
    ----------
    target : str
        The instruction set that runs, see `cpu_targets`.
    kernel : str
        ``"forward"``, or ``"decode"`` where a key head serves at most 8 query rows (the heads of
        its group times `q_len`) and no weights are asked for: it streams keys and values once for
        all of them. Both give the same bits. ``"int8"`` where `precision` is.
    int8_instruction : str or None
        What multiplies 8-bit integers, as CPUs list it (``"avx512_vnni"``, ``"avx_vnni"``); None
        where float32 does, which gives the same integers, or where `precision` is not ``"int8"``.
    result_type : str
        The output's type. Arithmetic is in float64 if this is float64, else in float32.
    batch, heads, kv_heads, q_len, kv_len, head_dim, value_dim : int
        The sizes as the call reads them, batch axes multiplied.
    threads, tasks : int
        How many threads work, on how many separate tasks.
    task_rows : int
        Query rows of a task at most: they share one pass over keys and values.
    chunk_keys : int
        Keys of a task at most, where a decode has few key heads and no multiple of its threads,
        which then share the keys of one; 0 where a task has all keys.
    strip_rows, tile_keys, block_keys : int
        A tile is `strip_rows` query rows at most (in SIMD lanes, but in a decode) by `tile_keys`
        keys; the weights of `block_keys` keys are kept between the two matrix products.
    tiles, tiles_computed, tiles_biased : int
        Tiles of the whole square of queries and keys; those that some query sees and that are
        therefore computed; those of them at an edge, under a mask or with a bias, which cost more.
    scores_computed : int
        Pairs of query and key in the computed tiles.
    flops : float
        Floating-point operations of the two matrix products over these pairs.
    bytes : int
        Of query, key, value, mask and output, each once; what is broadcast is one piece of memory.
    workspace_bytes : int
        Extra memory of all threads, and of the keys that are in 8-bit integers at one time.
    notes : tuple of str
        Where the general way is taken instead of the shortest, and why.
    """

    target: str
    kernel: str
    int8_instruction: str | None
    result_type: str
    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    value_dim: int
    threads: int
    tasks: int
    task_rows: int
    chunk_keys: int
    strip_rows: int
    tile_keys: int
    block_keys: int
    tiles: int
    tiles_computed: int
    tiles_biased: int
    scores_computed: int
    flops: float
    bytes: int
    workspace_bytes: int
    notes: tuple[str, ...]

    def __str__(self) -> str:
        group = self.heads // self.kv_heads if self.kv_heads else 1
        grouped = f" ({self.kv_heads} of keys, {group} query heads each)" if group > 1 else ""
        noun = _TILES[self.kernel]
        share = self.tiles_computed / max(self.tiles, 1)
        arithmetic = "float64" if self.result_type == "float64" else "float32"
        stored = "" if self.result_type == arithmetic else f", stored as {self.result_type}"
        rows = [
            ("shape", f"batch {self.batch}, heads {self.heads}{grouped}"),
            (
                "",
                f"{_plural(self.q_len, 'query', 'queries')} x {_plural(self.kv_len, 'key')}, "
                f"head_dim {self.head_dim}, "
                f"value_dim {self.value_dim}",
            ),
            ("target", f"{self.target}, arithmetic in {arithmetic}{stored}"),
            ("kernel", f"{self.kernel}: {_KERNELS[self.kernel]}{self._instruction()}"),
            (
                f"{noun}s",
                f"{_plural(self.strip_rows, 'query row')} x {_plural(self.tile_keys, 'key')}, "
                f"blocks of {_plural(self.block_keys, 'key')}",
            ),
            ("threads", self._shared_out()),
            (
                "computed",
                f"{self.tiles_computed:,} of {_plural(self.tiles, noun)} "
                f"({share:.1%}), {self.tiles_biased:,} of them under a mask, at an edge "
                "or with a bias"
                if self.tiles
                else "nothing: no query has a key",
            ),
            ("work", f"{_quantity(self.flops, 'FLOP', 1000)} in the two products"),
            (
                "memory",
                f"{_quantity(self.bytes, 'B')} of arrays, "
                f"{_quantity(self.workspace_bytes, 'B')} of workspace",
            ),
        ]
        lines = [f"{name:<9} {text}" for name, text in rows]
        lines += [f"{'note':<9} {note}" for note in self.notes]
        return "\n".join(lines)

    def _instruction(self) -> str:
        if self.kernel != "int8":
            return ""
        return f" by {self.int8_instruction or 'float32, for want of an instruction'}"

    def _shared_out(self) -> str:
        if not self.tasks:
            return "none: the result is empty"
        if self.chunk_keys:
            return (
                f"{self.threads} on {_plural(self.tasks, 'chunk')} of up to "
                f"{_plural(self.chunk_keys, 'key')} of one key head, joined in order"
            )
        return (
            f"{self.threads} on {_plural(self.tasks, 'task')} of up to "
            f"{_plural(self.task_rows, 'row')}"
        )


_TILES = {"forward": "tile", "int8": "tile", "decode": "step"}
_KERNELS = {
    "forward": "queries in SIMD lanes",
    "int8": "queries in SIMD lanes, 8-bit integers multiplied",
    "decode": "few query rows, keys and values streamed once for all of them",
}


def _plural(count: int, noun: str, plural: str | None = None) -> str:
    return f"{count:,} " + (noun if count == 1 else plural or noun + "s")


def _quantity(amount: float, unit: str, step: int = 1024) -> str:
    prefixes = ["", "k", "M", "G", "T", "P"] if step == 1000 else ["", "Ki", "Mi", "Gi", "Ti", "Pi"]
    for prefix in prefixes:
        if amount < step or prefix == prefixes[-1]:
            break
        amount /= step
    number = f"{amount:.0f}" if amount >= 100 else f"{amount:.3g}"
    return f"{number} {prefix}{unit}"


def explain(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    is_causal: bool = False,
    query_offset: ArrayLike = 0,
    window: tuple[int | None, int | None] | None = None,
    key_lengths: ArrayLike | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    precision: Literal["int8"] | None = None,
    threads: int | None = None,
) -> Explanation:
    """Say what `scaled_dot_product_attention` would compute with these arguments, and how.

    Nothing is computed but what is visible: the mask is read, keys and values are not.

    Parameters
    ----------
    query, key, value, mask
        As in `scaled_dot_product_attention`.
    is_causal, query_offset, window, key_lengths, scale, softcap, alibi_slopes, sinks
        As in `scaled_dot_product_attention`.
    precision, threads
        As in `scaled_dot_product_attention`.

    Returns
    -------
    Explanation
        Its attributes are numbers; ``print`` shows them as text.

    Raises
    ------
    TypeError, ValueError
        As `scaled_dot_product_attention`.

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> x = np.zeros((8, 4096, 64), np.float32)
    >>> whole = regard.explain(x, x, x)
    >>> causal = regard.explain(x, x, x, is_causal=True)
    >>> round(causal.flops / whole.flops, 2)
    0.51
    """
    given = {"query": query, "key": key, "value": value}
    arrays = as_stored_arrays(**given)
    readable_mask = as_mask(mask)
    plan = _core.attention_plan(
        arrays[0],
        arrays[1],
        arrays[2],
        readable_mask,
        is_causal,
        query_offset,
        window,
        key_lengths,
        scale,
        softcap,
        alibi_slopes,
        sinks,
        precision,
        threads,
    )
    batch, heads, kv_heads, q_len, kv_len, head_dim, value_dim = plan["shape"]
    notes = [
        f"{name} was converted to a {array.dtype} array: {_why(before)}"
        for (name, before), array in zip(given.items(), arrays, strict=True)
        if before is not array
    ]
    if mask is not None and mask is not readable_mask:
        notes.append(f"mask was converted: {_why(mask)}")
    is_computed = plan["scores_computed"] > 0
    if is_computed and plan["kernel"] == "int8":
        notes.append("keys are rounded to 8-bit integers, once for each kv head")
    elif is_computed and plan["copies_keys"]:
        notes.append(f"blocks of keys are copied: {_layout(arrays[1], plan)}")
    if is_computed and plan["copies_values"]:
        notes.append(f"blocks of values are copied: {_layout(arrays[2], plan)}")
    if readable_mask is not None and readable_mask.dtype.kind == "f":
        notes.append("a float mask is added to every score; a bool mask costs less where it hides")
    output_bytes = batch * heads * q_len * value_dim * _item_bytes(plan["result_type"])
    return Explanation(
        target=plan["target"],
        kernel=plan["kernel"],
        int8_instruction=plan["int8_instruction"],
        result_type=plan["result_type"],
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        q_len=q_len,
        kv_len=kv_len,
        head_dim=head_dim,
        value_dim=value_dim,
        threads=plan["threads"],
        tasks=plan["tasks"],
        task_rows=plan["task_rows"],
        chunk_keys=plan["chunk_keys"],
        strip_rows=plan["strip_rows"],
        tile_keys=plan["tile_keys"],
        block_keys=plan["block_keys"],
        tiles=plan["tiles"],
        tiles_computed=plan["tiles_visible"] + plan["tiles_biased"],
        tiles_biased=plan["tiles_biased"],
        scores_computed=plan["scores_computed"],
        flops=2.0 * plan["scores_computed"] * (head_dim + value_dim),
        bytes=sum(map(_distinct_bytes, arrays))
        + (0 if readable_mask is None else _distinct_bytes(readable_mask))
        + output_bytes,
        workspace_bytes=plan["workspace_bytes"],
        notes=tuple(notes),
    )


def _distinct_bytes(array: np.ndarray[Any, np.dtype[Any]]) -> int:
    """How much memory the elements lie in: an axis without a stride repeats what is there."""
    if array.size == 0:
        return 0
    axes = zip(array.shape, array.strides, strict=True)
    elements: int = math.prod(size for size, stride in axes if stride)
    return array.itemsize * elements


def _item_bytes(dtype: str) -> int:
    return {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}[dtype]


def _why(value: ArrayLike) -> str:
    """Why the kernels cannot read what was passed."""
    if not isinstance(value, np.ndarray):
        return f"it is a {type(value).__name__}"
    if type(value) is not np.ndarray:
        return f"it is a {type(value).__name__}, a subclass of ndarray"
    if not value.dtype.isnative:
        return "its bytes are in the other order"
    if value.dtype.kind in "biu" or value.dtype.itemsize == 2:
        return f"it is of {value.dtype}"
    return "its memory is not aligned to its elements"


def _layout(array: np.ndarray[Any, np.dtype[Any]], plan: _core._Plan) -> str:
    """Why blocks of `array` cannot be read where they lie."""
    computed = "float64" if plan["result_type"] == "float64" else "float32"
    if plan["kernel"] == "decode":
        if array.strides[-1] == array.itemsize:
            return f"{array.shape[-1]} columns do not fill vectors of {plan['columns']}"
        return f"a row's elements are {array.strides[-1]} bytes apart"
    if array.dtype.name != computed:
        return f"they are stored as {array.dtype} and computed in {computed}"
    if array.strides[-1] != array.itemsize:
        return f"a row's elements are {array.strides[-1]} bytes apart"
    if abs(array.strides[-2]) >= 2048:
        return f"rows are {array.strides[-2]} bytes apart, which crowds into a part of the cache"
    return (
        f"value_dim {array.shape[-1]} is no multiple of the {plan['columns']} columns that are "
        "computed at a time"
    )
