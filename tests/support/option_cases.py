"""The table of cases for the options: each option at its edges, then all options together.

The edges come from the arithmetic: tiles of 8 keys, blocks of 96 keys, strips of up to 64 rows, in
which the heads of a group are next to each other.
"""

import dataclasses
from itertools import cycle

import numpy as np

from cases import Case

SIZES = ((1, 1), (1, 97), (7, 9), (49, 97), (33, 20), (130, 200), (65, 289), (200, 96))
HEADS = ((1, 1), (2, 1), (2, 2), (6, 2))
SIDES = (None, 0, 1, 7, 8, 9, 47, 48, 95, 96, 97, 10**6, 2**62)
INF = float("inf")


def _shapes(heads, q_len, kv_len):
    h, kv_h = heads
    return (h, q_len, 12), (kv_h, kv_len, 12), (kv_h, kv_len, 5)


def _edges():
    """Yield each option at its edges, with sizes, heads and offsets in rotation."""
    others = cycle((0, None, 5, 96, 40))
    values = [("window", (side, other)) for side, other in zip(SIDES, others, strict=False)]
    values += [("window", (other, side)) for side, other in zip(SIDES, others, strict=False)]
    lengths = (0, 1, 7, 8, 9, 95, 96, 97, 191, 192, 193, 200)
    values += [(name, n) for name in ("key_lengths", "left_padding") for n in lengths]
    values += [("softcap", cap) for cap in (1e-3, 0.05, 1.0, 5.0, 50.0, 1e4, 1e30)]
    values += [("alibi_slopes", slope) for slope in (0.0, 0.02, 0.5, 4.0)]
    values += [("sinks", sink) for sink in (-30.0, -1.0, 0.0, 3.0, 30.0, 1e4)]
    sizes, heads = cycle(SIZES), cycle(HEADS)
    for number, (name, value) in enumerate(values):
        q_len, kv_len = next(sizes)
        if name in ("key_lengths", "left_padding"):
            kv_len = 200
        offsets = (0, kv_len - q_len, kv_len // 2, -q_len // 2, kv_len + 5, -q_len - 2)
        offset = offsets[number % len(offsets)]
        extra = ({}, {"is_causal": True}, {"float_mask": (q_len, kv_len)})[number % 3]
        what = "-".join([f"{name}-{value}", *extra])
        shapes = _shapes(next(heads), q_len, kv_len)
        yield Case(
            f"{what}-{q_len}x{kv_len}{offset:+d}",
            *shapes,
            **{name: value},
            query_offset=offset,
            **extra,
        )


def _long():
    """Yield cases with many blocks and several tasks."""
    for name, (q_len, kv_len), options in (
        ("window", (700, 1100), {"window": (300, 0), "query_offset": 400}),
        ("window-sinks", (900, 900), {"window": (20, 60), "sinks": (1.0, -INF), "softcap": 3.0}),
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
OPTIONS = [*_edges(), *_long(), *MIXES]


def _on_a_gpu(case):
    """Return the case without the options that the GPU kernels do not have."""
    changes = {"distance_bias": None}
    changes |= {
        name: None for name in ("scale", "softcap") if isinstance(getattr(case, name), tuple)
    }
    return dataclasses.replace(case, **changes)


GPU_MIXES = [_on_a_gpu(case) for case in MIXES]
GPU_OPTIONS = [_on_a_gpu(case) for case in OPTIONS]
