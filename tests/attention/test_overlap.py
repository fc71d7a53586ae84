"""Test results over inputs: every array that a call reads, in the memory of every array that it
writes. An overlap is refused before anything is written, or the result is right. It is never
silently wrong."""

import inspect
import re

import numpy as np
import pytest

import regard
from messages import says

HEADS, QUERIES, KEYS, DIM = 4, 6, 8, 8
rng = np.random.default_rng(0)


def normal(*shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def some(*shape):
    return rng.random(shape) < 0.7


QKV = {
    "query": normal(2, HEADS, QUERIES, DIM),
    "key": normal(2, 2, KEYS, DIM),
    "value": normal(2, 2, KEYS, DIM),
}
PACKED = {name: np.concatenate(list(array.swapaxes(1, 2))) for name, array in QKV.items()}
STARTS = {"query_starts": np.array([0, 5, 2 * QUERIES]), "key_starts": np.array([0, 7, 2 * KEYS])}
OPTIONS = {
    "alibi_slopes": np.full(HEADS, 0.5),
    "sinks": np.full(HEADS, 0.5),
    "distance_bias": normal(HEADS, 15),
    "scale": np.linspace(0.5, 1, HEADS),
    "softcap": np.linspace(5, 9, HEADS),
    "key_lengths": np.array([7, 6]),
    "left_padding": np.array([1, 0]),
    "query_offset": np.array([1, 2]),
}
MASKS = {
    "bool mask": some(QUERIES, KEYS),
    "float32 mask": normal(QUERIES, KEYS),
    "float16 mask": normal(QUERIES, KEYS, dtype=np.float16),
}


def with_mask(call):
    """Let `call` take the masks by kind, as a pair if there are two."""

    def masked(out, **inputs):
        masks = [inputs.pop(name) for name in MASKS if name in inputs]
        mask = {} if not masks else {"mask": masks[0] if len(masks) == 1 else tuple(masks)}
        return call(out, **inputs, **mask)

    return masked


def forward(call, inputs):
    results = call(**inputs, return_lse=True)
    return {"output": results[0], "lse": results[1]}


def backward(call):
    def gradients(out, **inputs):
        wanted = [name for name in ("query", "key", "value", "mask") if name in out]
        slots = regard.AttentionGradients(
            *(out.get(name) for name in regard.AttentionGradients._fields)
        )
        found = call(**inputs, with_respect_to=wanted, out=slots)
        return [getattr(found, name) for name in wanted]

    return with_mask(gradients)


def appended(cache, arrays):
    cache.append(arrays["key"], arrays["value"])
    return cache


def attend(out, **inputs):
    cache = appended(regard.KVCache(2, 2, DIM), QKV)
    return [cache.attend(**inputs, out=out["out"])]


def read_pages(out, **inputs):
    return [regard.paged_attention(**inputs, out=out["out"])]


def stream(out, key, value, **inputs):
    chunks = regard.KeyValueChunks(key, value, length=3)
    return [regard.attend_stream(chunks=chunks, **inputs, out=out["out"])]


def plain(call):
    return lambda out, **inputs: [call(**inputs, out=out["out"])]


sdpa, ragged = (
    regard.scaled_dot_product_attention,
    regard.scaled_dot_product_attention_ragged,
)
of_ragged = {**PACKED, **STARTS}
ragged_options = {name: x for name, x in OPTIONS.items() if name != "query_offset"}
ragged_mask = {"float32 mask": normal(2 * QUERIES, HEADS, 9)}
longest = 9
outputs, packed_outputs = forward(sdpa, QKV), forward(ragged, of_ragged)
GRADIENTS = ("query", "key", "value")
pool = {
    "query": normal(2, HEADS, 2, DIM),
    "key_pages": normal(3, 4, 2, DIM),
    "value_pages": normal(3, 4, 2, DIM),
    "block_table": np.array([[0, 2], [1, 0]], np.int32),
    "lengths": np.array([6, 4]),
}

# A call of (out by name, inputs), the inputs, and arrays like those that it writes.
CALLS = {
    "scaled_dot_product_attention": (
        with_mask(plain(sdpa)),
        {**QKV, **OPTIONS, "bool mask": MASKS["bool mask"], "float32 mask": MASKS["float32 mask"]},
        {"out": outputs["output"]},
    ),
    "scaled_dot_product_attention, 16 bits": (
        with_mask(plain(sdpa)),
        {**QKV, "float16 mask": MASKS["float16 mask"]},
        {"out": outputs["output"]},
    ),
    "scaled_dot_product_attention_ragged": (
        with_mask(plain(ragged)),
        {**of_ragged, **ragged_options, **ragged_mask},
        {"out": packed_outputs["output"]},
    ),
    "scaled_dot_product_attention_backward": (
        backward(regard.scaled_dot_product_attention_backward),
        {
            **QKV,
            **outputs,
            "grad_output": normal(*outputs["output"].shape),
            "grad_lse": normal(*outputs["lse"].shape),
            **{name: x for name, x in OPTIONS.items() if name != "softcap"},
            "bool mask": MASKS["bool mask"],
            "float32 mask": MASKS["float32 mask"],
        },
        {**{name: QKV[name] for name in GRADIENTS}, "mask": MASKS["float32 mask"]},
    ),
    "scaled_dot_product_attention_ragged_backward": (
        backward(regard.scaled_dot_product_attention_ragged_backward),
        {
            **of_ragged,
            **packed_outputs,
            "grad_output": normal(*packed_outputs["output"].shape),
            "distance_bias": OPTIONS["distance_bias"],
        },
        {name: PACKED[name] for name in GRADIENTS},
    ),
    "KVCache.attend": (
        with_mask(attend),
        {
            "query": QKV["query"],
            "distance_bias": OPTIONS["distance_bias"],
            "float32 mask": MASKS["float32 mask"],
        },
        {"out": outputs["output"]},
    ),
    "paged_attention": (
        with_mask(read_pages),
        {**pool, "distance_bias": OPTIONS["distance_bias"], "float32 mask": normal(2, 6)},
        {"out": pool["query"]},
    ),
    "attend_stream": (
        with_mask(stream),
        {
            **QKV,
            "distance_bias": OPTIONS["distance_bias"],
            "sinks": OPTIONS["sinks"],
            "float32 mask": MASKS["float32 mask"],
        },
        {"out": outputs["output"]},
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
        plain(regard.apply_mask),
        {"scores": normal(5, 6), "mask": normal(6)},
        {"out": normal(5, 6)},
    ),
    "softmax": (plain(regard.softmax), {"x": normal(5, 6)}, {"out": normal(5, 6)}),
}
PAIRS = [
    pytest.param(call, written, read, id=f"{call}-{written}-{read}")
    for call, (_, inputs, outs) in CALLS.items()
    for written in outs
    for read in inputs
]


def test_the_list_has_every_function():
    """All that write to arrays of the caller."""
    with_out = {
        name
        for name in regard.__all__
        if inspect.isfunction(function := getattr(regard, name))
        and "out" in inspect.signature(function).parameters
    }
    assert with_out == {name for name in CALLS if "," not in name and "." not in name}


@pytest.mark.parametrize(("call", "written", "read"), PAIRS)
def test_a_result_over_an_input(call, written, read):
    """They begin or end together in one block of memory."""
    for first in (0, 1):
        check_overlap(call, written, read, first)


def check_overlap(call, written, read, first):
    compute, inputs, outs = CALLS[call]
    wanted = [
        np.array(x) for x in compute({n: np.empty_like(x) for n, x in outs.items()}, **inputs)
    ]
    given, like = inputs[read], outs[written]
    size = max(given.nbytes, like.nbytes)
    memory = np.zeros(size, np.uint8)
    places = [memory[(size - x.nbytes) * first :][: x.nbytes] for x in (given, like)]
    shared, over = (
        place.view(x.dtype).reshape(x.shape) for place, x in zip(places, (given, like), strict=True)
    )
    shared[...] = given
    before = memory.copy()
    slots = {name: np.empty_like(x) for name, x in outs.items()} | {written: over}
    message = None
    try:
        found = compute(slots, **inputs | {read: shared})
    except ValueError as error:
        message = str(error)
    if message is not None:
        assert re.match(says("out", "overlap"), message)
        assert np.array_equal(memory, before)
        return
    for result, right in zip(found, wanted, strict=True):
        assert np.array_equal(result, right)
