"""The problems that the tests share."""

import dataclasses
import functools
import zlib
from itertools import count, cycle, product, starmap

import numpy as np

import error_limits
import reference
from data_kinds import KINDS, SCALES, Drawn
from problem import Problem

GAUSSIAN = Drawn()
Shape = tuple[int, ...]

LANES = (4, 8, 16, 24, 48, 64)
AROUND_LANES = sorted({n for w in LANES for n in (1, w - 1, w, w + 1, 2 * w + 3)})
KV_LENGTHS = (1, 2, 7, 8, 9, 15, 16, 17, 33, 64, 95, 96, 97, 191, 192, 193, 287, 288, 289)
DIMS = (1, 2, 3, 5, 7, 8, 9, 13, 15, 16, 17, 24, 31, 32, 33, 47, 48, 49, 63, 64, 65)
DIMS += (79, 80, 95, 96, 97, 127, 128, 129, 191, 192, 255, 256)


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    query: Shape
    key: Shape
    value: Shape
    bool_mask: Shape | None = None
    float_mask: Shape | None = None
    is_causal: bool = False
    query_offset: int | str | tuple = 0
    window: tuple | None = None
    key_lengths: int | tuple | None = None
    left_padding: int | tuple | None = None
    scale: float | None = None
    softcap: float | None = None
    alibi_slopes: float | None = None  # slopes are drawn around 0, with about this magnitude
    distance_bias: int | None = None  # a table for distances smaller than this
    sinks: float | None = None  # drawn around this number
    data: Drawn = GAUSSIAN

    def build(self, dtype):
        """Draw the same numbers in any precision, read-only: a call must not write to its
        inputs."""
        random, drawn = np.random.default_rng(zlib.crc32(self.name.encode())), self.data
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
        rows = np.broadcast_shapes(*(shape[:-3] for shape in (self.query, self.key, self.value)))
        if any(len(shape) > 2 for shape in (self.query, self.key, self.value)):
            rows = *rows, heads
        rows = *rows, self.query[-2]
        arrays += random.standard_normal((*rows, self.value[-1])), random.standard_normal(rows)
        kinds = dtype, dtype, dtype, dtype, inner
        arrays = [array.astype(kind) for array, kind in zip(arrays, kinds, strict=True)]
        for array in (*arrays, *options.values()):
            if isinstance(array, np.ndarray):
                array.setflags(write=False)
        return Problem(*arrays[:3], options, *arrays[3:])


@functools.lru_cache(maxsize=16)
def solved(case, dtype):
    """Return a problem and the oracle's result, computed once for all targets, which follow one
    another."""
    problem = case.build(dtype)
    return problem, error_limits.expected(*problem.arrays, **problem.options)


@functools.lru_cache(maxsize=16)
def build(case, dtype, dropout=None):
    """Build the problem of a case, in which every third problem has dropout, unless `dropout`
    specifies the probability."""
    problem, number = case.build(dtype), zlib.crc32(case.name.encode())
    if dropout is None:
        dropout = (0.0, 0.0, 0.35)[number % 3]
    if not dropout:
        return problem
    options = problem.options | {"dropout_p": dropout, "dropout_seed": number * 2**30 + 7}
    if number % 2:
        options["dropout_origin"] = (number % 7, number % 5, number % 2**34)
    return dataclasses.replace(problem, options=options)


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
    data = cycle(starmap(Drawn, product(KINDS, SCALES)))
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
            if i % 2:
                extra["data"] = next(data)
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
