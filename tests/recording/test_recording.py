"""Test recordings: their contents, how parts of them are chosen, and what calls do with them."""

import numpy as np
import pytest

import regard

EPS = np.finfo(np.float64).eps
RNG = np.random.default_rng(0)


def drawn(*shape):
    return RNG.standard_normal(shape)


def layer(name="one", batch=(), heads=4, kv_heads=2, q_len=6, kv_len=6, mask=None, **options):
    query, key = drawn(*batch, heads, q_len, 8), drawn(*batch, kv_heads, kv_len, 8)
    return regard.RecordedLayer(name, query, key, mask, **options)


def weights_of(one):
    return regard.scaled_dot_product_attention(
        one.query, one.key, one.key, one.mask, **one.options, return_weights=True
    )[1]


# Layers with the same sizes but different options.
def recording(batch=(), tokens=True):
    texts = list("abcabc") if tokens else None
    common = {"query_tokens": texts, "key_tokens": texts}
    bias = np.linspace(-1, 1, 36).reshape(6, 6)
    return regard.Recording(
        [
            layer("encoder.0.attn", batch, is_causal=True, **common),
            layer("encoder.1.attn", batch, window=(2, 1), softcap=3.0, **common),
            layer("encoder.10.attn", batch, kv_heads=4, mask=bias, sinks=[0.0, 1, 2, 3], **common),
            layer("decoder.0.attn", batch, mask=regard.masks.sliding(6, window=(3, 0)), **common),
            layer("decoder.0.attn:2", batch, alibi_slopes=np.ones(4), scale=0.5, **common),
        ]
    )


def test_a_sequence_of_layers():
    whole = recording()
    assert len(whole) == 5
    assert [each.name for each in whole] == list(whole.names)
    assert whole[-1] is whole.layers[4] is whole["decoder.0.attn:2"]
    assert whole[1:3].names == ("encoder.1.attn", "encoder.10.attn")
    assert type(whole[1:3]) is regard.Recording
    joined = regard.Recording([*whole, *whole])
    assert len(joined) == 10
    assert joined.nbytes == whole.nbytes == sum(each.nbytes for each in whole)


@pytest.mark.parametrize(
    ("layers", "numbers"),
    [
        (1, [1]),
        ([3, 0, 3], [0, 3]),
        (slice(1, None, 2), [1, 3]),
        ("encoder", [0, 1, 2]),
        ("encoder.1", [1]),
        ("decoder.0.attn", [3, 4]),
        (["decoder", 0], [0, 3, 4]),
        ("attn", [0, 1, 2, 3, 4]),
        (["1", ".0.attn:2"], [1, 4]),
        (np.array([2, 1]), [1, 2]),
    ],
)
def test_select(layers, numbers):
    whole = recording()
    assert whole.select(layers).layers == tuple(whole[i] for i in numbers)


def test_one_entry_of_a_batch():
    lengths = np.array([6, 4, 2])
    texts = np.array([list("abcdef"), list("ghijkl"), list("mnopqr")])
    mask = drawn(3, 1, 1, 6)
    one = layer("a", (3,), mask=mask, key_lengths=lengths, scale=drawn(3, 4), key_tokens=texts)
    whole = regard.Recording([one])
    for place in (0, 2, -1, (1,)):
        (entry,) = whole.entry(place)
        index = place[0] if isinstance(place, tuple) else place
        assert np.array_equal(entry.query, one.query[index])
        assert entry.options["key_lengths"] == lengths[index]
        assert entry.key_tokens.tolist() == texts[index].tolist()
        assert np.array_equal(weights_of(entry), weights_of(one)[index])


@regard.ScoreFunction.c_type("float64")
def _by_place(scores, queries, keys, stride, positions, first_key, head, entry, user_data):
    """Add a term that depends on the head and the batch entry."""
    for key in range(keys):
        for query in range(queries):
            scores[key * stride + query] += (1 + head) * entry * (first_key + key)


def test_parts_keep_the_place_that_a_score_function_is_told():
    one = layer("a", (2,), score_function=regard.ScoreFunction(_by_place, dtype="float64"))
    whole, wanted = regard.Recording([one]), weights_of(one)
    other = regard.RecordedLayer("b", one.query, one.key)
    assert np.abs(weights_of(other)[1] - wanted[1]).max() > 0.1
    for entry in range(2):
        text = whole.entry(entry)
        for head in range(4):
            assert np.abs(text.map(0, head) - wanted[entry, head]).max() <= 64 * EPS
        largest = text.summarize(statistics="max").max[0]
        assert np.abs(largest - wanted[entry].max(axis=-1)).max() <= 64 * EPS


@pytest.mark.parametrize("batch", [(), (2,)])
def test_summaries_have_an_axis_for_layers(batch):
    whole = recording(batch)
    names = list(regard.AttentionSummary._fields)
    wanted = {"statistics": names, "top_k": 3, "first_keys": 2, "local_reach": 1}
    summary = whole.summarize(**wanted)
    for number, each in enumerate(whole):
        own = regard.summarize_attention(
            each.query, each.key, each.mask, **each.options, tokens=each.key_tokens, **wanted
        )
        for name in names:
            ours, theirs = getattr(summary, name), getattr(own, name)
            for one, other in zip(
                *((x if isinstance(x, tuple) else (x,)) for x in (ours, theirs)), strict=True
            ):
                assert np.array_equal(one[number], other, equal_nan=True), name
        alone = regard.summarize_attention(each, statistics="entropy")
        assert np.array_equal(alone.entropy, own.entropy)
    assert summary.entropy.shape == (5, *batch, 4, 6)
    assert whole.summarize().induction is None


@pytest.mark.parametrize(
    "regions", [None, [(slice(0, 2), slice(1, 5)), (slice(3, 6), slice(0, 6))]]
)
def test_maps(regions):
    whole = recording((1,))
    words = {"shape": (3, 3), "reduce": "sum", "regions": regions}
    pictures = regard.attention_map(whole, **words)
    for number, each in enumerate(whole):
        own = regard.attention_map(each.query, each.key, each.mask, **each.options, **words)
        pairs = [(pictures, own)] if regions is None else zip(pictures, own, strict=True)
        for of_all, of_one in pairs:
            assert np.array_equal(of_all[number], of_one)
        for head in (0, 3, -1):
            of_head = whole.map(each.name, head, **words)
            of_one = [own] if regions is None else own
            for ours, theirs in zip([of_head] if regions is None else of_head, of_one, strict=True):
                assert np.array_equal(ours, theirs[0, head])
    assert np.array_equal(whole.map(-1, 2), whole.map("decoder.0.attn:2", 2))


def test_rollout_goes_through_all_layers():
    whole = recording((2,))
    found = whole.rollout(queries=[2, 5], residual=0.25, threads=1)
    rows = np.broadcast_to(np.eye(6), (2, 6, 6))
    for each in whole:
        weights = weights_of(each).mean(axis=1)
        rest = 1 - weights.sum(axis=-1, keepdims=True)  # the share of the sinks
        rows = 0.25 * rows + 0.75 * (weights @ rows + rest * rows)
    assert found.shape == (2, 2, 6)
    assert np.abs(found - rows[:, [2, 5]]).max() <= 256 * EPS


def test_a_page_has_names_and_tokens():
    page = recording((1,)).explore(top_k=2)
    facts = page._facts
    assert [each["name"] for each in facts["layers"]] == list(recording().names)
    assert facts["tokens"]["key"] == list("abcabc")
    assert facts["layers"][0]["heads"][0]["statistics"].keys() >= {"induction"}
    assert "is_causal differs between layers" in facts["options"]
    assert recording(tokens=False).explore()._facts["tokens"] is None
    other = recording().explore(tokens=list("xyzxyz"), names={"heads": list("pqrs")})
    assert other._facts["tokens"]["key"] == list("xyzxyz")


def test_options_at_their_defaults_are_left_out():
    one = layer(is_causal=False, query_offset=0, window=None, scale=np.float32(0.5), sinks=None)
    assert dict(one.options) == {"scale": 0.5}
    assert type(one.options["scale"]) is float
