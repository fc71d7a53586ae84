"""Test the memory of calls whose arguments are broadcast views: a few numbers that look like a
large array. No call makes an array as large as such a view, whatever its type."""

import tracemalloc

import numpy as np
import pytest

import regard

ml_dtypes = pytest.importorskip("ml_dtypes")

KEYS = 1 << 16
DIM = 32
MIB = 1 << 20


def view(shape, dtype, *, is_aligned=True):
    """Return a view of one number, or of one row of them if the last axis is short."""
    own = (1,) * (len(shape) - 1) + (shape[-1] if shape[-1] <= DIM else 1,)
    memory = np.zeros(np.dtype(dtype).itemsize * own[-1] + 1, np.uint8)
    start = 0 if is_aligned else 1
    row = memory[start : start + memory.size - 1].view(dtype).reshape(own)
    row[...] = 1
    return np.broadcast_to(row, shape)


for each in regard.__all__:
    getattr(regard, each)  # imports what is imported on first use

# Native, of 16 bits, of other byte orders, not aligned, and of types that become another type.
FLOATS = {
    "float32": {"dtype": "f4"},
    "float16": {"dtype": "f2"},
    "bfloat16": {"dtype": ml_dtypes.bfloat16},
    "big-endian": {"dtype": ">f4"},
    "big-endian float16": {"dtype": ">f2"},
    "unaligned": {"dtype": "f4", "is_aligned": False},
    "int64": {"dtype": "i8"},
}
MASKS = {name: kind for name, kind in FLOATS.items() if name != "int64"} | {
    "bool": {"dtype": "?"},
    "float64": {"dtype": "f8"},
}

few, many = np.ones((1, 2, DIM), np.float32), np.ones((1, 64, DIM), np.float32)
key = view((1, KEYS, DIM), "f4")
qkv = {"query": few, "key": key, "value": key}
tangents = {f"tangent_{name}": array for name, array in qkv.items()}
packed = {
    "query": np.ones((2, 1, DIM), np.float32),
    "key": view((KEYS, 1, DIM), "f4"),
    "value": view((KEYS, 1, DIM), "f4"),
    "query_starts": np.array([0, 2]),
    "key_starts": np.array([0, KEYS]),
}


def of_output(query):
    lse = np.full(query.shape[:-1], np.log(KEYS), np.float32)
    return {"query": query, "grad_output": query, "output": np.ones_like(query), "lse": lse}


def backward(**arguments):
    return regard.scaled_dot_product_attention_backward(**arguments, with_respect_to=["query"])[0]


def statistics(**arguments):
    return regard.summarize_attention(**arguments, statistics=["entropy"]).entropy


def stream(query):
    return regard.attend_stream(query, [(few, few[..., :1])])


def pages(**scales):
    """Pages themselves are never converted: another type is an error."""
    query, table = np.ones((1, 1, 1, DIM), np.float32), np.zeros((1, 1024), np.int64)
    pool = view((1 << 14, 64, 1, DIM), np.int8)
    scales = dict.fromkeys(("key_scales", "value_scales"), 1.0) | scales
    return regard.paged_attention(query, pool, pool, table, np.array([64]), **scales)


def explained(**arguments):
    return np.array(regard.explain(**arguments).bytes)


# By function: calls with small results, other arguments, and the shapes of large arguments.
sdpa = regard.scaled_dot_product_attention
keys, mask = (1, KEYS, DIM), {"mask": (64, KEYS)}
CALLS = {
    "dense": (sdpa, qkv, {"key": keys, "value": keys, "distance_bias": (1, 16 * KEYS - 1)}),
    "dense queries": (sdpa, dict.fromkeys(qkv, few) | {"value": few[..., :1]}, {"query": keys}),
    "dense mask": (sdpa, {**qkv, "query": many}, mask),
    "ragged": (
        regard.scaled_dot_product_attention_ragged,
        packed,
        {"key": (KEYS, 1, DIM), "value": (KEYS, 1, DIM), "mask": (2, 1, KEYS)},
    ),
    "backward": (backward, qkv | of_output(few), {"key": keys, "value": keys}),
    "backward mask": (backward, qkv | of_output(many), mask),
    "jvp": (
        regard.scaled_dot_product_attention_jvp,
        qkv | tangents,
        {"key": keys, "value": keys, "tangent_key": keys, "tangent_value": keys},
    ),
    "summary": (statistics, {"query": many, "key": key}, {"key": keys, **mask}),
    "map": (regard.attention_map, {"query": many, "key": key}, {"key": keys, **mask}),
    "explain": (explained, {**qkv, "query": many}, {"key": keys, **mask}),
    "stream": (stream, {}, {"query": keys}),
    "pages": (pages, {}, dict.fromkeys(("key_scales", "value_scales"), (1 << 14, 64, 1))),
    "matmul": (regard.matmul, {"a": np.ones((2, KEYS), np.float32)}, {"b": (KEYS, DIM)}),
    "apply_mask": (
        regard.apply_mask,
        {"scores": np.ones((64, KEYS), np.float32)},
        {"mask": (64, KEYS)},
    ),
}
PLACES = [(name, *call, place) for name, call in CALLS.items() for place in call[2]]
KINDS = [(kind, place) for kind in range(2) for place in PLACES]
CASES = []
for number, (kind, (which, call, others, shapes, name)) in enumerate(KINDS):
    kinds = list((MASKS if name == "mask" else FLOATS).items())
    word, how = kinds[(number + 3 * kind) % len(kinds)]
    CASES.append(pytest.param(call, others, name, shapes[name], how, id=f"{which}-{name}-{word}"))


@pytest.mark.parametrize(("call", "others", "name", "shape", "kind"), CASES)
def test_no_copy_as_large_as_a_view(call, others, name, shape, kind):
    large = view(shape, **kind)
    tracemalloc.start()
    result = call(**{**others, name: large})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    results = result if isinstance(result, tuple) else (result,)
    assert peak < sum(each.nbytes for each in results) + large.nbytes / 2


PER_ENTRY = ("key_lengths", "left_padding", "query_offset")
PER_HEAD = ("alibi_slopes", "scale", "softcap")


@pytest.mark.parametrize("dtype", ["i8", "u1", ">i4", "f2", "f4"])
@pytest.mark.parametrize("name", PER_ENTRY + PER_HEAD)
def test_numbers_of_entries_and_heads(name, dtype):
    """A number for a million batch entries, all of them one number in memory."""
    if name in PER_ENTRY and dtype in ("f2", "f4"):
        dtype = "i2"
    entries = 1 << 20
    x = np.broadcast_to(np.ones(1, np.float16), (entries, 1, 1, 1))
    numbers = np.broadcast_to(np.ones((), dtype), (entries,) if name in PER_ENTRY else (entries, 1))
    tracemalloc.start()
    result = sdpa(x, x, x, **{name: numbers})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < result.nbytes + MIB
