"""The location of an array in memory changes no bit of the result, and nothing outside the array is
touched."""

import numpy as np
import pytest

import regard
from layouts import LAYOUTS
from reference import assert_same_bits

ROLES = ["query", "key", "value", "bool_mask", "float_mask"]


def problem(dtype, head_dim=19):
    random = np.random.default_rng(head_dim)
    shapes = (2, 4, 37, head_dim), (2, 2, 101, head_dim), (2, 2, 101, 23)
    arrays = dict(
        zip(ROLES, (random.standard_normal(s).astype(dtype) for s in shapes), strict=False)
    )
    arrays["bool_mask"] = random.random((2, 4, 37, 101)) < 0.7
    bias = np.where(random.random((2, 4, 37, 101)) < 0.3, -np.inf, 0.5)
    return arrays | {"float_mask": bias.astype(dtype)}


def attend(arrays, mask="bool_mask", **options):
    return regard.scaled_dot_product_attention(
        arrays["query"],
        arrays["key"],
        arrays["value"],
        arrays[mask],
        is_causal=True,
        query_offset=np.array([60, 20]),
        return_lse=True,
        **options,
    )


def test_memory_mapped_file(storage, target, tmp_path):
    arrays = problem(storage)
    mapped = {}
    for role, array in arrays.items():
        array.tofile(tmp_path / role)
        mapped[role] = np.memmap(tmp_path / role, array.dtype, "r", shape=array.shape)
    wanted, lse = attend(arrays)
    found = attend(mapped)
    assert [type(x) for x in found] == [np.ndarray, np.ndarray]
    assert_same_bits(found, (wanted, lse))
    out = np.memmap(tmp_path / "out", storage, "w+", shape=wanted.shape)
    assert attend(arrays, out=out)[0] is out
    assert_same_bits(np.asarray(out), wanted)


def test_fused_projection_is_read_and_written_where_it_lies(storage, target):
    """Query, key, value and output are interleaved in one array, and overlap nowhere."""
    packed = np.random.default_rng(0).standard_normal((2, 37, 4, 3, 16)).astype(storage)
    query, key, value, out = (packed[:, :, i].swapaxes(1, 2) for i in range(4))
    wanted = regard.scaled_dot_product_attention(query.copy(), key.copy(), value.copy())
    inputs = packed[:, :, :3].copy()
    assert regard.scaled_dot_product_attention(query, key, value, out=out) is out
    assert_same_bits(out, wanted)
    assert_same_bits(packed[:, :, :3], inputs)


@pytest.mark.parametrize("layout", [n for n in LAYOUTS if n not in ("read_only", "byte_swapped")])
def test_out_of_any_layout(layout, storage, target):
    arrays = problem(storage)
    wanted, _ = attend(arrays)
    out = LAYOUTS[layout](np.full(wanted.shape, 7, storage))
    around = out
    while isinstance(around.base, np.ndarray):
        around = around.base
    before = around.copy()
    attend(arrays, out=out)
    assert_same_bits(out, wanted)
    out[...] = 7  # any remaining difference is around it
    assert around.tobytes() == before.tobytes(), "memory around `out` was written to"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_stages(layout, dtype, target):
    arrays = problem(dtype)
    lay = LAYOUTS[layout]
    query, key, mask, bias = (arrays[r] for r in ("query", "key", "bool_mask", "float_mask"))
    turned = key[:, [0, 0, 1, 1]].swapaxes(-1, -2).copy()
    scores = regard.matmul(query, turned)
    assert_same_bits(regard.matmul(lay(query), turned), scores)
    assert_same_bits(regard.matmul(query, lay(turned)), scores)
    assert_same_bits(regard.matmul(lay(query), lay(turned), threads=3), scores)
    assert_same_bits(regard.scale(lay(scores), 0.3), regard.scale(scores, 0.3))
    for kind in (mask, bias):
        hidden = regard.apply_mask(scores, kind)
        assert_same_bits(regard.apply_mask(lay(scores), lay(kind)), hidden)
    for axis in range(4):
        last = np.moveaxis(hidden, axis, -1).copy()
        wanted = np.moveaxis(regard.softmax(last), -1, axis)
        assert_same_bits(regard.softmax(lay(hidden), axis), wanted)


def test_nothing_outside_the_arrays_is_read_or_written(target, output_of):
    """Each array ends right before, or begins right after, a page that must not be touched."""
    script = """
    import ctypes, itertools, mmap
    import numpy as np, regard
    libc = ctypes.CDLL(None, use_errno=True)
    page = mmap.PAGESIZE

    def guarded(array, at_end):
        size = max(array.nbytes, 1)
        body = -(-size // page) * page
        memory = mmap.mmap(-1, body + 2 * page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for wall in (start, start + page + body):
            assert libc.mprotect(ctypes.c_void_p(wall), ctypes.c_size_t(page), 0) == 0
        offset = page + (body - array.nbytes if at_end else 0)
        view = np.frombuffer(memory, array.dtype, array.size, offset).reshape(array.shape)
        view[...] = array
        return view

    random = np.random.default_rng(0)
    inputs = (1, 5, 33), (1, 7, 50, 97), (1, 3, 17, 64), ("f2", "f4", "f8")
    every = dict(window=(20, 3), softcap=2.0, query_offset=9)
    every |= {name: guarded(np.ones(2, "f4"), True) for name in ("alibi_slopes", "sinks")}
    shapes = itertools.product(*inputs)
    for i, (q_len, kv_len, dim, dtype) in enumerate(shapes):
        query = random.standard_normal((2, q_len, dim)).astype(dtype)
        key = random.standard_normal((1, kv_len, dim)).astype(dtype)
        value = random.standard_normal((1, kv_len, dim + 2)).astype(dtype)
        mask = random.random((2, q_len, kv_len)) < 0.7
        bias = np.where(mask, 0.5, -np.inf).astype(dtype)
        for m, options in itertools.product((None, mask, bias), ({}, every)):
            call = dict(is_causal=i % 3 == 0, threads=1 + i % 2) | options
            if options:
                call["key_lengths"] = min(kv_len, 40)
            wanted = regard.scaled_dot_product_attention(query, key, value, m, **call)
            inputs = [None if x is None else guarded(x, i % 2) for x in (query, key, value, m)]
            out = guarded(np.zeros_like(wanted), i % 2)
            regard.scaled_dot_product_attention(*inputs, **call, out=out)
            assert out.tobytes() == wanted.tobytes()
        if dtype == "f2":
            continue
        out = guarded(np.zeros((2, q_len, kv_len), dtype), i % 2)
        a, b = guarded(query, i % 2), guarded(key[0].T.copy(), i % 2)
        regard.matmul(a, b, out=out)
        regard.scale(out, 0.5, out=out)
        regard.apply_mask(out, guarded(mask, i % 2), out=out)
        regard.apply_mask(out, guarded(bias, i % 2), out=out)
        regard.softmax(out, out=out)
        regard.softmax(out, axis=1, out=out)
    print(i)
    """
    assert output_of(script, REGARD_TARGET=target) == "143"
