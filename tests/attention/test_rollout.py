"""Test attention rollout against the product of all layers' weights."""

import numpy as np
import pytest

import error_limits
import reference
import regard
from problem import drawn
from reference import assert_same_bits

LAYERS, BATCH, HEADS, KV_HEADS, N, DIM = 3, 2, 4, 2, 19, 8
INF, NAN = float("inf"), float("nan")


def layers_of(dtype, batch=(BATCH,), length=N):
    query = 1.5 * drawn((LAYERS, *batch, HEADS, length, DIM), float, 1)
    key = drawn((LAYERS, *batch, KV_HEADS, length, DIM), float, 2)
    return query.astype(dtype), key.astype(dtype)


def dense(layers, mask=None, *, residual=0.5, shares=None, **options):
    """Return the product of whole matrices, and the allowed error of the result.

    A row of the product is not negative and adds up to 1. If the weights of a layer are off by at
    most d, the row is off by at most d more. The sum over n positions and the heads rounds in
    addition.
    """
    product, limit = None, 0.0
    for number, (query, key) in enumerate(layers):
        want = error_limits.expected(query, key, key, mask, **options)
        weights = want.exact.weights.astype(float)
        heads, length = weights.shape[-3:-1]
        each = np.full(heads, 1 / heads) if shares is None else np.asarray(shares[number], float)
        mean = np.einsum("h,...hij->...ij", each / each.sum(), weights)
        kept = np.eye(length) * (1 - mean.sum(axis=-1))[..., None]
        layer = residual * np.eye(length) + (1 - residual) * (mean + kept)
        product = layer if product is None else layer @ product
        limit += 2 * want.limit.weights + (length + heads + 8) * np.finfo(want.arithmetic).eps
    return product, limit


def check(actual, wanted, limit, dtype):
    assert type(actual) is np.ndarray
    assert actual.dtype == reference.arithmetic(dtype)
    assert actual.shape == wanted.shape
    assert np.abs(actual - wanted).max(initial=0) <= limit
    assert np.abs(actual.sum(axis=-1) - 1).max(initial=0) <= N * limit


OPTIONS = {
    "plain": {},
    "causal": {"is_causal": True},
    "window": {"window": (5, 2)},
    "lengths": {"key_lengths": [15, 7]},
    "padding": {"left_padding": [4, 0], "is_causal": True},
    "blind rows": {"key_lengths": [0, N]},
    "bool mask": {"mask": np.random.default_rng(5).random((BATCH, 1, N, N)) < 0.3},
    "float mask": {"mask": drawn((HEADS, N, N), float, 5)},
    "pair of masks": {"mask": (np.tri(N, dtype=bool), drawn((N,), float, 5))},
    "all hidden": {"mask": np.zeros((N, N), bool)},
    "sinks": {"sinks": np.array([0.5, 3.0, -INF, 0.0])},
    "sinks of blind rows": {"sinks": np.array([0.5, 3.0, -INF, 0.0]), "key_lengths": [0, 3]},
    "scale and cap": {"scale": 0.7, "softcap": 2.0},
    "slopes": {"alibi_slopes": regard.positional.alibi_slopes(HEADS), "is_causal": True},
    "distances": {"distance_bias": drawn((HEADS, 9), float, 6)},
    "offset that is none": {"query_offset": "end", "is_causal": True},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_rollout_is_the_product_of_the_layers(name, dtype, target):
    query, key = layers_of(dtype)
    options = dict(OPTIONS[name])
    if name == "float mask":
        options["mask"] = options["mask"].astype(dtype)
    wanted, limit = dense(
        zip(query, key, strict=True),
        **{k: 0 if k == "query_offset" else v for k, v in options.items()},
    )
    check(regard.rollout(query, key, **options), wanted, limit, dtype)


@pytest.mark.parametrize("residual", [0, 0.25, 1])
def test_residual(residual, dtype):
    """Threads change no bit."""
    query, key = layers_of(dtype)
    wanted, limit = dense(zip(query, key, strict=True), residual=residual)
    found = regard.rollout(query, key, residual=residual)
    check(found, wanted, limit, dtype)
    assert_same_bits(regard.rollout(query, key, residual=residual, threads=3), found)


@pytest.mark.parametrize("batch", [(), (2, 3)], ids=str)
def test_batches_and_rows(batch, dtype):
    query, key = layers_of(dtype, batch)
    whole = regard.rollout(query, key, is_causal=True)
    check(whole, *dense(zip(query, key, strict=True), is_causal=True), dtype)
    for queries in (5, -1, [3], [7, 7, -2], np.array([1, 0], np.int8), slice(15, None), [], ()):
        at = np.arange(N)[queries if not isinstance(queries, tuple | list) else np.int64(queries)]
        some = regard.rollout(query, key, queries=queries, is_causal=True)
        assert some.shape == whole[..., at, :].shape
        np.testing.assert_allclose(some, whole[..., at, :], rtol=0, atol=N * np.finfo(dtype).eps)


def test_more_rows_than_go_through_a_layer_at_once(dtype):
    query, key = layers_of(dtype, (), 259)
    query, key = query[:2], key[:2]
    wanted, limit = dense(zip(query, key, strict=True), is_causal=True)
    actual = regard.rollout(query, key, is_causal=True)
    assert np.abs(actual - wanted).max() <= limit
    alone = regard.rollout(query, key, queries=258, is_causal=True)
    np.testing.assert_allclose(alone, actual[258], rtol=0, atol=N * np.finfo(dtype).eps)


SHARES = np.array([[1.0, 0, 2, 1], [0, 0, 0, 5], [1, 1, 1, 1]])


def test_weights_of_heads(dtype):
    query, key = layers_of(dtype)
    sinks = np.array([0.5, 3.0, -INF, 0.0])
    wanted, limit = dense(zip(query, key, strict=True), shares=SHARES, sinks=sinks)
    for given in (SHARES.tolist(), SHARES * 3, SHARES.astype(int)):
        check(regard.rollout(query, key, head_weights=given, sinks=sinks), wanted, limit, dtype)
    wanted, limit = dense(zip(query, key, strict=True), shares=[SHARES[0]] * LAYERS)
    check(regard.rollout(query, key, head_weights=SHARES[0]), wanted, limit, dtype)
    alone = regard.rollout(query[:, :, 3:], key[:, :, 1:], residual=0.25)
    ablated = regard.rollout(query, key, residual=0.25, head_weights=[False, False, False, True])
    np.testing.assert_allclose(ablated, alone, rtol=0, atol=16 * np.finfo(dtype).eps)


def test_layers_that_differ(dtype):
    """The layers differ in heads and head_dim, so they come in lists, and so do the weights of
    their heads."""
    sizes = [(4, 2, 8), (2, 2, 16), (3, 1, 4)]
    query = [drawn((2, heads, N, dim), dtype, i) for i, (heads, _, dim) in enumerate(sizes)]
    key = [drawn((2, heads, N, dim), dtype, 9 + i) for i, (_, heads, dim) in enumerate(sizes)]
    layers = list(zip(query, key, strict=True))
    check(regard.rollout(query, key, is_causal=True), *dense(layers, is_causal=True), dtype)
    shares = [np.arange(1.0, 1 + heads) for heads, _, _ in sizes]
    check(regard.rollout(query, key, head_weights=shares), *dense(layers, shares=shares), dtype)
    flat = [x[0, 0] for x in query[1:]], [x[0, 0] for x in [key[1], key[2]]]
    one_head = list(zip(*([y[None] for y in x] for x in flat), strict=True))
    check(regard.rollout(*flat), *dense(one_head), dtype)


def test_masks_and_options_of_each_layer(dtype):
    """The layers are batch axes of arrays."""
    query, key = layers_of(dtype)
    mask = np.random.default_rng(3).random((LAYERS, 1, 1, N, N)) < 0.5
    lengths = np.array([[15], [N], [9]])
    got = regard.rollout(query, key, mask, key_lengths=lengths)
    product = np.eye(N)
    for layer in range(LAYERS):
        alone = query[layer : layer + 1], key[layer : layer + 1], mask[layer]
        product = regard.rollout(*alone, key_lengths=int(lengths[layer, 0])) @ product
    np.testing.assert_allclose(got, product, rtol=0, atol=LAYERS * N * np.finfo(dtype).eps)


def test_sparse_masks_give_the_bits_of_dense_ones(dtype):
    query, key = layers_of(dtype)
    mask = regard.masks.sliding(N, window=(4, 0)) | regard.masks.global_tokens([0], N)
    assert_same_bits(regard.rollout(query, key, mask), regard.rollout(query, key, mask.to_dense()))


@pytest.mark.parametrize("hole", [NAN, INF])
def test_padding_may_be_anything(hole, dtype):
    """The queries of padding may be anything too, as long as no row reaches them."""
    query, key = layers_of(dtype)
    sinks = np.zeros(HEADS)
    options = {"key_lengths": 15, "queries": slice(0, 15), "sinks": sinks}
    wanted = regard.rollout(query, key, **options)
    query[..., 15:, :], key[..., 15:, :] = hole, hole
    assert_same_bits(regard.rollout(query, key, **options), wanted)


@pytest.mark.parametrize("spoiled", ["query", "key"])
def test_nan_is_in_the_rows_that_reach_it(spoiled, dtype):
    query, key = layers_of(dtype)
    wanted = regard.rollout(query, key, is_causal=True)
    where = (query[1, 0, 2], key[1, 0, 1])[spoiled == "key"]
    where[5] = NAN
    got = regard.rollout(query, key, is_causal=True)
    assert np.isnan(got[0, 5:]).all()
    assert_same_bits(got[0, :5], wanted[0, :5])
    assert_same_bits(got[1], wanted[1])
    without = np.array([1.0, 1, 0, 1]) if spoiled == "query" else np.array([1.0, 1, 0, 0])
    assert np.isfinite(regard.rollout(query, key, head_weights=without, is_causal=True)[0]).all()


def test_a_recording_has_its_own_arguments(dtype):
    query, key = layers_of(dtype)
    mask = np.tri(N, dtype=bool)
    recording = regard.Recording(
        [
            regard.RecordedLayer("0", query[0], key[0], is_causal=True),
            regard.RecordedLayer("1", query[1], key[1], mask),
            regard.RecordedLayer("2", query[2], key[2], window=(N, 0)),
        ]
    )
    wanted, limit = dense(zip(query, key, strict=True), is_causal=True)
    check(regard.rollout(recording, threads=2), wanted, limit, dtype)
    with pytest.raises(ValueError, match="the recording must have at least one layer, got none"):
        regard.rollout(regard.Recording([]))


@pytest.mark.parametrize("shape", [(2, 1, 0, 4), (2, 0, 3, 5, 4)], ids=str)
def test_empty_arrays(shape, dtype):
    x = np.zeros(shape, dtype)
    got = regard.rollout(x, x)
    assert got.shape == (*shape[1:-3], shape[-2], shape[-2])
    assert got.dtype == dtype
