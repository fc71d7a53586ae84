"""Wrong calls of regard.positional: rotary embeddings, their scalings, and other encodings."""

import numpy as np
import pytest

from messages import check, each
from regard.positional import (
    alibi_slopes,
    rotary,
    rotary_cache,
    rotary_frequencies,
    sinusoidal,
    t5_buckets,
    t5_distance_bias,
    t5_distance_bias_backward,
)
from rope_cases import HALF, TRAINED, dynamic, linear, llama3, longrope, of_dim, yarn

X = np.zeros((2, 3, 5, 8), np.float32)
TABLE, PLANES = rotary_cache(6, 8), rotary_cache(np.zeros((2, 5), int), 8)
PHI, DYNAMIC = of_dim(longrope(), 8), dynamic()
BETA = linear(llama_4_scaling_beta=0.1, **{TRAINED: 4})
MROPE = linear(mrope_section=[1, 2, 1])
NAN = np.nan


def twice(cache):
    """Repeat each angle, as Hugging Face caches do."""
    return [np.concatenate([part, part], axis=-1) for part in cache]


ROTARY = [
    ({"x": X.astype(complex)}, TypeError, "x must be an array of ... got complex128"),
    ({"x": np.zeros(8)}, ValueError, "x must have at least 2 ... got shape (8,)"),
    ({"x": X[..., :7]}, ValueError, "rotary_dim must be even ... got 7, the ... rotate fewer"),
    ({"positions": [10**30] * 5}, ValueError, "positions ... got 1000000000000000000000000000000"),
    ({"positions": 3}, ValueError, "positions must have one entry for ... got ()"),
    ({"rotary_dim": 10}, ValueError, "rotary_dim must be at most head_dim, got 10 and 8"),
    ({"inverse_frequencies": [1] * 5}, ValueError, "twice len(inverse_frequencies) ... 10 and 8"),
    ({"base": 0}, ValueError, "base must be positive and finite, got 0.0"),
    ({"base": "1e4", "cache": TABLE}, TypeError, "base must be a real number, got str"),
    ({"interleaved": 1}, TypeError, "interleaved must be True or False, got int"),
    (
        {"inverse_frequencies": [1, 0.1, 0.01, 0.001], "base": 500},
        ValueError,
        "inverse_frequencies ... leave base",
    ),
    ({"inverse_frequencies": [1.0, NAN]}, ValueError, "inverse_frequencies must be"),
    ({"inverse_frequencies": np.ones((1, 4))}, ValueError, "inverse_frequencies ... got shape (1"),
    ({"inverse_frequencies": [True]}, TypeError, "inverse_frequencies must be real ... got bool"),
    ({"inverse_frequencies": np.ones(3), "rotary_dim": 8}, ValueError, "rotary_dim must"),
    ({"cache": TABLE, "base": 500.0}, ValueError, "cache already determines the ... leave base"),
    ({"cache": TABLE, "scaling": linear()}, ValueError, "cache already ... leave scaling out"),
    ({"cache": TABLE, "rotary_dim": 2}, ValueError, "rotary_dim must be twice the ... got 2 and"),
    ({"cache": TABLE, "rotary_dim": 4}, ValueError, "cache must have ... got 4 with ... if it"),
    ({"cache": twice(TABLE)}, ValueError, "cache must have rotary_dim / ... got 8 with ... if it"),
    ({"cache": twice(TABLE), "rotary_dim": 8}, ValueError, "cache must have ... got 8 ... if it"),
    ({"cache": TABLE, "positions": np.arange(2, 7)}, ValueError, "positions must be in ... got 6"),
    ({"cache": TABLE, "positions": np.arange(-1, 4)}, ValueError, "positions must be ... got -1"),
    ({"cache": rotary_cache(4, 8)}, ValueError, "cache must have a row for ... got 4 rows"),
    ({"cache": PLANES, "positions": np.arange(5)}, ValueError, "positions select rows ... got a"),
    ({"cache": rotary_cache(np.zeros((3, 5), int), 8)}, ValueError, "cache must have ... got (3"),
    ({"scaling": BETA}, TypeError, "is_query must be True or False if ... got None"),
    ({"scaling": BETA, "is_query": 1}, TypeError, "is_query must be True or False, got int"),
    (
        {"scaling": BETA, "rotary_dim": 4, "is_query": True},
        ValueError,
        "rotary_dim must be head_dim",
    ),
    ({"scaling": MROPE, "positions": np.zeros((2, 2, 5), int)}, ValueError, "positions must be (3"),
    ({"cache": TABLE[0]}, TypeError, "cache must be a pair (cos, sin), got ndarray"),
    ({"cache": (TABLE[0], TABLE[1][:5])}, ValueError, "cache must hold two arrays ... got (6, 4)"),
    ({"cache": (TABLE[0] + 0j, TABLE[1])}, TypeError, "cache[0] must be an ... got complex128"),
    ({"rotary_dim": 8, "scaling": HALF}, ValueError, "rotary_dim must be 4, which is ... got 8"),
]
TABLES = [
    (lambda: rotary_cache(-1, 8), ValueError, "positions must be at least 0, got -1"),
    (lambda: rotary_cache(3), TypeError, "rotary_dim or head_dim must be an ... got none of"),
    (lambda: rotary_cache(3, 8, dtype=int), TypeError, "dtype must be floating-point, got int64"),
    (
        lambda: rotary_cache(3, head_dim=8, inverse_frequencies=np.ones(4)),
        ValueError,
        "inverse_frequencies already determines the ... leave head_dim out",
    ),
    (lambda: rotary_frequencies(7), ValueError, "rotary_dim must be even, got 7"),
    (lambda: rotary_frequencies(8, scaling=HALF), ValueError, "head_dim must be given"),
    (lambda: rotary_frequencies(head_dim=6, scaling=HALF), ValueError, "rotary_dim must"),
    (
        lambda: rotary_frequencies(8, base=500.0, scaling=linear(rope_theta=77.0)),
        ValueError,
        "base must be scaling's rope_theta 77.0 ... got 500.0",
    ),
    (lambda: rotary_frequencies(8, base=0.5, scaling=yarn()), ValueError, "base must ... got 0.5"),
    (lambda: rotary_frequencies(2, scaling=DYNAMIC, length=5000), ValueError, "rotary_dim"),
    (lambda: sinusoidal(-1, 4), ValueError, "length must be at least 0, got -1"),
    (lambda: sinusoidal(2, 0), ValueError, "dim must be at least 1, got 0"),
    (lambda: sinusoidal(2, 4, 0), ValueError, "base must be positive and finite, got 0.0"),
    (lambda: sinusoidal(2, 4, dtype=int), TypeError, "dtype must be floating-point, got int64"),
    (lambda: alibi_slopes(0), ValueError, "heads must be at least 1, got 0"),
    (lambda: t5_buckets(2.0), TypeError, "q_len must be an int, got float"),
    (lambda: t5_buckets(2, 2, query_offset=0.5), TypeError, "query_offset must be"),
    (lambda: t5_buckets(2, 2, bidirectional=1), TypeError, "bidirectional must be ... got int"),
    (lambda: t5_buckets(2, 2, num_buckets=2), ValueError, "num_buckets must be at least 4, got 2"),
    (lambda: t5_buckets(2, 2, max_distance=8), ValueError, "max_distance must be at ... got 8"),
    (lambda: t5_distance_bias(np.zeros(8)), ValueError, "table must have shape ... got (8,)"),
    (lambda: t5_distance_bias(np.zeros((8, 3), complex)), TypeError, "table ... got complex128"),
    (lambda: t5_distance_bias_backward(np.zeros((3, 182))), ValueError, "grad must ... got (3"),
]
SCALINGS = [
    ("yarn", TypeError, "scaling must be a mapping, got str"),
    ({}, ValueError, "scaling must have one rope_type, got {}"),
    ({"type": "yarn", "rope_type": "linear"}, ValueError, "scaling must have one ... got {'type'"),
    ({"rope_type": "axial"}, ValueError, "scaling's rope_type must be one of ... got 'axial'"),
    ({"rope_parameters": linear(), "hidden_size": 64}, ValueError, "scaling must be ... got the"),
    ({"full": {"rope_type": "default"}, "sliding": linear()}, ValueError, "scaling ... got one"),
    ({"rope_type": "llama3", "factor": 8.0, "high": 3}, ValueError, "scaling of ... got missing"),
    (linear(partial_rotary_factor=1.5), ValueError, "scaling['partial_rotary_factor']"),
    (linear(factor=0.5), ValueError, "scaling['factor'] must be at least 1 and finite, got 0.5"),
    (
        longrope(short_factor=[1.0, 2.0], long_factor=[1.0, 2.0]),
        ValueError,
        "scaling['short_factor'] ... got 2",
    ),
    (PHI | {"long_factor": "12"}, TypeError, "scaling['long_factor'] must be real ... got <U2"),
    (PHI | {"short_factor": [1, 1, 0, 1]}, ValueError, "scaling['short_factor'] must ... got 0.0"),
    (PHI | {TRAINED: 1}, ValueError, "scaling['original_max_position_embeddings'] ... got 1.0"),
    (yarn(mscale=-1.0), ValueError, "scaling['mscale'] must be at least 0 ... got -1.0"),
    (yarn(attention_factor=0.0), ValueError, "scaling['attention_factor'] must be ... got 0.0"),
    (yarn(truncate=1), TypeError, "scaling['truncate'] must be True or False, got int"),
    (yarn(beta_slow=32), ValueError, "scaling['beta_fast'] must be above ... got 32.0 and"),
    (MROPE | {"mrope_section": [2, 2]}, ValueError, "scaling['mrope_section'] ... got [2, 2]"),
    (MROPE | {"mrope_section": [2, 2, 1]}, ValueError, "scaling['mrope_section'] ... got 5"),
    (MROPE | BETA, ValueError, "scaling must have mrope_section or ... got both"),
    (linear(llama_4_scaling_beta=0.1), ValueError, "scaling of ... got missing"),
    (llama3(high_freq_factor=1), ValueError, "scaling['high_freq_factor'] must be"),
]


@each(ROTARY)
def test_rotary(wrong, error, parts):
    out = np.full(X.shape, 7, np.float32)
    check(lambda: rotary(**{"x": X} | wrong), error, parts)
    check(lambda: rotary(**{"x": X, "out": out} | wrong), error, parts)
    assert (out == 7).all()


@each(TABLES)
def test_tables(wrong, error, parts):
    check(wrong, error, parts)


@each(SCALINGS)
def test_scalings(wrong, error, parts):
    check(lambda: rotary_frequencies(8, scaling=wrong), error, parts)
    check(lambda: rotary_cache(3, 8, scaling=wrong), error, parts)
    check(lambda: rotary(X, scaling=wrong), error, parts)


def test_complex_numbers_of_small_types_are_no_base():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for name in {"complex32", "bcomplex32"} & set(vars(ml_dtypes)):
        number = getattr(ml_dtypes, name)(2)
        check(lambda: rotary(X, base=number), TypeError, "base must be a real number")  # noqa: B023
