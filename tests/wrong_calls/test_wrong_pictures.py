"""Wrong calls of regard.show, regard.explore and regard.plot, which draw nothing."""

import numpy as np
import pytest

import regard
from messages import check, each
from regard import explore, show

EYE, X = np.eye(3), np.ones((2, 3, 4))
HEADS = np.broadcast_to(EYE, (2, 3, 3))
QUERY = np.random.default_rng(0).standard_normal((4, 40, 8), dtype=np.float32)
HALVES, NAN, TEXT = np.full((4, 4), 0.25), np.nan, ["a", "b", "c", "d"]
SUMMARY = regard.summarize_attention(X, X, statistics=["max"])
BOTH = regard.scaled_dot_product_attention(X, X, X, return_weights=True, return_lse=True)
PACKED, STARTS = np.ones((6, 2, 4)), [0, 2, 6]
RAGGED = regard.summarize_attention_ragged(PACKED, PACKED, STARTS, STARTS)
LAYERS = regard.summarize_attention(np.ones((2, 3, 5, 4)), np.ones((2, 3, 5, 4)))
FIRST, RANGES = slice(3), regard.masks.Ranges(0, [1] * 97, kv_len=130)
LONG = [[0.0]] * 9000


def drawn(name):
    """Return a function of regard.plot, which imports matplotlib when it is called."""
    return lambda *arguments, **options: getattr(regard.plot, name)(*arguments, **options)


attention, heads, compare, pattern, statistics, layer_heads = map(
    drawn, ("attention", "heads", "compare", "pattern", "statistics", "layer_heads")
)


def page(**options):
    return explore(QUERY, QUERY, **options)


def square(tokens, q_len=4, kv_len=4, **options):
    return explore(np.ones((1, q_len, 2)), np.ones((1, kv_len, 2)), tokens=tokens, **options)


PAGES = [
    (lambda: show(EYE > 0), TypeError, "weights must be an array of ... got bool"),
    (lambda: show(RANGES), TypeError, "weights must be an array of ... got Ranges"),
    (lambda: show(EYE[0]), ValueError, "weights must have shape (..., q_len ... got shape (3,)"),
    (lambda: show([[0.5, -0.1]]), ValueError, "weights must be from 0 to ... got -0.1 at"),
    (lambda: show([[NAN, 3.0]]), ValueError, "weights must be from 0 to ... got 3 at"),
    (lambda: show([[[0.5, 0.5]], [[0.6, 0.6]]]), ValueError, "weights must add up ... got 1.2 in"),
    (lambda: show([[0.9, 0.8], [0.1, 0.2]]), ValueError, "weights must ... got 1.7 ... swap the"),
    (lambda: show(EYE, ["a"]), ValueError, "tokens must have one str for ... got 1"),
    (lambda: show(HEADS, head=-3), ValueError, "head must be within the leading axes (2,), got"),
    (lambda: show(HEADS, head="a"), TypeError, "head must be an int or a tuple of ints, got <U1"),
    (lambda: square(TEXT, kv_len=5), ValueError, "tokens must have one str for ... got 4"),
    (lambda: square(TEXT, q_len=2, query_offset=3), ValueError, "tokens must be a ... got one"),
    (lambda: square((TEXT, TEXT), q_len=3), ValueError, "tokens[0] must have one str ... got 4"),
    (lambda: square(("ab", TEXT), q_len=2), TypeError, "tokens[1] must be a str, got list"),
    (lambda: square((None, [1, 2, 3, 4])), TypeError, "tokens[1][0] must ... pass the"),
    (lambda: page(names={"layer": ["a"]}), ValueError, "names must have the keys ... got layer"),
    (lambda: page(names=["a"]), TypeError, "names must be a mapping, got list"),
    (lambda: page(names={"heads": "abcd"}), TypeError, "names['heads'] must be a ... got 'abcd'"),
    (lambda: page(statistics=["entropie"]), ValueError, "statistics must be of"),
    (lambda: page(detail=8), ValueError, "detail must be at least 16, got 8"),
    (lambda: page(regions=[FIRST]), TypeError, "regions[0] must be a pair ... got slice(None, 3"),
    (lambda: page(regions=[(3, 4)]), TypeError, "regions[0] must have slices of ... got int"),
    (lambda: page(regions=[(slice(50, 60), FIRST)]), ValueError, "regions[0]"),
    (lambda: page(regions=[(0, 4, FIRST, FIRST)]), ValueError, "regions[0]'s head must ... got 4"),
    (lambda: page(tile_bytes=-1), ValueError, "tile_bytes must be at least 0, got -1"),
    (lambda: page(tile_bytes=10**9, detail=16), ValueError, "max_bytes must be at ... got 100 MB"),
    (lambda: page(max_bytes="10 MB"), TypeError, "max_bytes must be an int, got str"),
    (lambda: page(tokens=["é" * 10**6] * 40), ValueError, "max_bytes must be at ... got 100 MB"),
    (lambda: page(progress=3), TypeError, "progress must be True, False or ... got int"),
    (lambda: page(window=3), TypeError, "window must be a pair (left ... got int"),
    (lambda: explore(X, X[:, :0]), ValueError, "query and key must have at ... got 3 and"),
    (lambda: explore(X[:0], X[:0]), ValueError, "query must have at least one ... got none"),
    (lambda: explore([X[None]], [X[None]]), ValueError, "query and key must be ... got shapes (1"),
    (lambda: explore([X, X[:, :2]], [X, X]), ValueError, "query and key must have ... got (3, 3)"),
    (lambda: explore(None, X), TypeError, "explore() needs query and key, or weights="),
    (lambda: explore(X, None), TypeError, "key must be an array ... got None"),
    (lambda: explore(weights=HEADS, query=X), TypeError, "query must be left out with"),
    (lambda: explore(weights=HEADS, mask=EYE > 0), TypeError, "mask must be left out with"),
    (lambda: explore(weights=[[1, 2]]), ValueError, "weights must be from 0 to ... got 2 at"),
    (lambda: explore(weights=HEADS[0, 0]), ValueError, "weights must have ... got shape (3,)"),
    (lambda: explore(weights=[HEADS, HEADS[:, 0]]), ValueError, "weights must have"),
    (lambda: explore(weights=[np.stack([HEADS] * 2)]), ValueError, "weights[0] must"),
    (lambda: explore(weights=[HEADS, None]), TypeError, "weights must be an array ... got a list"),
    (lambda: explore(weights=()), ValueError, "weights must have at ... got () ... record()"),
    (lambda: explore(weights=HEADS[:0]), ValueError, "weights must have at least one"),
]
PLOTS = [
    (lambda: attention(X, layer=0), TypeError, "no argument layer ... pass head=(layer, head)"),
    (lambda: attention(HEADS), ValueError, "head must select one ... regard.plot.heads draws all"),
    (lambda: attention(HEADS, head=2), ValueError, "head must be within the leading ... got 2"),
    (lambda: attention(HEADS, head=(0, 1)), ValueError, "head must have an int for"),
    (lambda: attention(HALVES[:2], TEXT), ValueError, "tokens must be a pair"),
    (lambda: attention(EYE, "abc"), TypeError, "tokens must be a ... got a str ... split it into"),
    (lambda: attention(EYE, is_causal=True), TypeError, "is_causal must be left ... pass a pair"),
    (lambda: attention(EYE, figure=1), TypeError, "no argument figure ... pass ax=, such as"),
    (lambda: attention(EYE, reduce="min"), ValueError, "reduce must be 'max', 'sum'"),
    (lambda: attention(EYE, region=FIRST), TypeError, "region must be a ... got slice(None, 3"),
    (lambda: attention(EYE, region=(slice(3, 2), FIRST)), ValueError, "there is nothing to draw"),
    (lambda: attention(EYE, log=1), TypeError, "log must be True or False, got int"),
    (lambda: attention(EYE, norm="log"), TypeError, "norm must be a matplotlib Normalize, got"),
    (lambda: attention(EYE, ax=3), TypeError, "ax must be a matplotlib Axes, got int"),
    (lambda: attention(EYE, query_offset=[1, 2]), ValueError, "query_offset must be one"),
    (lambda: attention((X, X, X)), TypeError, "attention() accepts weights ... pass the"),
    (lambda: attention((X, "x")), TypeError, "key must be an array of ... got <U1"),
    (lambda: attention((LONG, LONG), shape=(9000, 9000)), ValueError, "shape must give ... got 1"),
    (lambda: heads(HEADS[:0]), ValueError, "there is nothing to draw: 3"),
    (lambda: heads(np.zeros((401, 1, 1))), ValueError, "at most 400 heads fit in ... got 401"),
    (lambda: heads(HEADS, names=["a"]), ValueError, "names must have one for each head, 2, got 1"),
    (lambda: heads(HEADS, columns=0), ValueError, "columns must be at least 1, got 0"),
    (lambda: heads(HEADS, figure=1), TypeError, "figure must be a matplotlib Figure, got int"),
    (lambda: compare(EYE, np.eye(4)), ValueError, "a and b must have the ... got 3 queries"),
    (lambda: compare(EYE, EYE, names="ab"), TypeError, "names must be a pair of str, got 'ab'"),
    (lambda: compare(HEADS), TypeError, "b or other_head must be given, got neither"),
    (lambda: compare(HEADS, head=0, other_head=2), ValueError, "other_head must be within"),
    (lambda: compare(EYE, EYE, vmin=0), ValueError, "vmin must be left ... the scale goes from"),
    (lambda: attention(BOTH[:2]), ValueError, "attention() accepts weights ... pass the weights"),
    (lambda: compare(BOTH, EYE), TypeError, "compare() accepts weights or ... got a ... pass the"),
    (lambda: pattern(), TypeError, "q_len must be given if there is no mask"),
    (lambda: pattern(q_len=3, query_offset=2**62), ValueError, "query_offset"),
    (lambda: pattern(q_len=10**12), ValueError, "q_len and kv_len must ... got 1,000,000,000,000"),
    (lambda: pattern(q_len=0), ValueError, "there is nothing to draw: 0 queries and 0 keys"),
    (lambda: pattern(RANGES, 5), ValueError, "mask must broadcast to (q_len ... got shape (97"),
    (lambda: pattern(q_len=3, kv_len=4, query_offset=2, tokens=TEXT), ValueError, "tokens must"),
    (lambda: statistics(X), TypeError, "summary must be a result of ... got ndarray"),
    (lambda: statistics(SUMMARY, fields=["mux"]), ValueError, "fields must be of ... got 'mux'"),
    (lambda: statistics(SUMMARY, fields="entropy"), ValueError, "fields contains 'entropy',"),
    (lambda: statistics(SUMMARY, fields=[]), ValueError, "summary has no field to draw"),
    (lambda: statistics(SUMMARY, ax=3), TypeError, "no argument ax ... pass figure=, since the"),
    (lambda: statistics(RAGGED, fields="max"), ValueError, "summary must have ... got entropy of"),
    (lambda: statistics(type(SUMMARY)(max=X[:, :0, 0])), ValueError, "summary has nothing to"),
    (lambda: statistics(LAYERS, names={"layers": ["a"]}), ValueError, "names['layers'] ... got 1"),
    (lambda: layer_heads([1.0]), ValueError, "values must be ... got shape ... pass values[None]"),
    (lambda: layer_heads(EYE, label=3), TypeError, "label must be a str, got int"),
]


@each(PAGES)
def test_pages(wrong, error, parts, monkeypatch):
    monkeypatch.setattr("regard._explore._function.heads_of", None)  # no work is begun
    check(wrong, error, parts)


@pytest.fixture
def pyplot():
    pytest.importorskip("matplotlib").use("Agg")
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


@each(PLOTS)
def test_plots(wrong, error, parts, pyplot):
    check(wrong, error, parts)
    assert not pyplot.get_fignums()


def test_a_figure_whose_drawing_fails_is_closed(pyplot):
    def stop(done, all):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        regard.plot.attention((X, X), head=0, progress=stop)
    with pytest.raises(KeyboardInterrupt):
        regard.plot.heads((X, X), progress=stop)
    check(lambda: regard.plot.attention(EYE, cmap="no such map"), ValueError, "not a valid value")
    assert not pyplot.get_fignums()
