"""The calls that form scores, as functions of a problem that return tuples of arrays."""

import numpy as np
from hypothesis import strategies as st

import regard
from drawn_problems import problems
from problem import drawn

sdpa = regard.scaled_dot_product_attention
LSE = {"return_lse": True}
STATISTICS = (*regard.AttentionSummary._fields[:9], "top_k")
SINGLE = ["float32", "float16"]  # types that precision accepts


def attend(p, **extra):
    return sdpa(*p.arrays, **p.options, **LSE, **extra)


def weights(p, **extra):
    return attend(p, return_weights=True, **extra)


def int8(p, **extra):
    return attend(p, precision="int8", **extra)


def bfloat16(p, **extra):
    return attend(p, precision="bfloat16", **extra)


def gradients(p, **extra):
    # The output and lse are those of one thread, so that only the backward call varies.
    found = p.gradients(p.attend(threads=1), **extra)
    return tuple(x for x in found if x is not None)


def tangents_of(p):
    return [drawn(x.shape, x.dtype, seed) for seed, x in enumerate(p.arrays)]


def tangents(p, along=None, **extra):
    along = tangents_of(p) if along is None else along
    return regard.scaled_dot_product_attention_jvp(*p.arrays, *along, **p.options, **LSE, **extra)


def _without_dropout(p):
    """Return a query of the whole batch, and options without dropout."""
    options = {k: v for k, v in p.options.items() if not k.startswith("dropout")}
    return np.broadcast_to(p.query, p.batch + p.query.shape[-3:]), options


def statistics(p, **extra):
    query, options = _without_dropout(p)
    *parts, top = regard.summarize_attention(
        query, p.key, **options, statistics=STATISTICS, top_k=3, **extra
    )
    return *(part for part in parts if part is not None), *top


def picture(p, **extra):
    query, options = _without_dropout(p)
    shape = min(p.query.shape[-2], 5), min(p.key.shape[-2], 7)
    return (regard.attention_map(query, p.key, shape=shape, **options, **extra),)


def stream(p, **extra):
    chunks = regard.KeyValueChunks(p.key, p.value, length=max(p.key.shape[-2] // 3, 1))
    return regard.attend_stream(p.query, chunks, **p.options, **LSE, **extra)


FAMILIES = {
    each.__name__: each
    for each in (
        *(attend, weights, int8, bfloat16, gradients, tangents, statistics, picture, stream),
    )
}


@st.composite
def calls(draw, names=tuple(FAMILIES), **limits):
    """Draw a function of a problem, and a problem for it."""
    family = FAMILIES[draw(st.sampled_from(names))]
    types = SINGLE if family in (int8, bfloat16) else ["float32", "float64", *SINGLE[1:]]
    return family, draw(problems(types=types, **limits))
