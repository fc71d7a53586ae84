"""Problems that Hypothesis draws: whatever attention accepts, in arrays that are small but have
lengths around the edges of tiles, blocks and vectors.

One drawn number determines the elements. The structure (sizes, types, options) is drawn choice by
choice, so a failing problem is reduced to one that has only the options that matter.
"""

import contextlib
import dataclasses
import os

import hypothesis
import numpy as np
from hypothesis import strategies as st

import reference
import regard
import regard._core
from data_kinds import KINDS, SCALES, Drawn
from layouts import LAYOUTS
from problem import Problem

Q_LENGTHS = (1, 2, 3, 8, 17, 24, 33, 48, 49, 70, 130)
KV_LENGTHS = (1, 2, 7, 8, 9, 33, 64, 95, 96, 97, 150, 191, 192, 193, 300, 700)
DIMS = (1, 2, 3, 5, 8, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 96, 128, 129)
HEADS = ((1, 1), (2, 1), (2, 2), (4, 2), (6, 2), (5, 1), (8, 1))
MOST_SCORES, MOST_ROWS = 30_000, 500  # the reference implementation takes some milliseconds

TYPES = ["float32", "float64", "float16"]
with contextlib.suppress(ImportError):
    import ml_dtypes

    TYPES.append(ml_dtypes.bfloat16)

TARGETS = st.sampled_from(regard.cpu_targets())


def examples(number):
    """Return settings for a test of this many problems, the same in every run. `--every` draws
    more, and `--one-in` fewer."""
    return hypothesis.settings(
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=max(10, int(number * float(os.environ.get("REGARD_EXAMPLES", "1")))),
        suppress_health_check=list(hypothesis.HealthCheck),
    )


@contextlib.contextmanager
def on_target(name):
    regard._core.testing.set_target(name)
    try:
        yield
    finally:
        regard._core.testing.set_target(None)


@dataclasses.dataclass(frozen=True)
class Shapes:
    batch: tuple
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int

    @property
    def scores(self):
        return (*self.batch, self.heads, self.q_len, self.kv_len)


@st.composite
def problems(draw, *, types=TYPES, mixed=True, dropout=True, gaussian=False, ends=True):
    """Draw a problem and the gradients that its gradients start from. `gaussian` leaves out
    numbers whose scores are large, and `ends` allows offsets that say where the text ends, not a
    number."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shapes = draw(_shapes())
    dtype = np.dtype(draw(st.sampled_from(types)))
    kinds = [dtype] * 3
    if mixed and draw(st.integers(0, 7)) == 7:
        kinds = [np.dtype(draw(st.sampled_from(types))) for _ in range(3)]
    inner = reference.arithmetic(reference.result_type(*(np.empty(0, t) for t in kinds)))
    drawn = Drawn()
    if not gaussian and draw(st.booleans()):
        drawn = Drawn(draw(st.sampled_from(list(KINDS))), draw(st.sampled_from(SCALES)))

    head_dim, value_dim = draw(st.sampled_from(DIMS)), draw(st.sampled_from(DIMS))
    inner_shapes = (
        (shapes.heads, shapes.q_len, head_dim),
        (shapes.kv_heads, shapes.kv_len, head_dim),
        (shapes.kv_heads, shapes.kv_len, value_dim),
    )
    cuts = [draw(_broadcastable(shapes.batch)) for _ in range(3)]
    cuts[draw(st.integers(0, 2))] = shapes.batch  # together they have the batch
    arrays = drawn.arrays(random, *(c + s for c, s in zip(cuts, inner_shapes, strict=True)))
    arrays = [x.astype(t) for x, t in zip(arrays, kinds, strict=True)]
    options = draw(_options(random, shapes, drawn, inner, ends)) | drawn.options
    if gaussian:
        options.pop("scale", None)
    if dropout and draw(st.integers(0, 2)) == 2:
        options |= {"dropout_p": 0.3, "dropout_seed": draw(st.integers(0, 2**64 - 1))}
        if draw(st.booleans()):
            places = st.integers(0, 9) | st.integers(0, 2**31)
            options["dropout_origin"] = draw(st.tuples(places, places, places))
    result = reference.result_type(*arrays)
    grad_output = random.standard_normal((*shapes.scores[:-1], value_dim)).astype(result)
    grad_lse = random.standard_normal(shapes.scores[:-1]).astype(inner)
    if draw(st.booleans()):
        grad_lse[...] = 0
    return Problem(*arrays, options, grad_output, grad_lse)


@st.composite
def _shapes(draw):
    batch = draw(st.sampled_from([(), (1,), (2,), (3,), (2, 2), (2, 1, 3)]))
    heads, kv_heads = draw(st.sampled_from(HEADS))
    rows = int(np.prod(batch)) * heads
    q_len = draw(st.sampled_from([n for n in Q_LENGTHS if n == 1 or n * rows <= MOST_ROWS]))
    most = MOST_SCORES // (rows * q_len)
    kv_len = draw(st.sampled_from([n for n in KV_LENGTHS if n <= max(most, 8)]))
    return Shapes(batch, heads, kv_heads, q_len, kv_len)


@st.composite
def _broadcastable(draw, axes):
    """Draw a shape that broadcasts to `axes`: some are 1, some leading ones are missing."""
    if not axes or draw(st.booleans()):
        return tuple(axes)
    axes = tuple(draw(st.sampled_from([1, n])) for n in axes)
    return axes[draw(st.integers(0, len(axes))) :]


@st.composite
def _options(draw, random, shapes, drawn, inner, ends):
    heads, q_len, kv_len = shapes.heads, shapes.q_len, shapes.kv_len

    def one_in(n):
        return draw(st.integers(1, n)) == n

    def per_batch(low, high):
        return random.integers(low, high + 1, draw(_broadcastable(shapes.batch)))

    def shown(shape):
        return np.asarray(random.random(shape) < draw(st.sampled_from([0.1, 0.7, 0.95])))

    def bias(shape):
        numbers = drawn.array(random, (1, *shape))[0]
        kept = draw(st.sampled_from([inner, inner, "float16", "float64"]))
        return np.where(shown(shape), numbers, -np.inf).astype(kept)

    options = {"is_causal": draw(st.booleans())}
    kind = draw(st.sampled_from(["none", "none", "bool", "float", "pair"]))
    if kind != "none":
        mask_shapes = [draw(_broadcastable(shapes.scores)) for _ in range(2)]
        masks = {"bool": shown, "float": bias}
        if kind == "pair":
            options["mask"] = shown(mask_shapes[0]), bias(mask_shapes[1])
        else:
            options["mask"] = masks[kind](mask_shapes[0])
    if draw(st.booleans()):
        options["query_offset"] = per_batch(-q_len, kv_len)
        if ends and one_in(4):
            options["query_offset"] = "end"
    if one_in(3):
        side = st.none() | st.sampled_from([0, 1, 7, 8, 40, 95, 96, 2**62])
        options["window"] = draw(st.tuples(side, side))
    if one_in(4):
        options["key_lengths"] = per_batch(kv_len // 2, kv_len)
    if one_in(4):
        options["left_padding"] = per_batch(0, kv_len // 2)
    if one_in(4):
        options["softcap"] = draw(st.sampled_from([0.5, 3.0, 30.0]))
        if one_in(2):
            options["softcap"] = random.choice([0.5, 3.0, np.inf], heads)
    if one_in(4):
        options["scale"] = draw(st.sampled_from([-0.4, 0.0, 1.5]))
        if one_in(2):
            options["scale"] = random.uniform(0.1, 1, heads)
    if one_in(4):
        rows = draw(_broadcastable((*shapes.batch,)))
        options["alibi_slopes"] = (random.standard_normal((*rows, heads)) / 16).astype(inner)
    if one_in(4):
        reach = draw(st.sampled_from([1, 2, 20, 400]))
        options["distance_bias"] = drawn.array(random, (heads, 2 * reach - 1)).astype(inner)
    if one_in(4):
        absent = random.random(heads) < 0.2
        options["sinks"] = np.where(absent, -np.inf, random.standard_normal(heads)).astype(inner)
    return options


def laid_out(draw, array):
    """Return the array elsewhere in memory: with other strides, read-only, misaligned."""
    names = [name for name in LAYOUTS if array.ndim > 1 or name in ("misaligned", "read_only")]
    return LAYOUTS[draw(st.sampled_from(names))](array) if array.ndim else array
