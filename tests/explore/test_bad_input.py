"""What cannot be shown is refused before any work, with what takes the room."""

import numpy as np
import pytest

import regard
from explorer_pages import problem

QUERY, KEY = problem()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": ["a"] * 39}, "tokens must have one str for each key, 40, got 39"),
        ({"tokens": ["a"] * 40, "query_offset": 5}, "positions 5 to 44"),
        ({"names": {"heads": ["a"]}}, r"names\['heads'\] must have 4 names, got 1"),
        ({"regions": [(slice(50, 60), slice(3))]}, "select something of 40"),
        ({"tile_bytes": 10**9, "detail": 16}, r"tiles 1 GB\), got 100 MB: show"),
        ({"max_bytes": 1000}, r"detail 13\.7 kB, top_k and statistics 9\.22 kB"),
        ({"tokens": ["é" * 10**6] * 40}, r"tokens 240 MB\), got 100 MB"),
    ],
)
def test_options_are_refused_before_any_work(options, message, monkeypatch):
    monkeypatch.setattr("regard._explore._function.heads_of", None)
    with pytest.raises(ValueError, match=message):
        regard.explore(QUERY, KEY, **options)


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
    modules = "importlib.resources", "html"
    script = f"import sys, regard; print([name in sys.modules for name in {modules}])"
    assert output_of(script) == "[False, False]"
