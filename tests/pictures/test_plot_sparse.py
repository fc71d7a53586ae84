"""Test pictures of sparse masks against pictures of the same masks as dense arrays."""

import tracemalloc

import numpy as np
import pytest

import regard
import sparse_cases
from regard import masks

pytest.importorskip("matplotlib")

LENGTHS = (97, 130)
MASKS = {
    **sparse_cases.sparse_masks(1, 1, *LENGTHS),
    "documents": masks.documents(np.arange(97) // 30, np.arange(130) // 40),
    "dilated": masks.sliding(*LENGTHS, window=(20, 9), dilation=3, query_offset=20),
    "global": masks.sliding(*LENGTHS, window=(9, 0)) | masks.global_tokens([0, 50], *LENGTHS),
    "function": masks.from_function(lambda i, j: (i // 7 + j // 5) % 3 == 0, *LENGTHS),
    "bytes": masks.from_function(lambda i, j: (i + 2 * j) % 3 == 0, *LENGTHS, block=(5, 11)),
}
OPTIONS = {
    "plain": {},
    "causal": {"is_causal": True, "query_offset": "end"},
    "window": {"window": (30, 7), "query_offset": 20, "key_lengths": 110, "left_padding": 11},
}
PIXELS = ({}, {"shape": (7, 11)}, {"shape": (3, 4), "region": (slice(10, 90), slice(33, 129))})


def drawn(image):
    return np.ma.filled(image.get_array(), np.nan)


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


def test_heads_of_sparse_masks(pyplot):
    ax = pyplot.figure().subplots()
    heads = sparse_cases.sparse_masks(2, 3, *LENGTHS)["blocks"]
    for head in ((0, 0), (1, 2), (-1, 1)):
        image = regard.plot.pattern(heads, head=head, ax=ax, shape=LENGTHS)
        np.testing.assert_array_equal(drawn(image), heads.to_dense()[head])


LONG = 1_000_000
MANY = {
    "documents": lambda: masks.documents(np.arange(LONG) // 2000),
    "sliding": lambda: masks.sliding(LONG, window=(4000, 0)),
    "blocks": lambda: (
        masks.random_blocks(LONG, blocks_per_row=8, rng=0) | masks.global_tokens([0, 1], LONG)
    ),
    "function": lambda: masks.from_function(
        lambda i, j: (i >= j) & (i - j < 3000), LONG, by_corners=True
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in ("blocks", "function") else [])
        for name in MANY
    ],
)
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
    calls = {
        "attention": lambda mask: [
            regard.plot.attention((query, key), mask=mask, head=(1, 2), **options)
        ],
        "heads": lambda mask: regard.plot.heads((query, key), mask=mask, **options),
        "compare": lambda mask: [
            regard.plot.compare((query, key), (-query, key), mask=mask, head=(0, 3), **options)
        ],
    }
    for name, call in calls.items():
        wanted, found = ([drawn(image) for image in call(mask)] for mask in both)
        np.testing.assert_array_equal(found, wanted, err_msg=name)
        assert np.any(wanted), name


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
