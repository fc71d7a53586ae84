"""Test functions of scores, in every call that accepts one, against the same formula in NumPy.

The functions are ctypes callbacks, which need no compiler. test_score_function_handles.py tests
the different kinds of functions.
"""

import ctypes

import numpy as np
import pytest

import regard
from problem import drawn
from reference import assert_same_bits

HEADS, KV_HEADS, Q_LEN, KV_LEN, DIM = 4, 2, 9, 21, 8
OFFSET = 5


def tile(scores, queries, keys, stride, dtype):
    """Return the tile as an array (keys, queries) that shares its memory."""
    address = ctypes.addressof(scores.contents)
    size = (keys - 1) * stride + queries
    flat = np.frombuffer((ctypes.c_char * (size * dtype.itemsize)).from_address(address), dtype)
    return np.lib.stride_tricks.as_strided(
        flat, (keys, queries), (stride * dtype.itemsize, dtype.itemsize)
    )


def bend(scores, distances, head, entry):
    """Apply a nonlinear function that depends on everything that it may depend on."""
    return np.sin(scores) + 0.1 * scores * (head + 1) - 0.01 * distances**2 + 0.3 * entry


def slope(scores, distances, head, entry):
    return np.cos(scores) + 0.1 * (head + 1)


def function_of(dtype, formula=bend, derivative=slope):
    dtype = np.dtype(dtype)

    def on_tiles(of_scores):
        @regard.ScoreFunction.c_type(dtype)
        def change(scores, queries, keys, stride, positions, first_key, head, entry, user_data):
            own = tile(scores, queries, keys, stride, dtype)
            query_positions = np.array(positions[:queries])
            distances = query_positions - (first_key + np.arange(keys))[:, None]
            own[...] = of_scores(own, distances, head, entry).astype(dtype)

        return change

    return regard.ScoreFunction(on_tiles(formula), derivative and on_tiles(derivative))


def formula(query, key, value, hidden, *, scale=DIM**-0.5, softcap=None, offset=OFFSET, entry=0):
    """Return the output, weights and lse in float64, and the derivative of the scores by the
    products."""
    query, key, value = (x.astype(np.float64) for x in (query, key, value))
    group = query.shape[-3] // key.shape[-3]
    key, value = (np.repeat(x, group, axis=-3) for x in (key, value))
    scores = query @ key.swapaxes(-1, -2) * scale
    turn = 1.0
    if softcap is not None:
        turn = 1 - np.tanh(scores / softcap) ** 2
        scores = softcap * np.tanh(scores / softcap)
    distances = np.arange(query.shape[-2])[:, None] + offset - np.arange(key.shape[-2])
    heads = np.arange(query.shape[-3])[:, None, None]
    entries = entry + np.arange(len(query))[:, None, None, None] if query.ndim > 3 else entry
    turn = turn * slope(scores, distances, heads, entries)
    scores = np.where(hidden, -np.inf, bend(scores, distances, heads, entries))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    sums = weights.sum(axis=-1, keepdims=True)
    lse = scores.max(axis=-1) + np.log(sums[..., 0])
    weights /= sums
    return weights @ value, weights, lse, turn, value


@pytest.fixture
def arrays(dtype):
    shapes = (2, HEADS, Q_LEN, DIM), (2, KV_HEADS, KV_LEN, DIM), (2, KV_HEADS, KV_LEN, 6)
    return [drawn(shape, dtype, seed) for seed, shape in enumerate(shapes)]


HIDDEN = np.arange(KV_LEN) > np.arange(Q_LEN)[:, None] + OFFSET
CAUSAL = {"is_causal": True, "query_offset": OFFSET}


def near(actual, wanted, dtype, factor=1):
    limit = 300 * factor * np.finfo(dtype).eps * max(1, np.abs(wanted).max())
    assert actual.dtype == dtype
    assert np.abs(actual - wanted).max() <= limit


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("q_len", [Q_LEN, 1])
def test_attention(softcap, q_len, arrays, dtype, target):
    query, key, value = arrays
    query = query[..., :q_len, :]
    wanted = formula(query, key, value, HIDDEN[:q_len], softcap=softcap)
    options = {**CAUSAL, "softcap": softcap, "score_function": function_of(dtype)}
    attend = regard.scaled_dot_product_attention
    output, weights, lse = attend(
        query, key, value, **options, return_weights=True, return_lse=True
    )
    near(output, wanted[0], dtype)
    near(weights, wanted[1], dtype)
    near(lse, wanted[2], dtype)
    assert not weights[..., HIDDEN[:q_len]].any()
    # Without weights, another kernel computes few queries.
    assert_same_bits(attend(query, key, value, **options, threads=2), output)
    alone = attend(query[1], key[1], value[1], **options, dropout_origin=(1, 0, 0))
    assert_same_bits(alone, output[1])


@pytest.mark.parametrize("heads", [3, 5, 40])
def test_heads_of_groups_that_strips_divide(heads, dtype, target):
    """Rows are queries times heads, so a strip may begin with any of the heads."""
    arrays = [
        drawn(shape, dtype, seed)
        for seed, shape in enumerate([(heads, 30, DIM), (1, KV_LEN, DIM), (1, KV_LEN, 6)])
    ]
    output = regard.scaled_dot_product_attention(
        *arrays, score_function=function_of(dtype), query_offset=OFFSET
    )
    near(output, formula(*arrays, np.zeros((30, KV_LEN), bool))[0], dtype, heads)


def test_gradients(arrays, dtype, target):
    query, key = arrays[:2]
    options = {**CAUSAL, "softcap": 2.0, "score_function": function_of(dtype)}
    state = regard.scaled_dot_product_attention(*arrays, **options, return_lse=True)
    grad = drawn(state[0].shape, dtype, 4)
    gradients = regard.scaled_dot_product_attention_backward(grad, *arrays, *state, **options)
    output, weights, _, turn, values = formula(*arrays, HIDDEN, softcap=2.0)
    of_scores = weights * (grad @ values.swapaxes(-1, -2) - (grad * output).sum(-1, keepdims=True))
    of_products = of_scores * turn * DIM**-0.5
    group = HEADS // KV_HEADS

    def folded(full):
        return full.reshape(2, KV_HEADS, group, *full.shape[-2:]).sum(axis=2)

    keys = np.repeat(key.astype(float), group, axis=1)
    near(gradients.query, of_products @ keys, dtype, 10)
    near(gradients.key, folded(of_products.swapaxes(-1, -2) @ query), dtype, 10)
    near(gradients.value, folded(weights.swapaxes(-1, -2) @ grad), dtype, 10)

    tangents = [drawn(x.shape, dtype, 5) for x in arrays]
    _, along = regard.scaled_dot_product_attention_jvp(*arrays, *tangents, **options)
    # <grad, derivative along the tangents> = <gradients, tangents>
    wanted = sum((g * t).sum() for g, t in zip(gradients[:3], tangents, strict=True))
    assert abs((grad * along).sum() - wanted) <= 1e3 * np.finfo(dtype).eps * (1 + abs(wanted))


def test_statistics(arrays, dtype, target):
    query, key, _ = arrays
    _, weights, *_ = formula(*arrays, HIDDEN)
    options = {**CAUSAL, "score_function": function_of(dtype)}
    summary = regard.summarize_attention(query, key, **options, statistics=("max", "column_sums"))
    near(summary.max, weights.max(axis=-1), dtype)
    near(summary.column_sums, weights.sum(axis=-2), dtype)
    seen = regard.attention_map(query, key, **options, shape=(Q_LEN, KV_LEN), reduce="mean")
    near(seen, weights, dtype)


def test_ragged(arrays, dtype):
    """Each sequence has its own number and positions."""
    query, key, value = (x.swapaxes(1, 2).reshape(-1, *x.shape[1:2], x.shape[-1]) for x in arrays)
    starts = [0, Q_LEN, 2 * Q_LEN], [0, KV_LEN, 2 * KV_LEN]
    options = {**CAUSAL, "score_function": function_of(dtype)}
    packed = regard.scaled_dot_product_attention_ragged(query, key, value, *starts, **options)
    dense = regard.scaled_dot_product_attention(*arrays, **options)
    assert_same_bits(packed, dense.swapaxes(1, 2).reshape(packed.shape))


def test_hidden_keys_do_not_matter(arrays, dtype, target):
    """Hidden keys do not matter, whatever a function returns for them."""
    query, key, value = arrays
    shown = np.arange(KV_LEN) < 13
    mixed = shown | (np.arange(Q_LEN)[:, None] == 4)
    options = {"score_function": function_of(dtype, lambda s, *_: np.where(s == s, s, np.inf))}
    for mask in (shown, mixed & shown):
        clean = regard.scaled_dot_product_attention(query, key, value, mask, **options)
        spoiled = key.copy()
        spoiled[..., ~shown, :] = np.nan
        result = regard.scaled_dot_product_attention(query, spoiled, value, mask, **options)
        assert_same_bits(result, clean)


def test_nan_of_a_function_shows_in_its_rows_alone(arrays, dtype, target):
    def spoil(scores, distances, head, entry):
        return np.where((distances == OFFSET) & (head == 1) & (entry == 1), np.nan, scores)

    options = {"query_offset": OFFSET}
    plain = regard.scaled_dot_product_attention(*arrays, **options)
    output = regard.scaled_dot_product_attention(
        *arrays, **options, score_function=function_of(dtype, spoil)
    )
    assert np.isnan(output[1, 1]).all()
    output[1, 1] = plain[1, 1]
    # The scores of the other rows were converted to other units and back.
    near(output, plain, dtype)


def test_minus_infinity_is_a_score_that_is_seen(dtype):
    x = np.ones((3, DIM), dtype)
    function = function_of(dtype, lambda scores, *_: np.full_like(scores, -np.inf))
    _, lse = regard.scaled_dot_product_attention(x, x, x, score_function=function, return_lse=True)
    assert (lse == -np.inf).all()
