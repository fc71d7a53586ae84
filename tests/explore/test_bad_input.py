"""What cannot be shown is refused before any work, with the name of the argument."""

import re

import numpy as np
import pytest

import regard
from explorer_pages import problem

QUERY, KEY = problem()
CASES = [
    ({"tokens": ["a"] * 39}, ValueError, "tokens must have one str for each key, 40, got 39"),
    ({"tokens": "a text"}, TypeError, "split it into tokens"),
    ({"tokens": [1] * 40}, TypeError, "tokens[0] must be a str"),
    ({"tokens": ["a"] * 40, "query_offset": 5}, ValueError, "positions 5 to 44"),
    ({"names": {"layer": ["a"]}}, ValueError, "keys 'layers', 'heads' or both, got layer"),
    ({"names": ["a"]}, TypeError, "names must be a mapping, got list"),
    ({"names": {"heads": ["a"]}}, ValueError, "names['heads'] must have 4 names, got 1"),
    ({"names": {"heads": "abcd"}}, TypeError, "names['heads'] must be a sequence of str"),
    ({"names": {"heads": None}}, TypeError, "names['heads'] must be a sequence of str, got None"),
    ({"names": {"layers": 3}}, TypeError, "names['layers'] must be a sequence of str, got 3"),
    ({"names": {"layers": [0]}}, TypeError, "names['layers'] must be a sequence of str"),
    ({"statistics": ["entropie"]}, ValueError, "statistics must be of entropy, max"),
    ({"statistics": 3}, TypeError, "statistics must be an iterable of str, got int"),
    ({"statistics": [None]}, ValueError, "statistics must be of entropy, max"),
    ({"statistics": "induction"}, TypeError, "statistics with 'induction' need tokens: one seq"),
    (
        {"statistics": ["induction"], "tokens": (["q"] * 40, ["k"] * 40)},
        TypeError,
        "statistics with 'induction' need tokens: one sequence",
    ),
    ({"top_k": 0}, ValueError, "top_k must be at least 1, got 0"),
    ({"top_k": 65}, ValueError, "top_k must be at most 64, got 65"),
    ({"top_k": 2.0}, TypeError, "top_k must be an int, got float"),
    ({"first_keys": -1}, ValueError, "first_keys must be at least 0"),
    ({"local_reach": "far"}, TypeError, "local_reach must be an int, got str"),
    ({"detail": 8}, ValueError, "detail must be at least 16, got 8"),
    ({"detail": (3, 4)}, TypeError, "detail must be an int, got tuple"),
    ({"regions": 3}, TypeError, "regions must be an iterable of tuples of slices, got int"),
    ({"regions": [slice(3)]}, TypeError, "regions[0] must be a pair of slices"),
    ({"regions": [(slice("a"), slice(1))]}, TypeError, "regions[0] must have slices of ints"),
    ({"regions": [(3, 4)]}, TypeError, "regions[0] must have slices of queries and keys, got int"),
    ({"regions": [(slice(3), slice(0, 9, 2))]}, ValueError, "without steps"),
    ({"regions": [(slice(50, 60), slice(3))]}, ValueError, "select something of 40"),
    ({"regions": [(0, 4, slice(3), slice(3))]}, ValueError, "head must be at most 3, got 4"),
    ({"regions": [(1, 0, slice(3), slice(3))]}, ValueError, "layer must be at most 0, got 1"),
    ({"tile_bytes": -1}, ValueError, "tile_bytes must be at least 0, got -1"),
    ({"tile_bytes": "all"}, TypeError, "tile_bytes must be an int, got str"),
    ({"tile_bytes": 10**9, "detail": 16}, ValueError, "tiles 1 GB), got 100 MB: show"),
    (
        {"max_bytes": 1000},
        ValueError,
        "(detail 13.7 kB, top_k and statistics 9.22 kB), got 1 kB: show",
    ),
    (
        {"max_bytes": 10},
        ValueError,
        "must be at least about 137 kB for a page of 4 heads",
    ),
    ({"max_bytes": 10}, ValueError, "got 10 bytes: show"),
    ({"max_bytes": "10 MB"}, TypeError, "max_bytes must be an int, got str"),
    ({"tokens": ["é" * 10**6] * 40}, ValueError, "tokens 240 MB), got 100 MB"),
    (
        {"progress": 3},
        TypeError,
        "progress must be True, False or a function of (done, total), got int",
    ),
    ({"mask": np.ones((3, 3), bool)}, ValueError, "mask"),
    ({"attn_mask": None}, TypeError, "pass mask="),
    ({"dropout_p": 0.1}, TypeError, "explore() has no argument dropout_p"),
    ({"window": 3}, TypeError, "window must be"),
]


@pytest.mark.parametrize(("options", "error", "message"), CASES)
def test_options(options, error, message, monkeypatch):
    monkeypatch.setattr("regard._explore._function.heads_of", None)  # no work is begun
    with pytest.raises(error, match=re.escape(message)):
        regard.explore(QUERY, KEY, **options)


ARRAYS = [
    (np.zeros((4, 5, 3)), np.zeros((4, 5, 2)), ValueError, "head_dim"),
    (np.zeros((3, 5, 3)), np.zeros((2, 5, 3)), ValueError, "heads"),
    (np.zeros((0, 5, 3)), np.zeros((0, 5, 3)), ValueError, "at least one layer and one head"),
    (np.zeros((0, 2, 5, 3)), np.zeros((0, 2, 5, 3)), ValueError, "at least one layer"),
    (
        np.zeros((2, 0, 3)),
        np.zeros((2, 5, 3)),
        ValueError,
        "one query and one key, got 0 and 5",
    ),
    (
        np.zeros((2, 5, 3)),
        np.zeros((2, 0, 3)),
        ValueError,
        "one query and one key, got 5 and 0",
    ),
    ([QUERY], KEY, TypeError, "both be lists of the layers' arrays, got list and ndarray"),
    ([QUERY] * 2, [KEY], ValueError, "lists of the same length, one array for each layer"),
    ([QUERY[None]], [KEY[None]], ValueError, "without batch axes"),
    ([QUERY, QUERY[:, :5]], [KEY, KEY], ValueError, "the same q_len and kv_len in all layers"),
    (np.array(["a"]), KEY, TypeError, "query"),
    (None, KEY, TypeError, "needs query and key, or weights="),
    (QUERY, None, TypeError, "key must be an array, got None"),
]


@pytest.mark.parametrize(("query", "key", "error", "message"), ARRAYS)
def test_arrays(query, key, error, message):
    with pytest.raises(error, match=re.escape(message)):
        regard.explore(query, key)


def test_a_page_that_would_be_too_large_says_what_takes_the_room():
    query = np.broadcast_to(np.float32(0), (64, 32_768, 64))
    with pytest.raises(ValueError, match=r"about \d+ MB .* got 100 MB: show ") as raised:
        regard.explore(query, query, top_k=64)
    assert "top_k and statistics" in str(raised.value)


@pytest.mark.parametrize("shape", [(3, 100, 16), (2, 900, 8)])
def test_the_estimate_is_not_far_below_the_size(shape):
    query = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    size = regard.explore(query, query).nbytes
    with pytest.raises(ValueError, match="max_bytes must be at least about"):
        regard.explore(query, query, max_bytes=size // 2)


@pytest.mark.parametrize("has_mask", [False, True])
def test_a_page_that_is_too_large_is_refused_before_anything_is_read(has_mask):
    """To count what a mask of 2^48 elements shows would take days."""
    n = 2**24
    x = np.broadcast_to(np.float32(1), (1, n, 4))
    mask = np.broadcast_to(np.float32(0), (n, n)) if has_mask else None
    with pytest.raises(ValueError, match="max_bytes must be at least about 967"):
        regard.explore(x, x, mask)


@pytest.mark.slow
def test_many_heads_have_smaller_pictures(page_of):
    query = np.zeros((100, 600, 1), np.float32)
    assert page_of(query, query, statistics=(), top_k=1).facts["shape"] == [256, 256]


def test_importing_regard_reads_no_page(output_of):
    script = (
        "import sys, regard; print('importlib.resources' in sys.modules, 'html' in sys.modules)"
    )
    assert output_of(script) == "False False"
