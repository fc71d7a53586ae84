"""The problems that the tests share, and the layouts that an array can have in memory."""

import dataclasses
import functools
import zlib
from collections.abc import Callable
from itertools import count, cycle

import numpy as np

import reference
from data_kinds import Drawn, drawn_for

Shape = tuple[int, ...]

LANES = (4, 8, 16, 24, 48, 64)
AROUND_LANES = sorted({n for w in LANES for n in (1, w - 1, w, w + 1, 2 * w + 3)})
KV_LENGTHS = (1, 2, 7, 8, 9, 15, 16, 17, 33, 64, 95, 96, 97, 191, 192, 193, 287, 288, 289)
DIMS = (1, 2, 3, 5, 7, 8, 9, 13, 15, 16, 17, 24, 31, 32, 33, 47, 48, 49, 63, 64, 65)
DIMS += (79, 80, 95, 96, 97, 127, 128, 129, 191, 192, 255, 256)


@dataclasses.dataclass(frozen=True)
class Problem:
    """Arrays and options, and the smaller problems within, whose results are parts of the whole
    result."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    options: dict

    @property
    def arrays(self):
        return self.query, self.key, self.value

    @property
    def batch(self):
        return np.broadcast_shapes(*(x.shape[:-3] for x in self.arrays))

    def with_masks(self, change):
        """Return the options in use with a function applied to the mask, or to both masks."""
        mask = self.options.get("mask")
        if mask is None:
            return dict(self.options)
        is_pair = isinstance(mask, tuple)
        changed = tuple(change(np.asarray(part)) for part in (mask if is_pair else (mask,)))
        return self.options | {"mask": changed if is_pair else changed[0]}

    def entry(self, index):
        """Return one batch entry by itself, as arrays of three axes."""

        def select(array):
            array = array.reshape((1,) * (3 - array.ndim) + array.shape)
            return np.broadcast_to(array, self.batch + array.shape[-3:])[index]

        options = self.with_masks(select)
        for name in ("query_offset", "key_lengths", "left_padding"):
            if options.get(name) is not None:
                options[name] = int(np.broadcast_to(options[name], self.batch)[index])
        slopes = options.get("alibi_slopes")
        if np.ndim(slopes) > 1:
            slopes = np.broadcast_to(slopes, (*self.batch, slopes.shape[-1]))
            options["alibi_slopes"] = slopes[index]
        if "dropout_p" in options and self.batch:
            number = int(np.ravel_multi_index(index, self.batch))
            first, *others = options.get("dropout_origin", (0, 0, 0))
            options["dropout_origin"] = (first + number, *others)
        return Problem(*map(select, self.arrays), options)

    def head(self, h):
        """Return one head of a problem without batch, as arrays of two axes."""
        heads, kv_h = len(self.query), h // (len(self.query) // len(self.key))

        def select(mask):
            return np.broadcast_to(mask, (heads, *mask.shape[1:]))[h] if mask.ndim > 2 else mask

        options = self.with_masks(select)
        for name in options.keys() & {"alibi_slopes", "distance_bias", "sinks"}:
            options[name] = options[name][h : h + 1]
        for name in options.keys() & {"scale", "softcap"}:
            options[name] = np.broadcast_to(options[name], heads)[h]
        if options.get("softcap") == np.inf:  # no number, but an array, may contain it
            options["softcap"] = None
        return Problem(self.query[h], self.key[kv_h], self.value[kv_h], options)

    def rows(self, start, stop):
        """Return some consecutive queries, at their original positions."""

        def select(mask):
            has_rows = mask.ndim > 1 and mask.shape[-2] > 1
            return mask[..., start:stop, :] if has_rows else mask

        offset = np.asarray(self.options.get("query_offset", 0)) + start
        options = self.with_masks(select) | {"query_offset": offset}
        return Problem(self.query[..., start:stop, :], self.key, self.value, options)

    def keys(self, count):
        """Return only the first keys, for rows that see no others."""

        def select(mask):
            return mask[..., :count] if mask.ndim > 0 and mask.shape[-1] > 1 else mask

        options = self.with_masks(select)
        for name in ("key_lengths", "left_padding"):
            if options.get(name) is not None:
                options[name] = np.minimum(options[name], count)
        return Problem(self.query, self.key[..., :count, :], self.value[..., :count, :], options)


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    query: Shape
    key: Shape
    value: Shape
    bool_mask: Shape | None = None
    float_mask: Shape | None = None
    is_causal: bool = False
    query_offset: int | tuple = 0
    window: tuple | None = None
    key_lengths: int | tuple | None = None
    left_padding: int | tuple | None = None
    scale: float | None = None
    softcap: float | None = None
    alibi_slopes: float | None = None  # slopes are drawn around 0, with about this magnitude
    distance_bias: int | None = None  # a table for distances smaller than this
    sinks: float | None = None  # drawn around this number
    data: Drawn | None = None  # by the name

    @property
    def drawn(self):
        return drawn_for(self.name) if self.data is None else self.data

    def build(self, dtype):
        """Draw the same numbers in any precision, read-only: a call must not write to its
        inputs."""
        random, drawn = np.random.default_rng(zlib.crc32(self.name.encode())), self.drawn
        arrays = drawn.arrays(random, self.query, self.key, self.value)
        options = {"is_causal": self.is_causal}
        if self.bool_mask is not None:
            options["mask"] = np.asarray(random.random(self.bool_mask) < 0.6)
        if self.float_mask is not None:
            hidden = random.random(self.float_mask) < 0.3
            mask = np.where(hidden, -np.inf, drawn.array(random, self.float_mask))
            options["mask"] = mask.astype(dtype)
        for name in ("query_offset", "key_lengths", "left_padding", "window", "scale", "softcap"):
            given = getattr(self, name)
            if given is not None:
                is_array = isinstance(given, tuple) and name != "window"
                options[name] = np.array(given) if is_array else given
        if self.scale is None:
            options |= drawn.options
        heads, inner = self.query[-3] if len(self.query) > 2 else 1, reference.arithmetic(dtype)
        if self.alibi_slopes is not None:
            slopes = self.alibi_slopes * random.standard_normal(heads)
            options["alibi_slopes"] = slopes.astype(inner)
        if self.distance_bias is not None:
            table = drawn.array(random, (heads, 2 * self.distance_bias - 1))
            options["distance_bias"] = table.astype(inner)
        if self.sinks is not None:
            sinks = self.sinks + random.standard_normal(heads)
            options["sinks"] = sinks.astype(inner)
        arrays = [array.astype(dtype) for array in arrays]
        for array in (*arrays, *options.values()):
            if isinstance(array, np.ndarray):
                array.setflags(write=False)
        return Problem(*arrays, options)


@functools.lru_cache(maxsize=16)
def solved(case, dtype):
    """Return a problem and the oracle's result, computed once for all targets, which follow one
    another (see `pytest_collection_modifyitems`)."""
    problem = case.build(dtype)
    return problem, reference.expected(*problem.arrays, **problem.options)


def _sizes():
    """Yield cases that go through each list of sizes once, while the other lists cycle at different
    rates, so that every size meets several partners, head counts and options."""
    lists = {"q": AROUND_LANES, "kv": KV_LENGTHS, "d": DIMS, "dv": DIMS}
    options = cycle(
        [
            lambda q, kv, h: {},
            lambda q, kv, h: {"is_causal": True, "query_offset": kv - q},
            lambda q, kv, h: {"bool_mask": (h, q, kv)},
            lambda q, kv, h: {"is_causal": True},
            lambda q, kv, h: {"float_mask": (q, kv)},
        ]
    )
    heads = cycle([(1, 1), (2, 1), (2, 2), (4, 2)])
    number = count()
    for walked, sizes in lists.items():
        for size in sizes:
            i = next(number)
            turn = {"q": 7 * i + 3, "kv": 5 * i + 1, "d": 4 * i, "dv": 11 * i + 2}
            q, kv, d, dv = (
                size if name == walked else lists[name][turn[name] % len(lists[name])]
                for name in lists
            )
            h, kv_h = next(heads)
            extra = next(options)(q, kv, h)
            name = f"size{i}-{h}of{kv_h}-{q}x{kv}x{d}x{dv}-{'-'.join(extra) or 'plain'}"
            yield Case(name, (h, q, d), (kv_h, kv, d), (kv_h, kv, dv), **extra)
    for q, kv, extra in [
        (300, 700, {}),
        (260, 1100, {"is_causal": True, "query_offset": 840}),
        (3, 2500, {}),
        (1, 4100, {"bool_mask": (4100,)}),
        (700, 30, {"float_mask": (700, 30)}),
        (520, 520, {"is_causal": True}),
    ]:
        name = f"long-{q}x{kv}-{'-'.join(extra) or 'plain'}"
        yield Case(name, (1, q, 40), (1, kv, 40), (1, kv, 24), **extra)


def _ranks():
    for rank in range(2, 7):
        axes = (2, 1, 3, 2)[6 - rank :]
        yield Case(f"rank{rank}", (*axes, 5, 8), (*axes, 7, 8), (*axes, 7, 6))
        yield Case(
            f"rank{rank}-mask", (*axes, 5, 8), (*axes, 7, 8), (*axes, 7, 6), bool_mask=(*axes, 5, 7)
        )
    yield Case("flat-query", (5, 8), (1, 7, 8), (1, 7, 6))
    yield Case("flat-query-in-batch", (5, 8), (3, 1, 7, 8), (3, 1, 7, 6))
    yield Case("flat-key-value", (4, 5, 8), (7, 8), (7, 6))
    yield Case("flat-key", (4, 5, 8), (7, 8), (2, 1, 7, 6))
    yield Case("flat-value", (2, 4, 5, 8), (2, 1, 7, 8), (7, 6))


def _broadcasts():
    """Yield batches that no array has alone: each drawn problem has an array with all of it."""
    shapes = (2, 1, 2, 5, 8), (1, 3, 2, 7, 8), (3, 2, 7, 4)
    yield Case("batch-all-ways", *shapes)
    for mask in ((7,), (3, 1, 1, 7), (2, 1, 1, 5, 1), (2, 3, 2, 5, 7)):
        yield Case(f"batch-mask-{mask}", *shapes, float_mask=mask)
    offsets = (-9, -1, 0), (1, 2, 30)
    yield Case("batch-offsets", *shapes, is_causal=True, query_offset=offsets)


def _offsets():
    """Yield offsets before and after all keys, which are not among the drawn ones."""
    for q_len, kv_len in [(1, 1), (17, 97), (130, 200)]:
        shapes = (2, q_len, 12), (1, kv_len, 12), (1, kv_len, 5)
        for offset in (-kv_len - q_len, kv_len, kv_len + 5):
            name = f"causal-{q_len}x{kv_len}{offset:+d}"
            yield Case(name, *shapes, is_causal=True, query_offset=offset)


def _empty():
    yield Case("no-queries", (2, 2, 0, 8), (2, 1, 7, 8), (2, 1, 7, 4))
    yield Case("no-keys", (2, 2, 5, 8), (2, 1, 0, 8), (2, 1, 0, 4))
    yield Case("no-keys-flat", (5, 8), (0, 8), (0, 4))
    yield Case("no-keys-causal", (2, 5, 8), (2, 0, 8), (2, 0, 4), is_causal=True, query_offset=3)
    yield Case("no-keys-mask", (2, 5, 8), (2, 0, 8), (2, 0, 4), bool_mask=(5, 0))
    yield Case("no-batch", (0, 2, 5, 8), (0, 1, 7, 8), (0, 1, 7, 4))
    yield Case("no-batch-by-broadcast", (0, 2, 5, 8), (1, 7, 8), (1, 1, 7, 4))
    yield Case("no-heads", (2, 0, 5, 8), (2, 0, 7, 8), (2, 0, 7, 4))
    yield Case("no-query-heads", (2, 0, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4))
    yield Case("no-queries-no-keys", (1, 0, 8), (1, 0, 8), (1, 0, 4))
    yield Case("no-values-columns", (2, 5, 8), (2, 7, 8), (2, 7, 0))


SIZES = list(_sizes())
AXES = [*_ranks(), *_broadcasts(), *_offsets(), *_empty()]


# Layouts: the same values elsewhere in memory. The memory in between is NaN, so that reading it
# shows.


def _within(array, shape, index):
    room = np.full(shape, True if array.dtype == bool else np.nan, array.dtype)
    room[index] = array
    return room[index]


def _swapped_storage(array, first, second):
    return array.swapaxes(first, second).copy(order="C").swapaxes(first, second)


def _misaligned(array):
    memory = np.zeros(array.nbytes + 1, np.uint8)
    moved = np.frombuffer(memory.data, array.dtype, array.size, offset=1).reshape(array.shape)
    moved[...] = array
    return moved


def _record_field(array):
    """Return an array with strides that are not multiples of the item size."""
    records = np.zeros(array.shape, [("before", "u1"), ("x", array.dtype), ("after", "u2")])
    records["x"] = array
    return records["x"]


def _read_only(array):
    copy = array.copy()
    copy.setflags(write=False)
    return copy


def _byte_swapped(array):
    # bfloat16 has only one byte order.
    swapped = array.dtype.newbyteorder("S")
    return array.copy() if array.dtype.name == "bfloat16" else array.astype(swapped)


def _explicit_order(array):
    """Return an array whose dtype spells out the machine's byte order, as from HDF5 and Zarr."""
    return array.copy().view(array.dtype.newbyteorder("<"))


LAYOUTS: dict[str, Callable] = {
    "fortran": lambda a: a.copy(order="F"),
    "heads_after_length": lambda a: _swapped_storage(a, -3 if a.ndim > 2 else -1, -2),
    "columns_before_rows": lambda a: _swapped_storage(a, -1, -2),
    "batch_last": lambda a: _swapped_storage(a, 0, -1),
    "every_second_column": lambda a: _within(
        a, (*a.shape[:-1], 2 * a.shape[-1] + 1), np.s_[..., 1 : 2 * a.shape[-1] + 1 : 2]
    ),
    "every_third_row": lambda a: _within(
        a, (*a.shape[:-2], 3 * a.shape[-2], a.shape[-1]), np.s_[..., ::3, :]
    ),
    "reversed_columns": lambda a: a[..., ::-1].copy()[..., ::-1],
    "reversed_rows": lambda a: a[..., ::-1, :].copy()[..., ::-1, :],
    "reversed": lambda a: np.flip(np.flip(a).copy()),
    "padded": lambda a: _within(
        a, tuple(n + 3 for n in a.shape), tuple(slice(1, n + 1) for n in a.shape)
    ),
    "misaligned": _misaligned,
    "record_field": _record_field,
    "read_only": _read_only,
    "byte_swapped": _byte_swapped,
    "explicit_order": _explicit_order,
}
