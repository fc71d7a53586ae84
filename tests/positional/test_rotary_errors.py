"""Test errors of rotary embeddings: their class, and a message that names the argument."""

import numpy as np
import pytest

from regard.positional import rotary, rotary_cache

X = np.zeros((2, 3, 5, 8), np.float32)
TABLE = rotary_cache(6, 8)
DOUBLED = (
    "cache must have rotary_dim / 2 columns, got {} with {}: if it holds every angle twice, as "
    "Hugging Face's does, pass cos[..., :rotary_dim//2] and sin[..., :rotary_dim//2]"
)


def twice(cache):
    """Repeat each angle, as Hugging Face caches do."""
    return [np.concatenate([part, part], axis=-1) for part in cache]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: rotary(X.astype(complex)),
            TypeError,
            "x must be an array of float16, bfloat16, float32 or float64, got complex128",
        ),
        (lambda: rotary(X.astype(np.longdouble)), TypeError, None),
        (lambda: rotary("query"), TypeError, None),
        (
            lambda: rotary(np.zeros(8)),
            ValueError,
            "x must have at least 2 axes, (..., heads, length, head_dim), got shape (8,)",
        ),
        (
            lambda: rotary(X, np.arange(5.0)),
            TypeError,
            "positions must be an int or an integer array, got float64",
        ),
        (lambda: rotary(X, np.ones(5, bool)), TypeError, None),
        (
            lambda: rotary(X, [10**30] * 5),
            ValueError,
            f"positions must fit in 64 bits, got {10**30}",
        ),
        (lambda: rotary(X, [10**30, 1, 2, 3, "4"]), TypeError, None),
        (
            lambda: rotary(X, 3),
            ValueError,
            "positions must have one entry for each row of x: (5,) or (*batch, 5) with batch axes "
            "that broadcast to (2,), got ()",
        ),
        (lambda: rotary(X, np.arange(4)), ValueError, None),
        (lambda: rotary(X, np.zeros((2, 1), int)), ValueError, None),
        (lambda: rotary(X, np.zeros((3, 5), int)), ValueError, None),
        (lambda: rotary(X, np.zeros((1, 2, 5), int)), ValueError, None),
        (lambda: rotary(X[0], np.zeros((3, 5), int)), ValueError, None),
        (lambda: rotary(X[0, 0], np.zeros((2, 5), int)), ValueError, None),
        (
            lambda: rotary(X[..., :7]),
            ValueError,
            "rotary_dim must be even, got 7, the head_dim: rotate fewer columns with rotary_dim=",
        ),
        (lambda: rotary(X[..., :0]), ValueError, "rotary_dim must be at least 2, got 0"),
        (lambda: rotary(X, rotary_dim=3), ValueError, "rotary_dim must be even, got 3"),
        (lambda: rotary(X, rotary_dim=0), ValueError, "rotary_dim must be at least 2, got 0"),
        (
            lambda: rotary(X, rotary_dim=10),
            ValueError,
            "rotary_dim must be at most head_dim, got 10 and 8",
        ),
        (lambda: rotary(X, rotary_dim=4.0), TypeError, "rotary_dim must be an int, got float"),
        (lambda: rotary(X, base=0), ValueError, "base must be positive and finite, got 0.0"),
        (lambda: rotary(X, base=np.inf), ValueError, None),
        (lambda: rotary(X, base="1e4"), TypeError, "base must be a real number, got str"),
        (
            lambda: rotary(X, base=np.ones(3)),
            TypeError,
            "base must be a real number, got ndarray",
        ),
        (
            lambda: rotary(X, base=np.ones(3), cache=TABLE),
            TypeError,
            "base must be a real number, got ndarray",
        ),
        (lambda: rotary(X, base="1e4", cache=TABLE), TypeError, None),
        (
            lambda: rotary(X, interleaved=1),
            TypeError,
            "interleaved must be True or False, got int",
        ),
        (lambda: rotary(X, interleaved="yes"), TypeError, None),
        (lambda: rotary(X, interleaved=None), TypeError, None),
        (lambda: rotary(X, interleaved=np.ones(2, bool)), TypeError, None),
        (
            lambda: rotary(X, inverse_frequencies=[1, 0.1, 0.01, 0.001], base=500),
            ValueError,
            "inverse_frequencies already determines the angles: leave base out",
        ),
        (
            lambda: rotary(X, inverse_frequencies=[1.0, np.nan]),
            ValueError,
            "inverse_frequencies must be finite, got NaN or infinity",
        ),
        (lambda: rotary(X, inverse_frequencies=np.ones((1, 4))), ValueError, None),
        (lambda: rotary(X, inverse_frequencies=[]), ValueError, None),
        (lambda: rotary(X, inverse_frequencies=[True]), TypeError, None),
        (lambda: rotary(X, inverse_frequencies=[1j]), TypeError, None),
        (
            lambda: rotary(X, inverse_frequencies=np.ones(5)),
            ValueError,
            "rotary_dim must be at most head_dim, got 10 and 8",
        ),
        (
            lambda: rotary(X, inverse_frequencies=np.ones(3), rotary_dim=8),
            ValueError,
            "rotary_dim must be twice the pairs of inverse_frequencies, got 8 and 3 pairs",
        ),
        (
            lambda: rotary(X, cache=TABLE, base=500.0),
            ValueError,
            "cache already determines the angles: leave base out",
        ),
        (
            lambda: rotary(X, cache=TABLE, inverse_frequencies=np.ones(4)),
            ValueError,
            "cache already determines the angles: leave inverse_frequencies out",
        ),
        (
            lambda: rotary(X, cache=TABLE, length=10),
            ValueError,
            "cache already determines the angles: leave length out",
        ),
        (
            lambda: rotary_cache(3, head_dim=8, inverse_frequencies=np.ones(4)),
            ValueError,
            "inverse_frequencies already determines the angles: leave head_dim out",
        ),
        (
            lambda: rotary(X, cache=TABLE, rotary_dim=2),
            ValueError,
            "rotary_dim must be twice the pairs of cache, got 2 and 4 pairs",
        ),
        (
            lambda: rotary(X, cache=TABLE, rotary_dim=4),
            ValueError,
            DOUBLED.format(4, "rotary_dim 4"),
        ),
        (
            lambda: rotary(X, cache=twice(TABLE), rotary_dim=8),
            ValueError,
            DOUBLED.format(8, "rotary_dim 8"),
        ),
        (lambda: rotary(X, cache=twice(TABLE)), ValueError, DOUBLED.format(8, "head_dim 8")),
        (
            lambda: rotary(X, cache=twice(rotary_cache(6, 6))),
            ValueError,
            DOUBLED.format(6, "head_dim 8"),
        ),
        (
            lambda: rotary(X, cache=twice(rotary_cache(np.zeros((2, 5), int), 8))),
            ValueError,
            DOUBLED.format(8, "head_dim 8"),
        ),
        (
            lambda: rotary(X, cache=rotary_cache(6, 20)),
            ValueError,
            "rotary_dim must be at most head_dim, got 20 and 8",
        ),
        (
            lambda: rotary(X, np.arange(2, 7), cache=TABLE),
            ValueError,
            "positions must be in 0 .. 5, the rows of the cache, got 6",
        ),
        (
            lambda: rotary(X, np.arange(-1, 4), cache=TABLE),
            ValueError,
            "positions must be in 0 .. 5, the rows of the cache, got -1",
        ),
        (
            lambda: rotary(X, cache=rotary_cache(4, 8)),
            ValueError,
            "cache must have a row for each of 5 positions, got 4 rows",
        ),
        (
            lambda: rotary(X, np.arange(5), cache=rotary_cache(np.zeros((2, 5), int), 8)),
            ValueError,
            "positions select rows of a 2-D cache, got a cache of shape (2, 5, 4): leave positions "
            "out",
        ),
        (lambda: rotary(X, cache=rotary_cache(np.zeros((3, 5), int), 8)), ValueError, None),
        (lambda: rotary(X, cache=rotary_cache(np.zeros((2, 6), int), 8)), ValueError, None),
        (lambda: rotary(X, cache=rotary_cache(6, 10)), ValueError, None),
        (
            lambda: rotary(X, cache=TABLE[0]),
            TypeError,
            "cache must be a pair (cos, sin), got ndarray",
        ),
        (
            lambda: rotary(X, cache=TABLE[:1]),
            ValueError,
            "cache must be a pair (cos, sin), got 1 arrays",
        ),
        (lambda: rotary(X, cache=(TABLE[0], TABLE[1][:5])), ValueError, None),
        (lambda: rotary(X, cache=(TABLE[0][0], TABLE[1][0])), ValueError, None),
        (lambda: rotary(X, cache=(TABLE[0] + 0j, TABLE[1])), TypeError, None),
        (
            lambda: rotary(X, out=X.tolist()),
            TypeError,
            "out must be an array of float32, got list",
        ),
        (
            lambda: rotary(X, out=X.astype(float)),
            TypeError,
            "out must be an array of float32, got an array of float64",
        ),
        (
            lambda: rotary(X, out=X[:1].copy()),
            ValueError,
            "out must have shape (2, 3, 5, 8), got (1, 3, 5, 8)",
        ),
        (
            lambda: rotary(X, out=np.broadcast_to(X, X.shape)),
            ValueError,
            "out must be writeable, got a read-only array",
        ),
        (lambda: rotary_cache(-1, 8), ValueError, "positions must be at least 0, got -1"),
        (
            lambda: rotary_cache(3),
            TypeError,
            "rotary_dim must be an int, or head_dim or inverse_frequencies must be given",
        ),
        (
            lambda: rotary_cache(2.5, 8),
            TypeError,
            "positions must be an int or an integer array, got float64",
        ),
        (
            lambda: rotary_cache(3, 8, dtype=int),
            TypeError,
            "dtype must be floating-point, got int64",
        ),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error) as raised:
        call()
    assert message is None or str(raised.value) == message


def test_nothing_is_written_where_an_error_is_raised():
    out = np.full(X.shape, 7, np.float32)
    for positions, options in [(np.arange(4), {}), (None, {"rotary_dim": 3}), ([9] * 5, {})]:
        with pytest.raises(ValueError, match=r"positions|rotary_dim"):
            rotary(X, positions, cache=None if options else TABLE, **options, out=out)
    assert (out == 7).all()
