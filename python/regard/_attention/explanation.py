"""The plan of a call, as numbers and as text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from regard._arguments.arrays import quantity
from regard._arguments.masks import Masks, is_sparse
from regard._runtime.config import better_target_note
from regard._runtime.public import public
from regard._show.shows_options import html_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from regard import _core
    from regard._arguments.arrays import Array


FLOAT_MASK = "a float mask is added to every score; a bool mask costs less"
_NO_MASKS = Masks()
# With a mask of blocks, the kernels divide the rows of a key head at multiples of this many rows.
_UNIT_ROWS = 128


@public
@dataclass(frozen=True)
class Explanation:
    """The plan of one call of `scaled_dot_product_attention` or of a cache.

    ``print`` shows it as text.

    Attributes
    ----------
    target : str
        The instruction set in use; see `cpu_targets`.
    kernel : str
        ``"forward"``, or ``"decode"`` in float32 if a key head serves at most 8 query rows (the
        heads of its group times `q_len`) and no weights are requested. A decode streams keys and
        values once for all rows. Both kernels produce the same bits. ``"int8"`` or ``"bfloat16"``
        with that `precision`, on CPUs with an instruction for it.
    instruction : str or None
        The instruction that multiplies if `kernel` is ``"int8"`` or ``"bfloat16"``, as CPUs list
        it: ``"avx512_vnni"``, ``"avx_vnni"`` or ``"avx512_bf16"``.
    result_type : str
        The output's type. Arithmetic is in float64 if this is float64, else in float32.
    batch, heads, kv_heads, q_len, kv_len, head_dim, value_dim : int
        The sizes as the call reads them; `batch` is the product of the batch axes.
    threads, tasks : int
        The number of threads, and the number of separate tasks.
    task_rows : int
        The largest number of query rows of a task, which share one pass over keys and values.
    chunk_keys : int
        The largest number of keys of a task, if there are too few rows and key heads to occupy the
        threads evenly and threads share the keys of one head; 0 if every task has all keys.
    strip_rows, tile_keys, block_keys : int
        A tile is at most `strip_rows` query rows (in SIMD lanes, except in a decode) by `tile_keys`
        keys; the weights of `block_keys` keys are kept between the two matrix products.
    tiles, tiles_computed, tiles_biased : int
        The number of tiles of all queries and keys; the number of computed tiles, in which some
        query sees a key; and the number of computed tiles that are at an edge, have a mask or have
        a bias, which costs more.
    scores, scores_computed : int
        The number of pairs of query and key, of all query heads, and the number of these pairs in
        the computed tiles. Their ratio is the exact share of computed scores.
    flops : float
        Floating-point operations of the two matrix products over these pairs.
    bytes : int
        The bytes of query, key, value, mask and output, each counted once. Broadcast arrays count
        as stored in memory, and caches by the tokens that they hold.
    mask_bytes : int
        The part of `bytes` that belongs to the mask. A sparse mask counts with its spans and bits.
    workspace_bytes : int
        Extra memory of all threads, and of the keys that are held as 8-bit integers at one time.
    notes : tuple of str
        Causes of extra work, such as converting or copying an array, and the reasons.
    """

    target: str
    kernel: str
    instruction: str | None
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
    scores: int
    scores_computed: int
    flops: float
    bytes: int
    mask_bytes: int
    workspace_bytes: int
    notes: tuple[str, ...]

    @classmethod
    def of_plan(
        cls,
        plan: _core._Plan,
        key: Array,
        value: Array,
        precision: str | None,
        read_bytes: int,
        notes: Sequence[str],
        masks: Masks = _NO_MASKS,
        starts: tuple[Array, Array] | None = None,
        quantized: str | None = None,
    ) -> Self:
        """Return a plan in words and numbers.

        `read_bytes` includes the masks, and excludes the output. `notes` precede the notes of the
        plan. `starts` are the starts of packed sequences of queries and keys. `quantized` is the
        type of keys and values that are stored in fewer than 16 bits.
        """
        sizes: dict[str, Any] = dict(zip(_SIZES, plan["shape"], strict=True))
        queries, first_queries = sizes["batch"] * sizes["q_len"], [0]
        pairs = queries * sizes["kv_len"]
        if starts is not None:
            lengths = (np.diff(each).tolist() for each in starts)
            pairs = sum(math.prod(pair) for pair in zip(*lengths, strict=True))
            *first_queries, queries = starts[0].tolist()
        item_bytes = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}[plan["result_type"]]
        output_bytes = queries * sizes["heads"] * sizes["value_dim"] * item_bytes
        return cls(
            **sizes,
            **{name: each for name, each in plan.items() if name in cls.__match_args__},  # type: ignore[arg-type]
            tiles_computed=plan["tiles_visible"] + plan["tiles_biased"],
            scores=sizes["heads"] * pairs,
            flops=2.0 * plan["scores_computed"] * (sizes["head_dim"] + sizes["value_dim"]),
            bytes=read_bytes + output_bytes,
            mask_bytes=sum(map(distinct_bytes, masks.arrays)),
            notes=(
                *notes,
                *_decoded_entries(plan),
                *_split_blocks(masks.shown, plan, first_queries),
                *_no_effect(precision, plan, quantized),
                *_copies(plan, key, value, quantized),
            ),
        )

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in _IN_ONE_LINE)
        return f"Explanation({shown})"

    def __str__(self) -> str:
        return "\n".join(f"{name:<9} {text}" for name, text in self._rows())

    def _repr_html_(self) -> str:
        return html_table("Planned computation", self._rows())

    def _rows(self) -> list[tuple[str, str]]:
        """Return the rows of the text as names and texts. Continuation lines have no name."""
        group = self.heads // self.kv_heads if self.kv_heads else 1
        grouped = f" ({self.kv_heads} of keys, {group} query heads each)" if group > 1 else ""
        noun = _TILES[self.kernel]
        arithmetic = "float64" if self.result_type == "float64" else "float32"
        stored = "" if self.result_type == arithmetic else f", stored as {self.result_type}"
        by = f" by {self.instruction}" if self.instruction else ""
        better = better_target_note()
        parts, unit, size = "task", "row", self.task_rows
        if self.chunk_keys:
            parts, unit, size = "chunk", "key", self.chunk_keys
        shared = f"{self.threads} on {_plural(self.tasks, parts)} of up to {_plural(size, unit)}"
        shared += " of one key head, joined in order" if self.chunk_keys else ""
        computed = [("computed", "nothing: no key is visible")]
        if self.tiles:
            share = f"{self.tiles_computed / self.tiles:.1%}"
            biased = f"{self.tiles_biased:,} of them under a mask, at an edge or with a bias"
            tiles = f"{self.tiles_computed:,} of {_plural(self.tiles, noun)} ({share}), {biased}"
            share = f"{self.scores_computed / self.scores:.3%}"
            scores = f"{self.scores_computed:,} of {self.scores:,} scores ({share})"
            computed = [("computed", tiles), ("", scores)]
        of_mask = f", {quantity(self.mask_bytes, 'B')} of them for the mask"
        return [
            ("shape", f"batch {self.batch}, heads {self.heads}{grouped}"),
            (
                "",
                f"{_plural(self.q_len, 'query', 'queries')} x {_plural(self.kv_len, 'key')}, "
                f"head_dim {self.head_dim}, value_dim {self.value_dim}",
            ),
            ("target", f"{self.target}, arithmetic in {arithmetic}{stored}"),
            *([("", better)] if better else []),
            ("kernel", f"{self.kernel}: {_KERNELS[self.kernel]}{by}"),
            (
                f"{noun}s",
                f"{_plural(self.strip_rows, 'query row')} x {_plural(self.tile_keys, 'key')}, "
                f"blocks of {_plural(self.block_keys, 'key')}",
            ),
            ("threads", shared if self.tasks else "none: the result is empty"),
            *computed,
            ("work", f"{quantity(self.flops, 'FLOP', 1000)} in the two products"),
            (
                "memory",
                f"{quantity(self.bytes, 'B')} of arrays{of_mask if self.mask_bytes else ''}, "
                f"{quantity(self.workspace_bytes, 'B')} of workspace",
            ),
            *(("note", note) for note in self.notes),
        ]


_SIZES = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "value_dim")
# The fields of the representation, a subset of the fields that `print` shows.
_IN_ONE_LINE = (
    *("target", "kernel", "result_type", "batch", "heads", "kv_heads", "q_len", "kv_len"),
    *("head_dim", "value_dim", "threads", "tasks", "tiles_computed", "tiles", "flops"),
)
_TILES = {"forward": "tile", "int8": "tile", "bfloat16": "tile", "decode": "step"}
_KERNELS = {
    "forward": "queries in SIMD lanes",
    "int8": "queries in SIMD lanes, 8-bit integers multiplied",
    "bfloat16": "queries in SIMD lanes, pairs of bfloat16 multiplied",
    "decode": "few query rows, keys and values streamed once for all of them",
}


def _plural(count: int, noun: str, plural: str | None = None) -> str:
    return f"{count:,} " + (noun if count == 1 else plural or noun + "s")


def _no_effect(precision: str | None, plan: _core._Plan, quantized: str | None) -> Iterator[str]:
    """Explain why an allowed precision is not used."""
    if precision is None or plan["tasks"] == 0 or plan["kernel"] == precision:
        return
    if precision == "bfloat16" and plan["has_few_rows"]:
        why = "memory bandwidth limits calls with few queries"
    elif precision == "bfloat16" and quantized is not None:
        why = f"keys that are stored as {quantized} are multiplied in float32"
    else:
        products = "8-bit integers" if precision == "int8" else "products of bfloat16"
        target = plan["target"]
        why = f"{target} on this CPU has no instruction that makes {products} faster than float32"
    yield f"precision '{precision}' has no effect: {why}"


def _decoded_entries(plan: _core._Plan) -> Iterator[str]:
    """Report how many sequences have so few queries that they are computed differently."""
    count = plan["decoded_entries"]
    if count:
        yield f"{_plural(count, 'sequence')} with few query rows: kernel decode"


def _copies(plan: _core._Plan, key: Array, value: Array, quantized: str | None) -> Iterator[str]:
    if plan["scores_computed"] == 0:
        return
    if plan["kernel"] == "int8":
        yield "keys are rounded to 8-bit integers, once for each kv head"
    elif plan["kernel"] == "bfloat16":
        keys = "keys and " if plan["copies_keys"] else ""
        yield f"blocks of {keys}values are copied: they are multiplied as pairs of bfloat16"
        return
    elif plan["copies_keys"]:
        yield f"blocks of keys are copied: {_layout(key, plan, quantized or key.dtype.name)}"
    if plan["copies_values"]:
        yield f"blocks of values are copied: {_layout(value, plan, quantized or value.dtype.name)}"


def _split_blocks(mask: Any, plan: _core._Plan, first_queries: Sequence[int]) -> Iterator[str]:
    """Explain why the kernels split the blocks of a sparse mask, if they do."""
    block = getattr(mask, "block", None)
    if block is None or not is_sparse(mask) or plan["scores_computed"] == 0:
        return
    arrays, (height, width) = mask._sparse_rows(), block
    _, heads, kv_heads, *_ = plan["shape"]
    unit = _UNIT_ROWS // math.gcd(_UNIT_ROWS, heads // kv_heads)
    reasons = []
    if plan["kernel"] != "decode" and arrays.shape[-2] > 1:
        starts = {(arrays.first_query + first) % height % unit for first in first_queries}
        if height % unit:
            reasons.append(f"their {height} queries are not a multiple of {unit}")
        elif starts != {0}:
            reasons.append(f"they do not begin at a multiple of {unit} queries")
    if width % plan["tile_keys"]:
        reasons.append(f"their {width} keys are not a multiple of {plan['tile_keys']}")
    elif arrays.first_key % plan["tile_keys"]:
        reasons.append(f"they do not begin at a multiple of {plan['tile_keys']} keys")
    if reasons:
        yield (
            f"blocks of the mask are split, since {' and '.join(reasons)}: "
            "hidden scores at their edges are computed too"
        )


def distinct_bytes(array: Any) -> int:
    """Return the number of bytes in memory that the elements of an array or mask occupy.

    An axis with stride 0 repeats its elements, and overlapping strides, such as in a sliding
    window, read elements again.
    """
    if is_sparse(array):
        starts, spans, bits, *_ = array._sparse_rows()
        return sum(distinct_bytes(part) for part in (starts, spans, bits))
    if array.size == 0:
        return 0
    axes = [(n, abs(step)) for n, step in zip(array.shape, array.strides, strict=True) if step]
    elements: int = math.prod(n for n, _ in axes)
    extent: int = array.itemsize + sum((n - 1) * step for n, step in axes)
    stored: int = min(array.itemsize * elements, extent)
    return stored


def _layout(array: Array, plan: _core._Plan, stored: str) -> str:
    """Return why blocks of `array` cannot be read in place."""
    computed = "float64" if plan["result_type"] == "float64" else "float32"
    if plan["kernel"] == "decode" and not (stored != computed and computed == "float64"):
        if array.strides[-1] == array.itemsize:
            return f"{array.shape[-1]} columns do not fill vectors of {plan['columns']}"
        return f"a row's elements are {array.strides[-1]} bytes apart"
    if stored != computed:
        return f"they are stored as {stored} and computed in {computed}"
    if array.strides[-1] != array.itemsize:
        return f"a row's elements are {array.strides[-1]} bytes apart"
    if abs(array.strides[-2]) >= 2048:
        return f"rows are {array.strides[-2]} bytes apart, so they share a part of the cache"
    return (
        f"value_dim {array.shape[-1]} is not a multiple of the {plan['columns']} columns that are "
        "computed at a time"
    )
