"""Test summaries as pandas tables and as dictionaries, against the arrays that they are made of."""

import sys

import numpy as np
import pytest

import regard

ALL = regard.AttentionSummary._fields
QUERIES = ["entropy", "max", "effective_count", "mean_distance", "first_mass", "local_mass"]
LAYERS, HEADS, N = 2, 3, 7


def summary_of(shape, statistics=ALL, **options):
    x = np.random.default_rng(0).standard_normal(shape)
    tokens = np.arange(shape[-2]) % 3
    options = {"tokens": tokens, "top_k": 2, "is_causal": True} | options
    return regard.summarize_attention(x, x, statistics=statistics, **options)


@pytest.fixture
def pandas():
    return pytest.importorskip("pandas")


def test_dictionaries_have_what_was_asked_for():
    summary = summary_of((HEADS, N, 4), ("top_k", "max", "induction"))
    found = summary.to_dict()
    assert list(found) == ["max", "induction", "top_k_keys", "top_k_weights"]
    assert found["max"] is summary.max
    assert found["top_k_keys"] is summary.top_k.keys
    assert found["top_k_weights"] is summary.top_k.weights
    assert regard.AttentionSummary().to_dict() == {}


# The axes before the length, and the names of their levels.
LEADS = {
    "no heads": ((), []),
    "heads": ((HEADS,), ["head"]),
    "layers": ((LAYERS, HEADS), ["layer", "head"]),
    "batch": ((2, LAYERS, HEADS), ["batch0", "batch1", "head"]),
    "one layer": ((1, HEADS), ["layer", "head"]),
    "no layers": ((0, HEADS), ["layer", "head"]),
}


@pytest.mark.parametrize("name", LEADS)
def test_rows_are_at_their_places(name, pandas):
    lead, names = LEADS[name]
    summary = summary_of((*lead, N, 4))
    of_heads, of_queries, of_keys = (summary.to_frame(by) for by in ("head", "query", "key"))
    changed = summary.to_frame("query")
    changed.iloc[:, :] = 7  # changes no array of the summary
    assert of_queries["top_key_0"].dtype == np.int64
    assert of_heads.index.names == (names or ["head"])
    assert of_queries.index.names == [*names, "query"]
    assert of_keys.index.names == [*names, "key"]
    assert list(of_queries) == [
        *QUERIES, "top_key_0", "top_weight_0", "top_key_1", "top_weight_1"
    ]  # fmt: skip
    assert list(of_keys) == ["column_sums", "column_means"]
    assert list(of_heads) == [*QUERIES, "top_k_mass", "previous_token", "induction"]
    assert len(of_heads) == int(np.prod(lead))
    for place in np.ndindex(*lead, N):
        row = of_queries.loc[place if lead else place[0]]
        for field in QUERIES:
            assert row[field] == getattr(summary, field)[place]
        for i in range(2):
            assert row[f"top_key_{i}"] == summary.top_k.keys[(*place, i)]
            assert row[f"top_weight_{i}"] == summary.top_k.weights[(*place, i)]
        assert of_keys.loc[place if lead else place[0], "column_sums"] == summary.column_sums[place]
    for place in np.ndindex(*lead):
        row = of_heads.loc[place if len(lead) > 1 else (*place, 0)[0]]
        assert row["induction"] == summary.induction[place]
        for field in QUERIES:
            assert np.isclose(row[field], getattr(summary, field)[place].mean(), rtol=1e-14)
        weights = summary.top_k.weights[place].sum(axis=-1)
        assert np.isclose(row["top_k_mass"], weights.mean(), rtol=1e-14)


TELLING = [("max",), ("effective_count",), ("top_k",)]


@pytest.mark.parametrize("telling", TELLING)
def test_means_leave_out_queries_that_see_no_key(telling, pandas):
    """The first query has entropy 0 too, but counts, because it sees one key."""
    options = {"left_padding": 3, "mask": np.arange(HEADS)[:, None, None] != 1}
    summary = summary_of((HEADS, N, 4), ("entropy", *telling), **options)
    means = summary.to_frame()["entropy"]
    np.testing.assert_allclose(means[[0, 2]], summary.entropy[[0, 2], 3:].mean(axis=-1), rtol=1e-14)
    assert np.isnan(means[1])
    without = summary._replace(**dict.fromkeys(telling)).to_frame()["entropy"]
    np.testing.assert_allclose(without, summary.entropy.mean(axis=-1), rtol=1e-14)


def test_nan_of_a_query_is_in_the_mean_of_its_head_alone(pandas):
    x = np.random.default_rng(0).standard_normal((HEADS, N, 4))
    x[1, 5] = np.nan
    means = regard.summarize_attention(x, x, is_causal=True).to_frame()
    assert means.loc[1, QUERIES].isna().all()
    assert means.loc[[0, 2], QUERIES].notna().all(axis=None)


STARTS = {"two": [0, 3, 9], "empty ones": [0, 0, 4, 4, 9], "one": [0, 9]}


@pytest.mark.parametrize("name", STARTS)
def test_packed_sequences_are_as_each_alone(name, pandas):
    starts, x = STARTS[name], np.random.default_rng(0).standard_normal((9, HEADS, 4))
    tokens = np.arange(9) % 3
    options = {"statistics": ALL, "top_k": 2, "is_causal": True}
    packed = regard.summarize_attention_ragged(x, x, starts, starts, tokens=tokens, **options)
    for by in ("head", "query", "key"):
        frame = packed.to_frame(by, query_starts=starts, key_starts=np.array(starts))
        levels = ["sequence", "head"] if by == "head" else ["sequence", "head", by]
        assert frame.index.names == levels
        parts = []
        for number in range(len(starts) - 1):
            part = slice(starts[number], starts[number + 1])
            own = x[part].swapaxes(0, 1)
            alone = regard.summarize_attention(own, own, tokens=tokens[part], **options)
            parts.append(alone.to_frame(by))
        wanted = pandas.concat(parts, keys=range(len(parts)), names=["sequence"])
        pandas.testing.assert_frame_equal(frame, wanted, check_exact=True, check_index_type=False)


def test_the_error_without_pandas_tells_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r'pip install "\.\[pandas\]"'):
        regard.AttentionSummary(np.ones((2, 3))).to_frame()
