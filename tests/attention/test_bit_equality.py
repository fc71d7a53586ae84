"""On one target, the number of threads, the batch, the neighbors, the query length, a hidden tail
and earlier calls change no bit. (Strides: test_layouts.)"""

import functools
import hashlib

import numpy as np
import pytest

import regard
from element_types import each_in_one_type
from option_cases import MIXES, OPTIONS
from reference import arithmetic, assert_same_bits

sdpa = regard.scaled_dot_product_attention
THREADS = (1, 2, 3, 7)
pytestmark = pytest.mark.every("target")  # a target must not change bits by chance

mixes = functools.partial(each_in_one_type, MIXES)


def attend(problem, **extra):
    return sdpa(*problem.arrays, **problem.options | extra)


def normal(shape, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def arrays(dtype, *, batch=(3,), heads=4, kv_heads=2, q_len=67, kv_len=230, dim=33, seed=0):
    shapes = (heads, q_len, dim), (kv_heads, kv_len, dim), (kv_heads, kv_len, 20)
    return tuple(normal((*batch, *shape), dtype, seed + i) for i, shape in enumerate(shapes))


def mask_for(q_len, kv_len, kind, dtype):
    seen = np.random.default_rng(9).random((q_len, kv_len)) < 0.7
    seen[0] = False
    return {"bool": seen, "float": np.where(seen, 0.5, -np.inf).astype(dtype), None: None}[kind]


@pytest.mark.parametrize(
    ("sizes", "options", "kind"),
    [
        ({}, {}, None),
        ({}, {"is_causal": True, "query_offset": np.array([163, 0, -5])}, None),
        ({}, {}, "bool"),
        ({}, {"is_causal": True, "query_offset": 100}, "float"),
        ({"batch": (1,), "heads": 8, "kv_heads": 1, "q_len": 1, "kv_len": 3001}, {}, None),
        ({"batch": (), "heads": 1, "kv_heads": 1, "q_len": 5, "kv_len": 2000}, {}, "bool"),
        ({"batch": (), "heads": 1, "kv_heads": 1, "q_len": 401}, {"is_causal": True}, None),
        ({"batch": (5,), "heads": 6, "kv_heads": 6, "q_len": 2, "kv_len": 3}, {}, None),
    ],
    ids=["full", "causal", "bool", "causal-float", "decode", "few-rows", "one-head", "small"],
)
def test_threads(sizes, options, kind, dtype, target, layer):
    inputs = arrays(dtype, **sizes)
    mask = mask_for(inputs[0].shape[-2], inputs[1].shape[-2], kind, dtype)
    for extra in ({"return_lse": True}, {"return_lse": True, "return_weights": True}):
        one, *others = (sdpa(*inputs, mask, **options, **extra, threads=n) for n in THREADS)
        for other in others:
            assert_same_bits(other, one)


@each_in_one_type(OPTIONS[::3], "storage")
def test_threads_and_extra_results_under_every_option(case, storage, target, layer):
    problem = case.build(storage)
    output, weights, lse = attend(problem, return_lse=True, return_weights=True, threads=1)
    again = attend(problem, return_lse=True, return_weights=True, threads=3)
    assert_same_bits(again, (output, weights, lse))
    for threads in (1, 2):
        assert_same_bits(attend(problem, threads=threads), output)
        assert_same_bits(attend(problem, return_lse=True, threads=threads), (output, lse))


@mixes("storage")
def test_every_entry_and_head_alone(case, storage, target):
    """All options are used, and per-entry and per-head options are split along with the arrays."""
    problem = case.build(storage)
    wanted = attend(problem, return_lse=True, return_weights=True)
    for index in np.ndindex(problem.batch):
        entry = problem.entry(index)
        part = tuple(x[index] for x in wanted)
        assert_same_bits(attend(entry, return_lse=True, return_weights=True), part)
        for h in range(len(entry.query)):
            alone = attend(entry.head(h), return_lse=True, return_weights=True)
            assert_same_bits(alone, tuple(x[h] for x in part))


@mixes("dtype")
def test_rows_alone_and_in_chunks(case, dtype, target):
    problem = case.build(dtype)
    wanted = attend(problem, return_lse=True)
    q_len = problem.query.shape[-2]
    for length in (1, 7, 40):
        for start in range(0, q_len, length):
            rows = slice(start, start + length)
            actual = attend(problem.rows(start, start + length), return_lse=True)
            assert_same_bits(actual, (wanted[0][..., rows, :], wanted[1][..., rows]))


@mixes("dtype")
def test_hidden_tails_are_no_tails(case, dtype, target):
    """Without the keys beyond an entry's length, the call returns the same bits."""
    problem = case.build(dtype)
    kv_len = problem.key.shape[-2]
    lengths = np.broadcast_to(problem.options.get("key_lengths", kv_len), problem.batch)
    wanted = attend(problem, return_lse=True)
    for index in np.ndindex(problem.batch):
        short = problem.entry(index).keys(int(lengths[index]))
        short.options.pop("key_lengths", None)
        assert_same_bits(attend(short, return_lse=True), tuple(x[index] for x in wanted))


FILLINGS = (np.nan, np.inf, 3e4, 0.0)


@mixes("dtype")
def test_other_entries_are_anything(case, dtype, target):
    problem = case.build(dtype)
    wanted = attend(problem, return_lse=True)
    kept = tuple(n // 2 for n in problem.batch)
    others = np.ones(problem.batch, bool)
    others[kept] = False
    for filling in FILLINGS:
        loud = [np.broadcast_to(x, problem.batch + x.shape[-3:]).copy() for x in problem.arrays]
        for array in loud:
            array[others] = filling
        output, lse = sdpa(*loud, **problem.options, return_lse=True)
        assert_same_bits((output[kept], lse[kept]), tuple(x[kept] for x in wanted))


@mixes("dtype")
def test_other_rows_and_heads_are_anything(case, dtype, target):
    problem = case.build(dtype)
    _, key, value = problem.arrays
    wanted, wanted_lse = attend(problem, return_lse=True)
    for filling in FILLINGS:
        loud = problem.query.copy()
        loud[..., 1::2, :] = filling
        output, lse = sdpa(loud, key, value, **problem.options, return_lse=True)
        assert_same_bits(output[..., ::2, :], wanted[..., ::2, :])
        assert_same_bits(lse[..., ::2], wanted_lse[..., ::2])
        loud = problem.query.copy()
        loud[..., 1::2, :, :] = filling
        output, lse = sdpa(loud, key, value, **problem.options, return_lse=True)
        assert_same_bits(output[..., ::2, :, :], wanted[..., ::2, :, :])
        assert_same_bits(lse[..., ::2, :], wanted_lse[..., ::2, :])


def test_slopes_and_sinks_of_other_heads(storage, target):
    inputs = arrays(storage)
    slopes, sinks = np.zeros((2, 4), arithmetic(storage))
    slopes[1], sinks[1] = 0.25, 2.0
    wanted = sdpa(*inputs, alibi_slopes=slopes, sinks=sinks, return_lse=True)
    for other in (-1e30, 50.0, 1e30):
        slopes[[0, 2, 3]] = sinks[[0, 2, 3]] = other
        actual = sdpa(*inputs, alibi_slopes=slopes, sinks=sinks, return_lse=True)
        assert_same_bits(tuple(x[:, 1] for x in actual), tuple(x[:, 1] for x in wanted))


def test_threads_of_the_stages(dtype, target, layer):
    a, b = normal((3, 130, 300), dtype), normal((300, 210), dtype, 1)
    wide, mask = normal((40, 5003), dtype, 2), normal((40, 1), dtype) > 0
    for call in (
        lambda n: regard.matmul(a, b, threads=n),
        lambda n: regard.matmul(a[0, 0], b, threads=n),
        lambda n: regard.matmul(wide, wide.T, threads=n),
        lambda n: regard.scale(wide, 0.3, threads=n),
        lambda n: regard.apply_mask(wide, mask, threads=n),
        lambda n: regard.softmax(wide, threads=n),
        lambda n: regard.softmax(wide, axis=0, threads=n),
        lambda n: regard.softmax(wide[0], threads=n),
    ):
        one, *others = (call(n) for n in THREADS)
        for other in others:
            assert_same_bits(other, one)


def test_set_num_threads_changes_speed_only(dtype, target, layer):
    inputs = arrays(dtype)
    wanted = sdpa(*inputs)
    try:
        for n in THREADS:
            regard.set_num_threads(n)
            assert_same_bits(sdpa(*inputs), wanted)
    finally:
        regard.set_num_threads(None)


@pytest.mark.parametrize("q_len", [1, 5, 67])
def test_batch_and_heads(q_len, dtype, target):
    """Heads have the same bits by themselves, in another order, and among other heads of their
    group."""
    query, key, value = arrays(dtype, q_len=q_len)
    mask = normal((3, 4, q_len, 230), dtype, 7) > -0.5
    options = {"is_causal": True, "return_lse": True}
    offsets = np.array([170, 30, 229])
    output, lse = sdpa(query, key, value, mask, **options, query_offset=offsets)
    for i in range(3):
        one = slice(i, i + 1)
        alone = sdpa(query[i], key[i], value[i], mask[i], **options, query_offset=offsets[i])
        assert_same_bits(alone, (output[i], lse[i]))
        for h in range(4):
            rest = query[i, h], key[i, h // 2], value[i, h // 2], mask[i, h]
            flat = sdpa(*rest, **options, query_offset=int(offsets[i]))
            assert_same_bits(flat, (output[i, h], lse[i, h]))
        thin = sdpa(query[one], key[one], value[one], mask[one], **options, query_offset=offsets[i])
        assert_same_bits(thin, (output[one], lse[one]))
    turned = [x[::-1].copy() for x in (query, key, value, mask)]
    again = sdpa(*turned, **options, query_offset=offsets[::-1])
    assert_same_bits(again, (output[::-1], lse[::-1]))
    many = [np.concatenate([x] * 3) for x in (query, key, value, mask)]
    again = sdpa(*many, **options, query_offset=np.tile(offsets, 3))
    assert_same_bits(again, (np.concatenate([output] * 3), np.concatenate([lse] * 3)))


def test_grouped_heads_are_repeated_heads(dtype, target):
    for q_len in (1, 5, 67):
        query, key, value = arrays(dtype, heads=6, q_len=q_len)
        wanted = sdpa(query, key, value, return_lse=True)
        repeated = sdpa(query, key.repeat(3, axis=1), value.repeat(3, axis=1), return_lse=True)
        assert_same_bits(repeated, wanted)


@pytest.mark.parametrize("filling", [np.nan, np.inf, 3e38, 0.0])
def test_neighbors_in_the_batch(filling, dtype, target):
    query, key, value = arrays(dtype)
    wanted = sdpa(query, key, value, return_lse=True)
    for spoiled in range(3):
        inputs = [query.copy(), key.copy(), value.copy()]
        for array in inputs:
            array[spoiled] = filling
        actual = sdpa(*inputs, return_lse=True)
        kept = [i for i in range(3) if i != spoiled]
        assert_same_bits(tuple(x[kept] for x in actual), tuple(x[kept] for x in wanted))


def test_neighboring_rows(dtype, target):
    """Rows share vectors with rows that rescale at other times, overflow, or are NaN."""
    query, key, value = arrays(dtype, batch=())
    wanted, wanted_lse = sdpa(query, key, value, return_lse=True)
    kept = [0, 3, 8, 17, 40, 66]
    others = np.setdiff1d(np.arange(67), kept)
    for filling in (np.nan, np.inf, 1e30, 1e-40, 50.0):
        loud = query.copy()
        loud[:, others] = filling
        output, lse = sdpa(loud, key, value, return_lse=True)
        assert_same_bits(output[:, kept], wanted[:, kept])
        assert_same_bits(lse[:, kept], wanted_lse[:, kept])


@pytest.mark.parametrize("kind", [None, "bool", "float"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_query_length(is_causal, kind, dtype, target):
    """A row computed by itself, or in chunks as with a cache, has the bits that it has among all
    rows."""
    query, key, value = arrays(dtype, batch=())
    mask = mask_for(67, 230, kind, dtype)
    offset = 150
    options = {"is_causal": is_causal, "return_lse": True}
    wanted = sdpa(query, key, value, mask, **options, query_offset=offset)
    for length in (1, 2, 7, 16, 33):
        for start in range(0, 67, length):
            rows = slice(start, start + length)
            part = None if mask is None else mask[rows]
            actual = sdpa(query[:, rows], key, value, part, **options, query_offset=offset + start)
            assert_same_bits(actual, tuple(x[:, rows] for x in wanted))


@pytest.mark.parametrize("kv_len", [1, 8, 95, 96, 97, 150, 192, 229])
def test_a_hidden_tail_is_no_tail(kv_len, dtype, target):
    for q_len in (1, 67):
        query, key, value = arrays(dtype, batch=(), q_len=q_len)
        seen = np.arange(230) < kv_len
        short = sdpa(query, key[:, :kv_len], value[:, :kv_len], return_lse=True)
        for mask in (seen, np.where(seen, 0, -np.inf).astype(dtype)):
            assert_same_bits(sdpa(query, key, value, mask, return_lse=True), short)
        # Causality hides the tail from the first row only; the others see more.
        first = sdpa(query, key, value, is_causal=True, query_offset=kv_len - 1, return_lse=True)
        assert_same_bits(tuple(x[:, 0] for x in first), tuple(x[:, 0] for x in short))


def test_key_length_beyond_the_causal_limit(dtype, target):
    query, key, value = arrays(dtype, batch=())
    wanted = sdpa(query, key, value, is_causal=True, query_offset=20, return_lse=True)
    for kv_len in (87, 88, 96, 150):
        short = sdpa(
            query,
            key[:, :kv_len],
            value[:, :kv_len],
            is_causal=True,
            query_offset=20,
            return_lse=True,
        )
        assert_same_bits(short, wanted)


def test_extra_results_do_not_change_the_output(dtype, target):
    inputs = arrays(dtype)
    for options in ({}, {"mask": mask_for(67, 230, "bool", dtype)}, {"is_causal": True}):
        plain = sdpa(*inputs, **options)
        assert_same_bits(sdpa(*inputs, **options, return_lse=True)[0], plain)
        assert_same_bits(sdpa(*inputs, **options, out=np.full_like(plain, np.nan)), plain)


def test_earlier_calls_leave_no_trace(dtype, target, output_of):
    """After calls of every size, some with NaN, the bits equal the bits of a process's very first
    call."""
    script = f"""
    import hashlib
    import numpy as np, regard
    random = np.random.default_rng(4)
    inputs = [random.standard_normal((2, 37, 48)).astype("{dtype}") for _ in range(3)]
    output, lse = regard.scaled_dot_product_attention(*inputs, is_causal=True, return_lse=True)
    print(hashlib.sha256(output.tobytes() + lse.tobytes()).hexdigest())
    """
    first = output_of(script, REGARD_TARGET=target)
    random = np.random.default_rng(4)
    inputs = [random.standard_normal((2, 37, 48)).astype(dtype) for _ in range(3)]
    for q_len, kv_len, dim in [(200, 300, 128), (1, 1000, 7), (3, 2, 256), (64, 64, 64)]:
        for fill in (np.nan, np.inf, 3e38, 1.0):
            noise = [np.full((3, n, dim), fill, dtype) for n in (q_len, kv_len, kv_len)]
            sdpa(*noise, threads=3)
            regard.softmax(regard.matmul(noise[0], noise[1].swapaxes(-1, -2)))
        output, lse = sdpa(*inputs, is_causal=True, return_lse=True)
        digest = hashlib.sha256(output.tobytes() + lse.tobytes()).hexdigest()
        assert digest == first


def test_batch_and_neighbors_of_the_stages(dtype, target):
    a, b = normal((4, 37, 61), dtype), normal((4, 61, 45), dtype, 1)
    product, weights = regard.matmul(a, b), regard.softmax(a * 3)
    for i in range(4):
        assert_same_bits(regard.matmul(a[i], b[i]), product[i])
        assert_same_bits(regard.softmax(a[i] * 3), weights[i])
        assert_same_bits(regard.softmax(a[i, 5] * 3), weights[i, 5])
    loud = a.copy()
    loud[1], loud[2, :30] = np.nan, 1e30
    with np.errstate(over="ignore"):
        spoiled, spoiled_weights = regard.matmul(loud, b), regard.softmax(loud * 3)
    for kept in (0, 3, (2, slice(30, None))):
        assert_same_bits(spoiled[kept], product[kept])
        assert_same_bits(spoiled_weights[kept], weights[kept])


@pytest.mark.parametrize("layout", ["rows", "columns", "far", "back"])
@pytest.mark.parametrize(("depth", "columns"), [(1, 1), (7, 19), (128, 48), (300, 401), (1500, 33)])
def test_few_rows_of_a_product_have_its_bits(depth, columns, layout, dtype, target):
    """Few rows multiply b in place, many rows multiply a copy of it: no bit tells which."""
    a, b = normal((40, depth), dtype), normal((depth, columns), dtype, 1)
    if layout == "columns":
        b = np.asfortranarray(b)
    elif layout == "far":
        b = normal((depth, 2 * columns), dtype, 1)[:, ::2]
    elif layout == "back":
        b = b[::-1, ::-1]
    whole = regard.matmul(a, b)
    for first, count in [(0, 1), (7, 2), (3, 3), (11, 4), (20, 5), (31, 8), (0, 9)]:
        rows = slice(first, first + count)
        for threads in (1, 3):
            assert_same_bits(regard.matmul(a[rows], b, threads=threads), whole[rows])
    out = np.zeros((columns, 3), dtype).T
    regard.matmul(a[5:8], b, out=out)
    assert_same_bits(out, whole[5:8])


@pytest.mark.parametrize(
    ("m", "k", "n", "layout"),
    [
        (300, 1030, 400, "plain"),
        (300, 1030, 400, "transposed"),
        pytest.param(300, 1030, 400, "strided", marks=pytest.mark.slow),
        pytest.param(300, 1030, 400, "broadcast", marks=pytest.mark.slow),
        (2065, 40, 2081, "plain"),
        pytest.param(2065, 40, 2081, "strided", marks=pytest.mark.exhaustive),
        pytest.param(2 * 2048, 30, 2048, "transposed", marks=pytest.mark.exhaustive),
        pytest.param(2 * 2048, 30, 2048, "broadcast", marks=pytest.mark.exhaustive),
    ],
)
def test_a_large_product_has_the_bits_of_its_rows(m, k, n, layout, dtype, target):
    """Large products pack their rows and columns once for all tasks, in waves; small products do
    not."""
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape).astype(dtype) for shape in ((m, k), (k, n)))
    out = np.empty((m, n), dtype)
    if layout == "transposed":
        a, b = np.asfortranarray(a), np.asfortranarray(b)
    elif layout == "strided":
        a, b = np.repeat(a, 2, axis=1)[:, ::2], np.repeat(b, 2, axis=0)[::2]
        out = np.empty((m, 2 * n), dtype)[:, ::2]
    elif layout == "broadcast":
        a, out = np.stack([a, a[::-1]]), np.empty((2, m, n), dtype)
    whole = regard.matmul(a, b, out=out, threads=1)
    assert_same_bits(regard.matmul(a, b, threads=3), whole)
    for first in (0, 255, 256, m - 100):
        rows = slice(first, first + 9 + first % 7)
        assert_same_bits(regard.matmul(a[..., rows, :], b), whole[..., rows, :])
    near = np.matmul(a[..., -5:, :].astype(np.float64), b.astype(np.float64))
    assert np.allclose(whole[..., -5:, :], near, rtol=0, atol=1e3 * np.finfo(dtype).eps)
