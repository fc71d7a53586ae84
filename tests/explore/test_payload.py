"""What a page holds is what NumPy computes."""

import numpy as np
import pytest

import regard
import sparse_cases
from explorer_pages import blocks, close_levels, problem, weights_of


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    "options",
    [
        {"is_causal": True},
        {"window": (7, 3), "query_offset": "end", "softcap": 5.0},
        {"sinks": np.linspace(-1, 1, 4), "key_lengths": 29, "left_padding": 3, "is_causal": True},
        {"mask": np.random.default_rng(1).random((4, 33, 40)) < 0.5, "scale": 0.3},
        {"mask": (np.tri(33, 40, 4) > 0, np.linspace(0, 1, 40, dtype=np.float32)[None])},
    ],
)
def test_exact_pictures(page_of, dtype, options):
    query, key = problem(q_len=33, dtype=dtype)
    page, weights = page_of(query, key, **options), weights_of(query, key, **options)
    assert page.facts["exact"]
    for head in range(4):
        (stored,) = page.map(0, head).values()
        assert np.array_equal(stored > 0, weights[head] > 0)
        coarse = 2**-24 if dtype == np.float16 else 0  # what the weights themselves are
        assert np.allclose(stored, weights[head], rtol=2**-10, atol=max(coarse, 1e-11))


@pytest.mark.parametrize("detail", [None, 16])
def test_sparse_masks_give_the_page_of_dense_ones(detail, page_of):
    query, key = problem(layers=(2,), q_len=33)
    sparse = sparse_cases.sparse_masks(2, 4, 33, 40)["blocks"]
    options = {
        "detail": detail,
        "distance_bias": np.sin(np.arange(4 * 9.0)).reshape(4, 9),
        "scale": np.array([0.1, 0.2, 0.3, 0.4]),
        "softcap": [1.0, 2.0, np.inf, 3.0],
        "regions": [(slice(3, 9), slice(11, 30))],
    }
    pages = [page_of(query, key, mask, **options) for mask in (sparse.to_dense(), sparse)]
    facts = [page.facts for page in pages]
    assert "Blocks(shape=(2, 4, 33, 40), " in facts[1]["options"]
    assert facts[0] | {"options": ""} == facts[1] | {"options": ""}
    for layer, head in np.ndindex(2, 4):
        for part in ("map", "rows"):
            dense, found = (getattr(page, part)(layer, head) for page in pages)
            assert dense.keys() == found.keys()
            assert all(np.array_equal(dense[name], found[name]) for name in dense)


def test_pictures_of_blocks_and_thumbnails(page_of):
    query, key = problem(q_len=150, kv_len=170)
    page = page_of(query, key, is_causal=True, query_offset=20, detail=100)
    weights = weights_of(query, key, is_causal=True, query_offset=20)
    thumbnails = page.arrays("thumbnails", page.facts["overview"])["levels"]
    assert thumbnails.shape == (8, 64, 64)
    for head in range(4):
        planes = page.map(0, head)
        for reduce, thumbnail in ((np.max, 0), (np.mean, 1)):
            plane = planes["max" if reduce is np.max else "mean"]
            close_levels(plane, blocks(weights[head], 100, 100, reduce))
            # Rows of a thumbnail are whole rows of the picture.
            small = np.arange(65) * 100 // 64
            wanted = blocks(weights[head], small * 150 // 100, small * 170 // 100, reduce)
            close_levels(thumbnails[2 * head + thumbnail], wanted)


@pytest.mark.parametrize("detail", [None, 64])
def test_top_keys_and_statistics(page_of, detail):
    query, key = problem(q_len=80, kv_len=90)
    options = {"is_causal": True, "query_offset": 10}
    page = page_of(query, key, detail=detail, top_k=5, **options)
    summary = regard.summarize_attention(
        query,
        key,
        statistics=("top_k", "entropy", "mean_distance", "column_means", "previous_token"),
        top_k=5,
        **options,
    )
    tolerance = 2**-10 if detail is None else 2**-8 + 2**-11
    for head in range(4):
        rows = page.rows(0, head)
        keys = (rows["top_keys"].T.astype(int) + np.arange(80)[:, None]) % 2**16
        seen = summary.top_k.weights[head] > 0
        assert np.array_equal(keys[seen], summary.top_k.keys[head][seen])
        stored = rows["top_weights"].T
        assert np.array_equal(stored > 0, seen)
        assert np.allclose(stored, summary.top_k.weights[head], rtol=tolerance, atol=2**-22)
        for name in ("entropy", "mean_distance", "column_means"):
            wanted = getattr(summary, name)[head]
            assert np.allclose(rows[name], wanted, rtol=tolerance, atol=2**-22), name
        numbers = page.facts["layers"][0]["heads"][head]["statistics"]
        assert numbers["entropy"] == pytest.approx(summary.entropy[head].mean(), rel=1e-5)
        assert numbers["previous_token"] == pytest.approx(summary.previous_token[head], rel=1e-5)


def test_numbers_beyond_float16_and_65536_keys(page_of):
    query, key = np.zeros((1, 3, 1), np.float32), np.zeros((1, 70_000, 1), np.float32)
    key[0, 69_999] = 1
    query[0, 1] = 50
    rows = page_of(query, key, detail=16, top_k=1).rows(0, 0)
    assert rows["top_keys"].dtype == np.uint32
    assert rows["top_keys"][0, 1] + 1 == 69_999
    assert np.allclose(rows["effective_count"], [70_000, 1, 70_000], rtol=2**-8)


@pytest.mark.parametrize(("detail", "error"), [(None, 2**-11), (16, 2**-8 + 2**-11)])
@pytest.mark.parametrize("far", [1e-5, 1e-7, 4e-9])
def test_small_weights_keep_their_digits(page_of, far, detail, error):
    query = np.ones((1, 20, 1))
    key = np.log(far * np.linspace(1, 2, 20))[None, :, None]
    key[0, 3] = 0
    page = page_of(query, key, detail=detail, top_k=20, scale=1)
    weights = weights_of(query, key, scale=1)[0]
    top = np.sort(weights, axis=-1)[:, ::-1]
    assert np.allclose(page.rows(0, 0)["top_weights"].T, top, rtol=error, atol=0)
    assert np.allclose(page.rows(0, 0)["column_means"], weights.mean(axis=0), rtol=error, atol=0)
    if detail is None:
        assert np.allclose(page.map(0, 0)["weights"], weights, rtol=error, atol=0)


def test_regions_are_exact(page_of):
    query, key = problem(q_len=300, kv_len=300)
    regions = [(slice(10, 40), slice(0, 50)), (0, 2, slice(100, 120), slice(-30, None))]
    page = page_of(query, key, detail=32, regions=regions)
    weights = weights_of(query, key)
    for head in range(4):
        found = {name: plane for name, plane in page.map(0, head).items() if "region" in name}
        assert len(found) == 1 + (head == 2)
        own = found["region 10 40 0 50"]
        assert np.allclose(own, weights[head, 10:40, :50], rtol=2**-10, atol=2**-24)
    own = found = page.map(0, 2)["region 100 120 270 300"]
    assert np.allclose(own, weights[2, 100:120, 270:], rtol=2**-10, atol=2**-24)


def test_layers_of_an_array_and_of_a_list_agree(page_of):
    query, key = problem(layers=(2, 3))
    options = {"is_causal": True, "query_offset": np.arange(6).reshape(2, 3)}
    page = page_of(query, key, **options)
    assert [layer["name"] for layer in page.facts["layers"]][:2] == ["0, 0", "0, 1"]
    assert [layer["position"] for layer in page.facts["layers"]] == list(range(6))
    weights = weights_of(query, key, **options)
    (stored,) = page.map(4, 3).values()
    assert np.allclose(stored, weights[1, 1, 3], rtol=2**-10, atol=2**-24)
    pairs = list(zip(query.reshape(6, 4, 40, 16), key.reshape(6, 2, 40, 16), strict=True))
    listed = page_of([q[: i % 2 + 1] for i, (q, _) in enumerate(pairs)], [k[:1] for _, k in pairs])
    assert [len(layer["heads"]) for layer in listed.facts["layers"]] == [1, 2] * 3
    weights = weights_of(pairs[3][0][:2], pairs[3][1][:1])
    assert np.allclose(listed.map(3, 1)["weights"], weights[1], rtol=2**-10, atol=2**-24)


def test_nan_is_not_shown_as_a_weight(page_of):
    query, key = problem(q_len=64, kv_len=64)
    query[1, 10] = np.nan
    page = page_of(query, key, detail=16)
    planes = page.map(0, 1)
    assert (planes["max"][2] == 255).all()
    assert (planes["max"][3] < 255).all()
    assert np.isnan(page.rows(0, 1)["entropy"][10])
    assert page.facts["layers"][0]["heads"][1]["statistics"]["entropy"] is None


def test_the_same_call_has_the_same_bytes(page_of):
    query, key = problem(q_len=100)
    options = {"tokens": (None, ["é"] * 40), "detail": 32}
    first = page_of(query, key, **options).bytes
    assert page_of(query, key, threads=1, **options).bytes == first
    strided = np.repeat(query, 2, axis=-1)[..., ::2]
    assert page_of(strided, key, **options).bytes == first


def test_texts_cannot_end_the_element_that_holds_them(page_of):
    query, key = problem(q_len=3, kv_len=4)
    tokens = ["</script><script>alert(1)</script>", "\u2028 <!--", "\ud800", "&amp;"]
    names = {"layers": ["<!--facts-->/*facts*/"], "heads": ["/*style*/", "b", "c", "d"]}
    page = page_of(query, key, tokens=(None, tokens), names=names)
    assert page.facts["tokens"]["key"] == tokens
    assert page.facts["layers"][0]["name"] == names["layers"][0]
    assert page.facts["layers"][0]["heads"][0]["name"] == "/*style*/"
    plain = page_of(query, key)
    assert page.bytes.count(b"<script") == plain.bytes.count(b"<script")
    assert page.bytes.count(b"<!--") == plain.bytes.count(b"<!--") == 0


SHORT_NAMES = [
    ([f"model.layers.{n}.self_attn" for n in range(3)], ["0", "1", "2"]),
    (["a.x.b", "a.y.b", "a.b"], ["x.b", "y.b", "b"]),
    (["layer one", "layer two", "layer six"], ["layer one", "layer two", "layer six"]),
]


@pytest.mark.parametrize(("names", "labels"), SHORT_NAMES)
def test_labels_omit_what_all_names_share(page_of, names, labels):
    query, key = problem(layers=(3,))
    page = page_of(query, key, names={"layers": names})
    assert [layer["label"] for layer in page.facts["layers"]] == labels
    assert [layer["name"] for layer in page.facts["layers"]] == names
