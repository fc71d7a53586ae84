"""Test the weights of some queries against the weights of all queries."""

import numpy as np
import pytest

import regard
import sparse_cases
from element_types import each_in_one_type
from gradient_cases import FEW, OTHERS, build
from reference import assert_same_bits

ROWS = (slice(None), slice(1, 2), slice(-3, None), slice(2, 2), slice(1, 1000))


def check(case, dtype, **more):
    problem = build(case, dtype, 0.0)
    options = {**problem.options, **more, "return_weights": True, "return_lse": True}
    arrays = problem.query, problem.key, problem.value
    output, weights, lse = regard.scaled_dot_product_attention(*arrays, **options)
    for rows in ROWS:
        found = regard.scaled_dot_product_attention(*arrays, **options, rows=rows)
        assert_same_bits(found, (output, weights[..., rows, :], lse))


@each_in_one_type(FEW, "storage")
def test_same_bits(case, storage, target):
    check(case, storage)


@pytest.mark.slow
@each_in_one_type(OTHERS[::4], "storage")
def test_same_bits_of_the_other_cases(case, storage, target):
    check(case, storage)
    check(case, storage, dropout_p=0.3, dropout_seed=5)


@pytest.mark.parametrize("name", sparse_cases.NAMES)
def test_same_bits_under_sparse_masks(name, dtype, target):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((2, heads, n, 8)).astype(dtype) for heads, n in SHAPES]
    mask = sparse_cases.sparse_masks(2, 4, 150, 200)[name]
    options = {
        "scale": [0.1, 0.2, 0.3, 0.4],
        "distance_bias": rng.standard_normal((4, 21)),
        "return_weights": True,
    }
    output, weights = regard.scaled_dot_product_attention(*arrays, mask, **options)
    for rows in (*ROWS, slice(70, 131)):
        found = regard.scaled_dot_product_attention(*arrays, mask, **options, rows=rows)
        assert_same_bits(found, (output, weights[..., rows, :]))


SHAPES = (4, 150), (2, 200), (2, 200)


def test_functions_of_scores_know_the_positions_of_rows():
    @regard.ScoreFunction.c_type("float32")
    def change(scores, queries, keys, stride, positions, first_key, head, entry, user_data):
        for k in range(keys):
            for q in range(queries):
                scores[k * stride + q] += (head - entry) * ((positions[q] * (first_key + k)) % 7)

    query, key = np.random.default_rng(0).standard_normal((2, 2, 2, 9, 4), dtype=np.float32)
    options = {"score_function": regard.ScoreFunction(change), "return_weights": True}
    output, weights = regard.scaled_dot_product_attention(query, key, key, **options)
    for rows in ROWS:
        found = regard.scaled_dot_product_attention(query, key, key, **options, rows=rows)
        assert_same_bits(found, (output, weights[..., rows, :]))


X = np.zeros((2, 5, 4), np.float32)


def test_out_and_precision():
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((2, 2, 9, 16), dtype=np.float32)
    options = {"precision": "int8", "is_causal": True, "return_weights": True}
    output, weights = regard.scaled_dot_product_attention(query, key, key, **options)
    out = np.empty_like(output)
    found = regard.scaled_dot_product_attention(
        query, key, key, **options, rows=slice(3, 5), out=out
    )
    assert found[0] is out
    assert_same_bits(found, (output, weights[:, 3:5]))


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        ({"rows": 3}, TypeError, "rows must be a slice, got int"),
        ({"rows": slice(0, 4, 2)}, ValueError, "rows must have slices without steps, got slice"),
        ({"rows": slice(0.5, None)}, TypeError, "rows must have slices of ints, got slice"),
        ({"rows": slice(3), "return_weights": False}, TypeError, "rows need return_weights=True"),
        ({"rows": slice(3), "device": "cuda"}, TypeError, "the GPU kernels do not keep"),
        ({"rows": slice(3), "mask": np.ones((3, 5), bool)}, ValueError, "mask"),
        ({"rows": slice(3), "query_offset": "start"}, ValueError, "query_offset"),
    ],
)
def test_bad_input(words, kind, message):
    with pytest.raises(kind, match=message):
        regard.scaled_dot_product_attention(X, X, X, **{"return_weights": True, **words})


def test_only_dense_calls_have_rows():
    with pytest.raises(TypeError, match="rows"):
        regard.scaled_dot_product_attention_ragged(
            X[0, :, None], X[0, :, None], X[0, :, None], [0, 5], [0, 5], rows=slice(3)
        )
