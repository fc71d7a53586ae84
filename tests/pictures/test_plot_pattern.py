"""Test the picture of which keys each query sees against what the kernels let through."""

import numpy as np
import pytest

import regard

pytest.importorskip("matplotlib")

rng = np.random.default_rng(1)
CASES = {
    "all": {},
    "causal": {"is_causal": True},
    "offset": {"is_causal": True, "query_offset": 4},
    "before": {"is_causal": True, "query_offset": -5},
    "end": {"is_causal": True, "query_offset": "end", "key_lengths": 13},
    "window": {"window": (3, 1)},
    "left only": {"window": (None, 0), "left_padding": 2},
    "lengths": {"key_lengths": 10, "left_padding": 3, "window": (6, 2), "query_offset": 1},
    "arrays of one": {"key_lengths": np.array([10]), "query_offset": [[1]]},
    "nothing": {"key_lengths": 4, "left_padding": 6},
    "bool": {"mask": rng.random((11, 17)) > 0.5, "is_causal": True},
    "float": {"mask": np.where(rng.random((11, 17)) > 0.5, -np.inf, np.nan), "window": (5, 5)},
    "row": {"mask": rng.random((1, 17)) > 0.5},
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
