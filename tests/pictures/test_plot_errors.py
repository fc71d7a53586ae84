"""Test what the functions of regard.plot refuse before they draw anything."""

import re

import numpy as np
import pytest

import regard

pytest.importorskip("matplotlib")

EYE = np.eye(3)
HEADS = np.broadcast_to(EYE, (2, 3, 3))
X = np.ones((2, 3, 4))
SUMMARY = regard.summarize_attention(X, X, statistics=["max"])
Y = np.random.default_rng(0).standard_normal((2, 3, 3))  # each has as many keys as numbers
WITH_LSE = regard.scaled_dot_product_attention(Y, Y, Y, return_weights=True, return_lse=True)
STARTS = [0, 2, 6]
PACKED = np.ones((6, 2, 4))
RAGGED = regard.summarize_attention_ragged(PACKED, PACKED, STARTS, STARTS)
OF_MORE_KEYS = regard.summarize_attention_ragged(
    PACKED[:3], PACKED, [0, 1, 3], STARTS, statistics=["entropy", "column_sums"]
)

CASES = {
    "attention": [
        ((X,), {"layer": 0}, TypeError, "no argument layer: pass head=(layer, head)"),
        ((None,), {}, TypeError, "weights must be an array, got None"),
        ((EYE * 2,), {}, ValueError, "weights must be from 0 to 1, got 2 at [0, 0]"),
        ((EYE[0],), {}, ValueError, "weights must have shape (..., q_len, kv_len), got shape (3,)"),
        ((HEADS,), {}, ValueError, "head must select one head, since the leading axes are (2,)"),
        ((HEADS,), {"head": 2}, ValueError, "head must be within the leading axes (2,), got 2"),
        ((HEADS,), {"head": (0, 1)}, ValueError, "head must have an int for each of the leading"),
        ((EYE,), {"head": 0}, ValueError, "head must be left out if there are no leading axes"),
        ((HEADS,), {"head": 0.5}, TypeError, "head must be an int or a tuple of ints"),
        ((EYE, ["a", "b"]), {}, ValueError, "tokens must have one str for each key, 3, got 2"),
        ((EYE, "abc"), {}, TypeError, "tokens must be a sequence of str"),
        ((EYE,), {"is_causal": True}, TypeError, "is_causal must be left out with weights"),
        ((EYE,), {"mask": EYE > 0}, TypeError, "mask must be left out with weights"),
        ((EYE,), {"causal": True}, TypeError, "has no argument causal: pass is_causal=True"),
        ((EYE,), {"color": 1}, TypeError, "has no argument color"),
        ((EYE,), {"extent": (0, 1, 0, 1)}, TypeError, "has no argument extent"),
        ((EYE,), {"figure": 1}, TypeError, "no argument figure: pass ax=, such as figure.subplots"),
        ((EYE,), {"regions": []}, TypeError, "no argument regions: did you mean region=?"),
        (
            (EYE,),
            {"zzz": 1},
            TypeError,
            "weights_or_query_key, tokens, head, region, shape, reduce",
        ),
        ((EYE,), {"zzz": 1}, TypeError, "log, colorbar, ax, mask, progress, is_causal, query_off"),
        ((EYE,), {"reduce": "min"}, ValueError, "reduce must be 'max', 'sum' or 'mean'"),
        ((EYE,), {"shape": 3}, TypeError, "shape must be a pair (height, width), got 3"),
        ((EYE,), {"shape": (0, 3)}, ValueError, "shape must be at least 1, got 0"),
        ((EYE,), {"region": slice(2)}, TypeError, "region must be a pair of slices"),
        ((EYE,), {"region": (slice(2), 1)}, TypeError, "region must be a pair of slices, got int"),
        (
            (EYE,),
            {"region": (slice(3, 2), slice(2))},
            ValueError,
            "there is nothing to draw: 0",
        ),
        ((np.zeros((0, 3)),), {}, ValueError, "there is nothing to draw: 0 queries and 3 keys"),
        ((EYE,), {"log": 1}, TypeError, "log must be True or False, got int"),
        ((EYE,), {"colorbar": None}, TypeError, "colorbar must be True or False, got NoneType"),
        ((EYE,), {"norm": "log"}, TypeError, "norm must be a matplotlib Normalize, got str"),
        ((EYE,), {"ax": 3}, TypeError, "ax must be a matplotlib Axes, got int"),
        (
            (EYE,),
            {"progress": 3},
            TypeError,
            "progress must be True, False or a function of (done, total), got int",
        ),
        ((EYE,), {"query_offset": [1, 2]}, ValueError, "query_offset must be one number with"),
        (((X, X, X),), {}, TypeError, "accepts weights or a pair (query, key), got a tuple of 3"),
        ((WITH_LSE,), {"head": 0}, TypeError, "got a tuple of 3: pass the second entry of the res"),
        (([Y, Y],), {"head": (0, 0)}, ValueError, "weights must be from 0 to 1, got"),
        (([EYE == 1, EYE == 1],), {}, TypeError, "weights must be an array of float, got bool"),
        (([EYE.astype(str)] * 2,), {}, TypeError, "weights must be an array of float, got <U"),
        (([X, Y],), {"head": 0}, ValueError, "weights must be an array or a regular nested list"),
        (((X, X[..., :2]),), {"head": 0}, ValueError, "query and key must share head_dim, got 4"),
        (((X, X),), {"head": 0, "window": 3}, TypeError, "window must be a pair (left, right)"),
        (((X, X),), {"head": 0, "mask": EYE.astype(int)}, TypeError, "mask must be bool"),
        (((X, "x"),), {}, TypeError, "key must be an array of float16"),
        (
            (([[0.0]] * 9000, [[0.0]] * 9000),),
            {"shape": (9000, 9000)},
            ValueError,
            "shape must give at most 33,554,432 pixels, got 1 x 9,000 x 9,000: pass a",
        ),
    ],
    "heads": [
        ((np.zeros((0, 3, 3)),), {}, ValueError, "nothing to draw: 3 queries and 3 keys of 0"),
        ((np.zeros((401, 1, 1)),), {}, ValueError, "at most 400 heads fit in one figure, got 401"),
        ((HEADS,), {"names": ["a"]}, ValueError, "names must have one for each head, 2, got 1"),
        ((HEADS,), {"names": "ab"}, TypeError, "names must be an iterable of str, got a str"),
        ((HEADS,), {"names": [1, 2]}, TypeError, "names must be an iterable of str, got a int in"),
        ((HEADS,), {"columns": 0}, ValueError, "columns must be at least 1, got 0"),
        ((HEADS,), {"figure": 1}, TypeError, "figure must be a matplotlib Figure, got int"),
        ((HEADS,), {"head": 1}, TypeError, "no argument head: regard.plot.attention draws one"),
        ((HEADS,), {"ax": 1}, TypeError, "no argument ax: pass figure="),
        ((HEADS,), {"zzz": 1}, TypeError, "log, colorbar, figure, mask, progress"),
        ((WITH_LSE,), {}, TypeError, "got a tuple of 3: pass the second entry of the result"),
    ],
    "compare": [
        ((EYE, np.eye(4)), {}, ValueError, "a and b must have the same lengths, got 3 queries and"),
        ((EYE, -EYE), {}, ValueError, "weights must be from 0 to 1"),
        ((EYE, EYE), {"names": "ab"}, TypeError, "names must be a pair of str, got 'ab'"),
        ((EYE, EYE), {"vmin": 0}, ValueError, "vmin must be left out: the scale goes from -vmax"),
        ((EYE, EYE), {"log": 1}, TypeError, "log must be True or False, got int"),
        ((EYE, EYE), {"head": 1}, ValueError, "head must be left out if there are no leading"),
        ((WITH_LSE, EYE), {}, TypeError, "got a tuple of 3: pass the second entry of the result"),
    ],
    "pattern": [
        ((), {}, TypeError, "q_len must be given if there is no mask"),
        ((), {"q_len": 2.0}, TypeError, "q_len must be an int, got float"),
        ((), {"q_len": 3, "query_offset": 2**62}, ValueError, "query_offset must be from -1,099"),
        ((), {"q_len": 10**12}, ValueError, "q_len and kv_len must be at most 134,217,728 in a"),
        ((), {"q_len": 0}, ValueError, "there is nothing to draw: 0 queries and 0 keys"),
        ((EYE > 0,), {"q_len": 4}, ValueError, "mask must broadcast to (q_len, kv_len) = (4, 3)"),
        ((EYE.astype(int),), {}, TypeError, "mask must be bool"),
        ((HEADS > 0,), {}, ValueError, "head must select one head"),
        ((), {"q_len": 3, "key_lengths": [1, 2]}, ValueError, "key_lengths must be one number for"),
        ((), {"q_len": 3, "key_lengths": 4}, ValueError, "key_lengths"),
        ((), {"q_len": 3, "vmax": 4}, ValueError, "vmax must be left out"),
        ((), {"q_len": 3, "scale": 4}, TypeError, "has no argument scale: leave it out"),
        ((), {"q_len": 3, "zzz": 4}, TypeError, "tokens, head, region, shape, colorbar, ax, is_ca"),
        (
            (),
            {"q_len": 3, "kv_len": 4, "query_offset": 2, "tokens": list("abcd")},
            ValueError,
            "one sequence for 4 keys and queries at positions 2 to 4",
        ),
    ],
    "statistics": [
        ((X,), {}, TypeError, "summary must be a result of regard.summarize_attention, got nd"),
        ((SUMMARY,), {"fields": ["mux"]}, ValueError, "fields must be of entropy, effective_count"),
        ((SUMMARY,), {"fields": "entropy"}, ValueError, "contains 'entropy', which the summary"),
        ((SUMMARY,), {"fields": 3}, TypeError, "fields must be an iterable of str, got int"),
        ((SUMMARY,), {"fields": [[]]}, TypeError, "fields must be an iterable of str, got a list"),
        ((SUMMARY,), {"ax": 3}, TypeError, "no argument ax: pass figure="),
        (
            (SUMMARY,),
            {"zzz": 3},
            TypeError,
            "arguments are summary, tokens, fields, names, figure, cmap",
        ),
        (
            (RAGGED,),
            {"fields": "max"},
            ValueError,
            "got entropy of shape (6, 2) and previous_token",
        ),
        ((OF_MORE_KEYS,), {}, ValueError, "got entropy of shape (3, 2) and column_sums of shape"),
        ((SUMMARY,), {"fields": []}, ValueError, "summary has no field to draw"),
        ((type(SUMMARY)(),), {}, ValueError, "summary has no field to draw"),
        (
            (type(SUMMARY)(max=np.zeros((2, 0))),),
            {},
            ValueError,
            "summary has nothing to draw: max",
        ),
        ((SUMMARY, ["a"]), {}, ValueError, "tokens must have one str for each key, 3, got 1"),
    ],
}


@pytest.mark.parametrize(
    ("name", "arguments", "keywords", "error", "message"),
    [(name, *case) for name, cases in CASES.items() for case in cases],
)
def test_what_is_refused(pyplot, name, arguments, keywords, error, message):
    with pytest.raises(error, match=re.escape(message)):
        getattr(regard.plot, name)(*arguments, **keywords)
    assert not pyplot.get_fignums()


def test_a_figure_whose_drawing_fails_is_closed(pyplot):
    def stop(done, all):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        regard.plot.attention((X, X), head=0, progress=stop)
    with pytest.raises(KeyboardInterrupt):
        regard.plot.heads((X, X), progress=stop)
    with pytest.raises(ValueError, match="not a valid value"):
        regard.plot.attention(EYE, cmap="no such map")
    assert not pyplot.get_fignums()


def test_a_missing_matplotlib_is_named(output_of):
    script = """
    import sys
    sys.modules["matplotlib"] = None
    import regard
    try:
        regard.plot
    except ImportError as error:
        print(error)
    """
    assert output_of(script) == (
        'regard.plot needs the matplotlib package: in a clone of regard, pip install ".[plot]"'
    )


def test_regard_alone_imports_no_matplotlib(output_of):
    script = "import regard, sys; print('matplotlib' in sys.modules, 'regard.plot' in sys.modules)"
    assert output_of(script) == "False False"
