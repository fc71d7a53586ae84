"""The table of cases for the options: each option at its edges, then all options together.

The edges come from the arithmetic: tiles of 8 keys, blocks of 96 keys, strips of up to 64 rows, in
which the heads of a group are next to each other.
"""

import dataclasses
from itertools import cycle, product

import numpy as np

from cases import Case

SIDES = (None, 0, 1, 7, 8, 9, 47, 48, 95, 96, 97, 10**6, 2**62)
SIZES = ((1, 1), (1, 97), (7, 9), (49, 97), (33, 20), (130, 200), (65, 289), (200, 96))
HEADS = ((1, 1), (2, 1), (2, 2), (6, 2))
LENGTHS = (0, 1, 7, 8, 9, 95, 96, 97, 191, 192, 193, 200)


def _shapes(heads, q_len, kv_len, batch=(), dims=(12, 5)):
    h, kv_h = heads
    return (
        (*batch, h, q_len, dims[0]),
        (*batch, kv_h, kv_len, dims[0]),
        (*batch, kv_h, kv_len, dims[1]),
    )


def _windows():
    """Yield every window side with several others, at offsets before, within and beyond the
    keys."""
    heads, others = cycle(HEADS), cycle((0, None, 5, 96, 40))
    for number, (side, (q_len, kv_len)) in enumerate(product(SIDES, SIZES)):
        offsets = (0, kv_len - q_len, kv_len // 2, -q_len // 2, -3, kv_len + 5, -q_len - 2)
        offset = offsets[number % len(offsets)]
        other = next(others)
        window = (side, other) if number % 2 else (other, side)
        name = f"window-{window[0]},{window[1]}-{q_len}x{kv_len}{offset:+d}"
        yield Case(
            name,
            *_shapes(next(heads), q_len, kv_len),
            window=window,
            query_offset=offset,
            is_causal=number % 5 == 0,
        )
    batch = _shapes((4, 2), 60, 200, (2, 1, 3))
    offsets = ((-70, -20, 0), (3, 100, 140)), ((160,), (-9,))
    for (i, offset), window in product(enumerate(offsets), ((0, 0), (30, None), (None, 2), (9, 7))):
        offset = tuple((row,) for row in offset)
        yield Case(f"window-{window}-offsets{i}", *batch, window=window, query_offset=offset)
    for kind in ("bool_mask", "float_mask"):
        yield Case(f"window-{kind}", *batch, window=(40, 3), query_offset=90, **{kind: (60, 200)})
    yield Case("window-decode", *_shapes((8, 2), 1, 3000, (2,)), window=(255, 0), query_offset=2999)
    yield Case("window-long", *_shapes((1, 1), 400, 400), window=(16, 16))


def _lengths():
    for number, length in enumerate(LENGTHS):
        heads, q_len = HEADS[number % len(HEADS)], (1, 5, 50, 70)[number % 4]
        shapes = _shapes(heads, q_len, 200)
        yield Case(f"length-{length}", *shapes, key_lengths=length)
        yield Case(
            f"length-{length}-causal",
            *shapes,
            key_lengths=length,
            is_causal=True,
            query_offset=length - q_len // 2,
        )
        yield Case(f"length-{length}-mask", *shapes, key_lengths=length, float_mask=(q_len, 200))
    batch = (2, 1, 2, 5, 8), (1, 3, 2, 107, 8), (3, 2, 107, 4)
    lengths = {"(1)": (96,), "(3)": (0, 97, 107), "(2,1)": ((8,), (95,)), "(1,1)": ((1,),)}
    lengths["(2,3)"] = ((0, 1, 7), (96, 97, 107))
    for name, length in lengths.items():
        yield Case(f"lengths-{name}", *batch, key_lengths=length)
        yield Case(f"lengths-{name}-mask", *batch, key_lengths=length, bool_mask=(2, 1, 1, 5, 107))
    flat = (5, 8), (107, 8)
    yield Case("lengths-of-value", *flat, (2, 1, 107, 4), key_lengths=(60, 100))
    yield Case("length-flat", *flat, (107, 4), key_lengths=50)
    yield Case("length-no-keys", (2, 5, 8), (2, 0, 8), (2, 0, 4), key_lengths=0)
    yield Case("length-no-queries", (2, 0, 8), (2, 9, 8), (2, 9, 4), key_lengths=3)


def _paddings():
    for number, padding in enumerate(LENGTHS):
        heads, q_len = HEADS[number % len(HEADS)], (1, 5, 50, 70)[number % 4]
        shapes = _shapes(heads, q_len, 200)
        yield Case(f"padding-{padding}", *shapes, left_padding=padding)
        yield Case(
            f"padding-{padding}-causal",
            *shapes,
            left_padding=padding,
            is_causal=True,
            query_offset=200 - q_len,
            window=(None, 60)[number % 2] and (60, 0),
        )
        yield Case(f"padding-{padding}-mask", *shapes, left_padding=padding, bool_mask=(q_len, 200))
    batch = (2, 1, 2, 5, 8), (1, 3, 2, 107, 8), (3, 2, 107, 4)
    for name, padding in {"(3)": (0, 97, 107), "(2,1)": ((8,), (95,)), "(1)": (96,)}.items():
        yield Case(f"paddings-{name}", *batch, left_padding=padding, alibi_slopes=0.3)
        yield Case(f"paddings-{name}-lengths", *batch, left_padding=padding, key_lengths=96)
    yield Case("padding-long", *_shapes((2, 1), 3, 4000), left_padding=3100, sinks=1.0)


def _softcaps():
    """Yield caps from one that leaves nothing of a score to one that leaves everything, for small
    and for saturating scores."""
    heads = cycle(HEADS)
    for cap, scale in product((1e-3, 0.05, 1.0, 5.0, 50.0, 1e4, 1e30), (None, 0.01, 20.0, -3.0)):
        name = f"softcap-{cap:g}-scale-{scale}"
        yield Case(name, *_shapes(next(heads), 19, 110), softcap=cap, scale=scale)
    for kind, options in product(
        ("bool_mask", "float_mask", None),
        ({"is_causal": True, "query_offset": 20}, {"window": (30, 4), "query_offset": 20}, {}),
    ):
        extra = {kind: (4, 60, 110)} if kind else {}
        name = f"softcap-{'-'.join([*options, *extra]) or 'decode'}"
        q_len = 60 if extra or options else 1
        yield Case(name, *_shapes((4, 2), q_len, 110), softcap=2.0, scale=1.0, **options, **extra)


def _alibi():
    for number, (heads, (q_len, kv_len)) in enumerate(product((*HEADS, (8, 1), (5, 5)), SIZES)):
        offsets = (0, kv_len - q_len, kv_len // 2, -q_len // 2, 3 * kv_len, -2 * q_len)
        offset = offsets[number % len(offsets)]
        slope = (0.5, 0.02, 4.0)[number % 3]
        extra = ({}, {"is_causal": True}, {"float_mask": (heads[0], 1, kv_len)})[number % 4 % 3]
        name = f"alibi-{slope}-{heads[0]}of{heads[1]}-{q_len}x{kv_len}{offset:+d}"
        name += "-".join(["", *extra])
        shapes = _shapes(heads, q_len, kv_len)
        yield Case(name, *shapes, alibi_slopes=slope, query_offset=offset, **extra)
    batch = (2, 1, 2, 5, 8), (1, 3, 2, 107, 8), (3, 2, 107, 4)
    offsets = {"(3)": (-2, 50, 106), "(2,1)": ((0,), (500,)), "(2,3)": ((-9, -1, 0), (1, 2, 30))}
    for name, offset in offsets.items():
        yield Case(f"alibi-offsets-{name}", *batch, alibi_slopes=0.3, query_offset=offset)
    yield Case("alibi-zero", *_shapes((2, 1), 9, 20), alibi_slopes=0.0)
    yield Case("alibi-flat", (5, 8), (9, 8), (9, 4), alibi_slopes=0.5)
    far = _shapes((2, 2), 3, 4000)
    yield Case("alibi-far", *far, alibi_slopes=2.0**-8, query_offset=3997)
    yield Case("alibi-window", *far, alibi_slopes=2.0**-4, query_offset=3997, window=(511, 0))


def _distances():
    """Yield tables that reach no further than a tile, no further than the keys, and beyond them."""
    for number, (heads, (q_len, kv_len)) in enumerate(product((*HEADS, (8, 1)), SIZES)):
        offsets = (0, kv_len - q_len, kv_len // 2, -q_len // 2, 3 * kv_len, -2 * q_len)
        offset = offsets[number % len(offsets)]
        reach = (1, 2, 9, 48, 150, 1000)[number // 2 % 6]
        extra = ({}, {"is_causal": True}, {"float_mask": (heads[0], 1, kv_len)})[number % 4 % 3]
        name = f"distances-{reach}-{heads[0]}of{heads[1]}-{q_len}x{kv_len}{offset:+d}"
        shapes = _shapes(heads, q_len, kv_len)
        name += "-".join(["", *extra])
        yield Case(name, *shapes, distance_bias=reach, query_offset=offset, **extra)
    batch = (2, 1, 2, 5, 8), (1, 3, 2, 107, 8), (3, 2, 107, 4)
    for name, offset in {"(3)": (-2, 50, 106), "(2,3)": ((-9, -1, 0), (1, 2, 30))}.items():
        yield Case(f"distances-offsets-{name}", *batch, distance_bias=40, query_offset=offset)
    flat = (5, 8), (9, 8), (9, 4)
    yield Case("distances-flat", *flat, distance_bias=3, alibi_slopes=0.5)
    far = _shapes((2, 2), 3, 4000)
    yield Case("distances-far", *far, distance_bias=3000, query_offset=3997, softcap=2.0)
    window = {"window": (511, 0), "query_offset": 3997, "alibi_slopes": 2.0**-8}
    yield Case("distances-window", *far, distance_bias=300, **window)


def _numbers_of_heads():
    """Yield scales and caps that differ between heads, which may share keys."""
    inf = float("inf")
    for (heads, kv_heads), (q_len, kv_len) in product(
        ((2, 2), (4, 2), (6, 2), (8, 1)), SIZES[1::3]
    ):
        shapes = _shapes((heads, kv_heads), q_len, kv_len, (2,))
        scales = tuple(0.2 + 0.3 * h for h in range(heads))
        caps = tuple((inf, 0.5, 1e30, 3.0)[h % 4] for h in range(heads))
        name = f"{heads}of{kv_heads}-{q_len}x{kv_len}"
        yield Case(f"scales-{name}", *shapes, scale=scales)
        yield Case(f"caps-{name}", *shapes, softcap=caps)
        both = {"scale": scales[::-1], "softcap": caps, "is_causal": True}
        yield Case(f"scales-caps-{name}", *shapes, **both, query_offset=kv_len // 2)
    shapes = (2, 1, 3, 40, 8), (3, 3, 50, 8), (3, 3, 50, 8)
    entries = ((0.1, 0.2, 0.3), (1.0, -0.5, 0.0))
    yield Case("scales-of-entries", *shapes, scale=tuple((row,) for row in entries))


def _sinks():
    inf = float("inf")
    for sinks in (-30.0, -1.0, 0.0, 3.0, 30.0, 1e4):
        for heads, (q_len, kv_len) in zip(HEADS, ((1, 1), (5, 97), (70, 200), (3, 0)), strict=True):
            name = f"sinks{sinks:+g}-{heads[0]}of{heads[1]}-{q_len}x{kv_len}"
            yield Case(name, *_shapes(heads, q_len, kv_len), sinks=sinks)
    shapes = _shapes((4, 2), 30, 110, (2,))
    some = (-inf, 2.0, -inf, -3.5)
    for sinks in (some, (-inf,) * 4, 1.0):
        name = "sinks" + ("-drawn" if sinks == 1.0 else f"{[s for s in sinks if s > -inf]}")
        yield Case(f"{name}-causal", *shapes, sinks=sinks, is_causal=True, query_offset=(-20, 50))
        yield Case(f"{name}-bool", *shapes, sinks=sinks, bool_mask=(2, 4, 30, 1))
        yield Case(f"{name}-float", *shapes, sinks=sinks, float_mask=(2, 4, 30, 110))
        yield Case(f"{name}-lengths", *shapes, sinks=sinks, key_lengths=(0, 100))
        yield Case(f"{name}-window", *shapes, sinks=sinks, window=(3, 2), query_offset=(-15, 95))
        yield Case(f"{name}-softcap", *shapes, sinks=sinks, softcap=0.5, scale=10.0)
    yield Case("sinks-flat", (5, 8), (9, 8), (9, 4), sinks=0.5)
    yield Case("sinks-many-keys", *_shapes((2, 1), 2, 2500), sinks=5.0)


def _long():
    """Yield cases with many blocks and several tasks."""
    inf = float("inf")
    for name, (q_len, kv_len), options in (
        ("window", (700, 1100), {"window": (300, 0), "query_offset": 400}),
        ("window-sinks", (900, 900), {"window": (20, 60), "sinks": (1.0, -inf), "softcap": 3.0}),
        ("alibi", (500, 1500), {"alibi_slopes": 0.02, "is_causal": True, "query_offset": 1000}),
        ("lengths", (300, 2000), {"key_lengths": 1234, "bool_mask": (300, 2000), "softcap": 9.0}),
        ("decode", (1, 6000), {"window": (4000, None), "query_offset": 5999, "sinks": 2.0}),
    ):
        yield Case(f"long-{name}", *_shapes((2, 1), q_len, kv_len), **options)


BATCHES = (
    ((), (), ()),
    ((2,), (2,), (2,)),
    ((1,), (), (3,)),
    ((2, 1), (3,), ()),
    ((), (2, 1), (2, 3)),
)


def _mix(number):
    """Draw options together; half of the mixes use all options."""
    random = np.random.default_rng(number)

    def pick(*candidates):
        return candidates[random.integers(len(candidates))]

    def cut(axes):
        """Return a shape that broadcasts to `axes`."""
        axes = tuple(pick(n, n, 1) for n in axes)
        return axes[random.integers(len(axes) + 1) :]

    def per_batch(low, high):
        return _as_tuples(random.integers(low, high + 1, cut(batch)).tolist())

    h, kv_h = pick((1, 1), (2, 2), (4, 2), (6, 3), (8, 2), (5, 1))
    q_len = pick(*(n for n in (1, 3, 8, 17, 48, 49, 70) if n * h <= 300))
    kv_len = pick(30, 95, 96, 97, 192, 200, 300)
    batches = [b for b in BATCHES if np.prod(np.broadcast_shapes(*b)) * h * q_len <= 600]
    q_batch, k_batch, v_batch = pick(*batches)
    batch = np.broadcast_shapes(q_batch, k_batch, v_batch)
    mask = pick("bool_mask", "float_mask")
    options = {
        "window": (pick(5, 50, 97, None), pick(0, 2, 40, None)),
        "key_lengths": per_batch(2 * kv_len // 3, kv_len),
        "left_padding": per_batch(0, 2),
        "softcap": pick(0.7, 3.0, 30.0),
        "alibi_slopes": pick(0.03, 0.5),
        "distance_bias": pick(3, 20, 90, 400),
        "sinks": pick(-2.0, 1.0, (float("-inf"), *range(h - 1))),
        "is_causal": True,
        "scale": pick(-0.4, 1.5, tuple(0.1 + 0.2 * i for i in range(h))),
        mask: (*cut((*batch, h, q_len)), kv_len),
    }
    if number % 2:
        kept = random.permutation(list(options))[: random.integers(3, 7)]
        options = {name: options[name] for name in options if name in kept}
    options["query_offset"] = per_batch(-q_len // 4, kv_len // 2)
    dim, value_dim = pick(1, 8, 19, 64), pick(3, 16, 40)
    what = "-".join(options) if number % 2 else f"all-{mask}"
    return Case(
        f"mix{number}-{h}of{kv_h}-{q_len}x{kv_len}-{what}",
        (*q_batch, h, q_len, dim),
        (*k_batch, kv_h, kv_len, dim),
        (*v_batch, kv_h, kv_len, value_dim),
        **options,
    )


def _as_tuples(numbers):
    return tuple(map(_as_tuples, numbers)) if isinstance(numbers, list) else numbers


MIXES = [_mix(number) for number in range(72)]
OPTIONS = [
    *_windows(),
    *_lengths(),
    *_paddings(),
    *_softcaps(),
    *_alibi(),
    *_distances(),
    *_numbers_of_heads(),
    *_sinks(),
    *_long(),
    *MIXES,
]


def _on_a_gpu(case):
    """Return the case without the options that the GPU kernels do not have."""
    changes = {"distance_bias": None}
    changes |= {
        name: None for name in ("scale", "softcap") if isinstance(getattr(case, name), tuple)
    }
    return dataclasses.replace(case, **changes)


GPU_MIXES = [_on_a_gpu(case) for case in MIXES]
GPU_OPTIONS = [
    _on_a_gpu(case) for case in OPTIONS if not case.name.startswith(("distances", "scales", "caps"))
]
