"""Results over inputs: every array that a call reads, in the memory of every array that it writes.
An overlap is refused before anything is written, or the result is right."""

import re

import numpy as np
import pytest

import regard

HEADS, QUERIES, KEYS, DIM = 4, 6, 8, 8
rng = np.random.default_rng(0)


def normal(*shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


QKV = {
    "query": normal(2, HEADS, QUERIES, DIM),
    "key": normal(2, 2, KEYS, DIM),
    "value": normal(2, 2, KEYS, DIM),
}
PACKED = {name: np.concatenate(list(array.swapaxes(1, 2))) for name, array in QKV.items()}
STARTS = {"query_starts": np.array([0, 5, 2 * QUERIES]), "key_starts": np.array([0, 7, 2 * KEYS])}
RAGGED = PACKED | STARTS
BIAS = {"distance_bias": normal(HEADS, 15)}
OPTIONS = BIAS | {
    "alibi_slopes": np.full(HEADS, 0.5),
    "sinks": np.full(HEADS, 0.5),
    "scale": np.linspace(0.5, 1, HEADS),
    "key_lengths": np.array([7, 6]),
    "left_padding": np.array([1, 0]),
}
OFFSET, SOFTCAP = {"query_offset": np.array([1, 2])}, {"softcap": np.linspace(5, 9, HEADS)}
MASKS = {"bool mask": rng.random((QUERIES, KEYS)) < 0.7, "float mask": normal(QUERIES, KEYS)}


def masked(inputs):
    """Return the inputs with their masks as one argument, a pair if there are two."""
    masks = [inputs[name] for name in MASKS if name in inputs]
    others = {name: each for name, each in inputs.items() if name not in MASKS}
    return others | ({"mask": masks[0] if len(masks) == 1 else tuple(masks)} if masks else {})


def plain(call):
    return lambda out, **inputs: [call(**masked(inputs), out=out["out"])]


def backward(call):
    def gradients(out, **inputs):
        slots = regard.AttentionGradients(*map(out.get, regard.AttentionGradients._fields))
        found = call(**masked(inputs), with_respect_to=list(out), out=slots)
        return [getattr(found, name) for name in out]

    return gradients


def attend_cached(**inputs):
    cache = regard.KVCache(2, 2, DIM)
    cache.append(QKV["key"], QKV["value"])
    return cache.attend(**inputs)


def stream(key, value, **inputs):
    return regard.attend_stream(chunks=regard.KeyValueChunks(key, value, length=3), **inputs)


def state(call, inputs):
    output, lse = call(**inputs, return_lse=True)
    return {
        "output": output,
        "lse": lse,
        "grad_output": normal(*output.shape),
        "grad_lse": normal(*lse.shape),
    }


sdpa, ragged = regard.scaled_dot_product_attention, regard.scaled_dot_product_attention_ragged
OUTPUT, PACKED_OUTPUT = state(sdpa, QKV), state(ragged, RAGGED)
pages = {
    "query": normal(2, HEADS, 2, DIM),
    "key_pages": normal(3, 4, 2, DIM),
    "value_pages": normal(3, 4, 2, DIM),
    "block_table": np.array([[0, 2], [1, 0]], np.int32),
    "lengths": np.array([6, 4]),
}

# A call of (out by name, inputs), the inputs, and arrays like those that it writes.
CALLS = {
    "scaled_dot_product_attention": (
        plain(sdpa),
        {**QKV, **OPTIONS, **OFFSET, **SOFTCAP, **MASKS},
        {"out": OUTPUT["output"]},
    ),
    "scaled_dot_product_attention, 16 bits": (
        plain(sdpa),
        {**QKV, "float mask": normal(QUERIES, KEYS, dtype=np.float16)},
        {"out": OUTPUT["output"]},
    ),
    "scaled_dot_product_attention_ragged": (
        plain(ragged),
        {**RAGGED, **OPTIONS, **SOFTCAP, "float mask": normal(2 * QUERIES, HEADS, 9)},
        {"out": PACKED_OUTPUT["output"]},
    ),
    "scaled_dot_product_attention_backward": (
        backward(regard.scaled_dot_product_attention_backward),
        {**QKV, **OUTPUT, **OPTIONS, **OFFSET, **MASKS},
        {**QKV, "mask": MASKS["float mask"]},
    ),
    "scaled_dot_product_attention_ragged_backward": (
        backward(regard.scaled_dot_product_attention_ragged_backward),
        {**RAGGED, **PACKED_OUTPUT, **BIAS},
        PACKED,
    ),
    "KVCache.attend": (
        plain(attend_cached),
        {"query": QKV["query"], **BIAS, "float mask": MASKS["float mask"]},
        {"out": OUTPUT["output"]},
    ),
    "paged_attention": (
        plain(regard.paged_attention),
        {**pages, **BIAS, "float mask": normal(2, 6)},
        {"out": pages["query"]},
    ),
    "attend_stream": (
        plain(stream),
        {**QKV, **BIAS, "sinks": OPTIONS["sinks"], "float mask": MASKS["float mask"]},
        {"out": OUTPUT["output"]},
    ),
    "matmul": (
        plain(regard.matmul),
        {"a": normal(5, 6), "b": normal(6, 7)},
        {"out": normal(5, 7)},
    ),
    "scale": (
        lambda out, scores: [regard.scale(scores, 0.5, out=out["out"])],
        {"scores": normal(5, 6)},
        {"out": normal(5, 6)},
    ),
    "apply_mask": (
        lambda out, scores, mask: [regard.apply_mask(scores, mask, out=out["out"])],
        {"scores": normal(5, 6), "mask": normal(6)},
        {"out": normal(5, 6)},
    ),
    "softmax": (plain(regard.softmax), {"x": normal(5, 6)}, {"out": normal(5, 6)}),
}


@pytest.mark.parametrize(
    ("call", "written", "read"),
    [
        (call, out, name)
        for call, (_, inputs, outs) in CALLS.items()
        for out in outs
        for name in inputs
    ],
)
@pytest.mark.parametrize("first", [0, 1], ids=["begin", "end"])
def test_a_result_over_an_input(call, written, read, first):
    """They begin or end together in one block of memory."""
    compute, inputs, outs = CALLS[call]
    fresh = {name: np.empty_like(x) for name, x in outs.items()}
    wanted = [np.array(x) for x in compute(fresh, **inputs)]
    given, like = inputs[read], outs[written]
    size = max(given.nbytes, like.nbytes)
    memory = np.zeros(size, np.uint8)
    shared, over = (
        memory[(size - x.nbytes) * first :][: x.nbytes].view(x.dtype).reshape(x.shape)
        for x in (given, like)
    )
    shared[...] = given
    before = memory.copy()
    refusal = None
    try:
        found = compute(fresh | {written: over}, **inputs | {read: shared})
    except ValueError as error:
        refusal = str(error)
    if refusal is not None:
        assert re.search(r"\bout\b.*overlap", refusal)
        assert np.array_equal(memory, before)
        return
    for result, right in zip(found, wanted, strict=True):
        assert np.array_equal(result, right)
