"""Test the picture of which keys each query sees: of dense masks against what the kernels let
through, of sparse masks against the same masks as dense arrays."""

import tracemalloc

import numpy as np
import pytest

import regard
import sparse_cases
from regard import masks

rng = np.random.default_rng(1)
CASES = {
    "before": {"is_causal": True, "query_offset": -5},
    "end": {"is_causal": True, "query_offset": "end", "key_lengths": 13},
    "left only": {"window": (None, 0), "left_padding": 2},
    "lengths": {"key_lengths": 10, "left_padding": 3, "window": (6, 2), "query_offset": 1},
    "arrays of one": {"key_lengths": np.array([10]), "query_offset": [[1]]},
    "nothing": {"key_lengths": 4, "left_padding": 6},
    "bool": {"mask": rng.random((11, 17)) > 0.5, "is_causal": True},
    "float": {"mask": np.where(rng.random((11, 17)) > 0.5, -np.inf, np.nan), "window": (5, 5)},
    "column": {"mask": rng.random((11, 1)) > 0.5},
    "pair": {"mask": (rng.random((11, 17)) > 0.3, np.where(rng.random(17) > 0.2, 1.5, -np.inf))},
}


def drawn(image):
    return np.ma.filled(image.get_array(), np.nan)


def visible(q_len, kv_len, mask=None, **options):
    """Return whether each key contributes to the output of each query."""
    if isinstance(mask, tuple):
        mask = mask[0] & (mask[1] != -np.inf)
    elif mask is not None and mask.dtype != bool:
        mask = mask != -np.inf
    query, key = np.zeros((1, 1, q_len, 1)), np.zeros((1, 1, kv_len, 1))
    _, weights = regard.scaled_dot_product_attention(
        query, key, key, mask, return_weights=True, **options
    )
    return weights[0, 0] > 0


def slow(*values):
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


@pytest.mark.parametrize("name", ["lengths", "pair", "bool", *slow(*CASES)])
def test_what_is_visible(pyplot, name):
    ax = pyplot.figure().subplots()
    options = dict(CASES[name])
    mask = options.pop("mask", None)
    image = regard.plot.pattern(mask, 11, 17, ax=ax, **options)
    wanted = visible(11, 17, mask, **{
        option: np.reshape(value, -1) if isinstance(value, list) else value
        for option, value in options.items()
    })  # fmt: skip
    np.testing.assert_array_equal(drawn(image), wanted)
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend == ["visible", "hidden"]
    image = regard.plot.pattern(
        mask, 11, 17, ax=ax, shape=(3, 4), region=(slice(1, 11), slice(2, 17)), **options
    )
    rows, keys = 1 + np.arange(4) * 10 // 3, 2 + np.arange(5) * 15 // 4
    shares = [
        [wanted[rows[i] : rows[i + 1], keys[j] : keys[j + 1]].mean() for j in range(4)]
        for i in range(3)
    ]
    np.testing.assert_allclose(drawn(image), shares, rtol=1e-12)


def test_heads_of_a_mask(pyplot):
    mask = rng.random((2, 3, 5, 5)) > 0.5
    image = regard.plot.pattern(mask, head=(1, 2), is_causal=True)
    np.testing.assert_array_equal(drawn(image), mask[1, 2] & np.tri(5, dtype=bool))


def test_long_patterns_are_shares_of_blocks(pyplot):
    image = regard.plot.pattern(q_len=1 << 17, is_causal=True, window=(1 << 14, None))
    shares = drawn(image)
    assert max(shares.shape) < 500
    total = (shares * (2**17 / np.array(shares.shape)).prod()).sum()
    window = 1 << 14
    wanted = sum(min(i + 1, window + 1) for i in range(1 << 17))
    np.testing.assert_allclose(total, wanted, rtol=1e-3)
    assert image.colorbar.ax.get_ylabel().startswith("visible share of each ")
    assert set(np.unique(shares[0, 1:])) == {0}


pytest.importorskip("matplotlib")

LENGTHS = (97, 130)
MASKS = {
    **sparse_cases.sparse_masks(1, 1, *LENGTHS),
    "dilated": masks.sliding(*LENGTHS, window=(20, 9), dilation=3, query_offset=20),
    "function": masks.from_function(lambda i, j: (i // 7 + j // 5) % 3 == 0, *LENGTHS),
    "bytes": masks.from_function(lambda i, j: (i + 2 * j) % 3 == 0, *LENGTHS, block=(5, 11)),
}
OPTIONS = {
    "causal": {"is_causal": True, "query_offset": "end"},
    "window": {"window": (30, 7), "query_offset": 20, "key_lengths": 110, "left_padding": 11},
}
PIXELS = ({}, {"shape": (7, 11)}, {"shape": (3, 4), "region": (slice(10, 90), slice(33, 129))})


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", MASKS)
def test_patterns(name, options, pyplot):
    ax = pyplot.figure().subplots()
    sparse = MASKS[name]
    dense = sparse_cases.dense(sparse, LENGTHS[1])
    bias = np.where(np.random.default_rng(0).random((1, 130)) > 0.3, 0.0, -np.inf)
    for given, wanted in ((sparse, dense), ((sparse, bias), (dense, bias))):
        for pixels in PIXELS:
            shares, expected = (
                drawn(regard.plot.pattern(mask, *LENGTHS, ax=ax, **OPTIONS[options], **pixels))
                for mask in (given, wanted)
            )
            np.testing.assert_array_equal(shares, expected)


LONG = 1_000_000
MANY = {
    "sliding": lambda: masks.sliding(LONG, window=(4000, 0)),
    "function": lambda: masks.from_function(
        lambda i, j: (i >= j) & (i - j < 3000), LONG, by_corners=True
    ),
}


@pytest.mark.parametrize("name", ["sliding", pytest.param("function", marks=pytest.mark.slow)])
def test_masks_of_a_million_tokens(name, pyplot):
    """Shares are counted exactly, in less memory than the masks themselves or 8 MB."""
    mask = MANY[name]()
    ax = pyplot.figure().subplots()
    tracemalloc.start()
    shares = drawn(regard.plot.pattern(mask, ax=ax, shape=(250, 200)))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 8e6
    assert shares.shape == (250, 200)
    np.testing.assert_allclose((shares * (4000 * 5000)).sum(), mask.nnz, rtol=1e-12)
    for (i, j), region in {
        (0, 0): mask[:4000, :5000],
        (9, 7): mask[36000:40000, 35000:40000],
    }.items():
        np.testing.assert_allclose(shares[i, j], region.density, rtol=1e-12)
    causal = drawn(regard.plot.pattern(mask, ax=ax, shape=(250, 200), is_causal=True))
    assert causal.sum() <= shares.sum()
    assert not causal[:100, 81:].any()


@pytest.mark.parametrize("form", ["alone", "pair"])
def test_pictures_of_weights_take_sparse_masks(form, pyplot):
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((2, 4, 97, 8)), rng.standard_normal((2, 2, 130, 8))
    sparse = sparse_cases.sparse_masks(2, 4, *LENGTHS)["blocks"]
    dense, bias = sparse.to_dense(), rng.standard_normal((97, 130))
    options = {
        "distance_bias": rng.standard_normal((4, 21)),
        "scale": [0.1, 0.2, 0.3, 0.4],
        "softcap": [1.0, 2.0, np.inf, 3.0],
    }
    both = [dense, sparse] if form == "alone" else [(dense, bias), (sparse, bias)]
    wanted, found = (
        [drawn(image) for image in regard.plot.heads((query, key), mask=mask, **options)]
        for mask in both
    )
    np.testing.assert_array_equal(found, wanted)
    assert np.any(wanted)


def test_functions_of_scores_know_the_head_and_entry_that_is_drawn(pyplot):
    """A picture of one head is a part of a call."""

    @regard.ScoreFunction.c_type("float64")
    def change(scores, queries, keys, stride, positions, first_key, head, entry, user_data):
        for k in range(keys):
            for q in range(queries):
                scores[k * stride + q] += (head + 1) * (entry - 1) * 0.1 * (first_key + k)

    query, key = np.random.default_rng(0).standard_normal((2, 2, 3, 9, 4))
    options = {"score_function": regard.ScoreFunction(change)}
    attend = regard.scaled_dot_product_attention
    _, weights = attend(query, key, key, return_weights=True, **options)
    image = regard.plot.attention((query, key), head=(1, 2), **options)
    np.testing.assert_allclose(drawn(image), weights[1, 2], rtol=1e-12)
    image = regard.plot.compare((query, key), (query[0, 0], key[0, 0]), head=(0, 2), **options)
    np.testing.assert_allclose(drawn(image), weights[0, 2] - weights[0, 0], atol=1e-12)
    explorer = regard.explore(query, key, **options)
    assert "score_function=ScoreFunction" in explorer._repr_html_()
