"""Weights that exist already: the page has them as they are."""

import numpy as np
import pytest

import regard
from explorer_pages import problem

RNG = np.random.default_rng(5)


def weights_like(shape, dtype=np.float32):
    """Return causal weights, whose rows differ in what they add up to."""
    scores = 4 * RNG.standard_normal(shape)
    weights = regard.softmax(np.where(np.tri(*shape[-2:], dtype=bool), scores, -np.inf))
    return (weights * RNG.uniform(0.3, 1, (*shape[:-1], 1))).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, "bfloat16"])
def test_pictures_are_the_weights(page_of, dtype):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    weights = weights_like((2, 3, 30, 40), dtype)
    weights[1, 2, 7] = 0  # a query that sees nothing
    weights[1, 1, 8] = 0
    weights[1, 1, 8, 5] = 1
    page = page_of(weights=weights)
    assert page.facts["options"] == "given weights"
    assert [layer["name"] for layer in page.facts["layers"]] == ["0", "1"]
    for layer, head in np.ndindex(2, 3):
        wanted = weights[layer, head].astype(float)
        found = page.map(layer, head)["weights"]
        assert np.array_equal(found > 0, wanted > 0)
        assert np.allclose(found, wanted, rtol=2**-10, atol=4e-12)
    rows = page.rows(1, 1)
    assert rows["max"][8] == rows["top_weights"][0, 8] == rows["effective_count"][8] == 1
    assert not page.rows(1, 2)["top_weights"][:, 7].any()


@pytest.mark.parametrize("detail", [None, 16])
def test_the_page_is_that_of_query_and_key(page_of, detail):
    query, key = problem(layers=(2,))
    tokens = [f"t{i % 7}" for i in range(40)]
    options = {"is_causal": True, "sinks": np.linspace(-1, 1, 4)}
    _, weights = regard.scaled_dot_product_attention(
        query, key, key, return_weights=True, **options
    )
    common = {"detail": detail, "tokens": tokens, "regions": [(slice(3, 9), slice(4, 20))]}
    pages = page_of(query, key, **options, **common), page_of(weights=weights, **common)
    for layer, head in np.ndindex(2, 4):
        wanted, found = (page.map(layer, head) for page in pages)
        assert wanted.keys() == found.keys()
        for name, plane in wanted.items():
            if plane.dtype == np.uint8:
                assert np.abs(plane.astype(int) - found[name]).max() <= 1
            else:
                assert np.allclose(found[name], plane, rtol=2**-10, atol=1e-10)
        first, second = (page.facts["layers"][layer]["heads"][head]["statistics"] for page in pages)
        assert first.keys() == second.keys()
        assert np.allclose(list(first.values()), list(second.values()), rtol=1e-4)


def test_weights_beyond_the_range_of_the_exponential_function_are_not_hidden(page_of):
    weights = np.zeros((1, 2, 3), np.float32)
    weights[0, 0] = 1e-42, 0, 1
    weights[0, 1] = 1e-30, 1e-42, 0
    assert ((page_of(weights=weights).map(0, 0)["weights"] > 0) == (weights[0] > 0)).all()


def test_layers_of_a_list(page_of):
    layers = [weights_like((heads, 5, 9)) for heads in (3, 1)]
    page = page_of(weights=layers, names={"layers": ["a", "b"]}, query_offset=4)
    assert [len(layer["heads"]) for layer in page.facts["layers"]] == [3, 1]
    assert [layer["position"] for layer in page.facts["layers"]] == [4, 4]
    assert np.allclose(page.map(1, 0)["weights"], layers[1][0], rtol=2**-10, atol=1e-11)
    flat = page_of(weights=layers[0][1])
    assert np.allclose(flat.map(0, 0)["weights"], layers[0][1], rtol=2**-10, atol=1e-11)
