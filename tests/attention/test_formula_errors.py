"""Test that errors are at most twice those of the formula in NumPy, for every function that forms
scores and every kind of numbers. What fails is listed, with its ratio to NumPy's error."""

import itertools

import pytest

from data_kinds import KINDS, SCALES, Drawn
from formula_families import FAMILIES, SETTINGS, excess, score_error

# The query is rounded when it is multiplied by scale * log2(e), and every product with it is
# rounded too, which NumPy's products are not if they are exact. The ratios to NumPy's error are for
# x86_v4, x86_v3 and baseline, as `python tests/support/formula_families.py` prints them.
EXCEEDED = """
integers to 16, scale default
    forward with weights: 299 299 222
    forward: 299 299 222
    causal: 309 309 229
    decode: 299 299 222
    ragged: 299 299 222
    stream: 299 299 218
    float32 cache: 309 309 229
    float8 cache: 286 285 218
    merged states: 299 299 222
    sparse mask: 287 287 287
    pages: 309 309 229
    backward: 4 4 4
    tangent: 4 4 4
    double backward: 6 6 3
    summary: 3 3 3
    map: 331 331 250
integers to 16, scale 1
    forward with weights: 430 430 430
    forward: 411 411 411
    causal: 186 186 186
    decode: 411 411 411
    ragged: 411 411 411
    stream: 411 411 411
    float32 cache: 186 186 186
    float8 cache: 640 640 640
    merged states: 411 411 411
    sparse mask: 1891 1891 1196
    pages: 186 186 186
    backward: 4 4 4
    summary: 4 4 5
    map: 2839 2839 2839
integers to 100, scale default
    forward with weights: 383 383 898
    forward: 383 383 898
    causal: 383 383 898
    decode: 383 383 898
    ragged: 383 383 898
    stream: 383 383 898
    float32 cache: 383 383 898
    float8 cache: 10 10 10
    merged states: 383 383 898
    sparse mask: 1507 1507 3723
    pages: 383 383 898
    backward: 3 3 3
    summary: 11352 11353 4
    map: 11352 11353 11353
halves to 32, scale default
    forward with weights: 470 470 470
    forward: 470 470 470
    causal: 474 474 474
    decode: 470 470 470
    ragged: 470 470 470
    stream: 549 549 549
    float32 cache: 474 474 474
    float8 cache: 140 140 164
    merged states: 527 527 527
    sparse mask: 381 381 381
    pages: 474 474 474
    backward: 4 4 4
    summary: 5 5 5
    map: 895 896 896
halves to 32, scale 0.3
    float8 cache: 41 41 30
    sparse mask: 4 4 4
    backward: 4 4 4
    summary: 2839 2839 12
    map: 4 4 4
scores around 1000, scale default
    forward with weights: 674 674 674
    forward: 380 380 380
    causal: 444 444 444
    decode: 380 380 380
    ragged: 380 380 380
    stream: 397 397 397
    float32 cache: 444 444 444
    merged states: 379 379 379
    sparse mask: 467 467 467
    pages: 444 444 444
    backward: 8 8 8
    tangent: 9 9 9
    summary: 9 9 9
    map: 676 676 676
scores around 1000, scale 3.7
    forward with weights: 82 82 82
    forward: 82 82 82
    causal: 82 82 82
    decode: 82 82 82
    ragged: 82 82 82
    stream: 82 82 82
    float32 cache: 82 82 82
    merged states: 82 82 82
    sparse mask: 51 51 51
    pages: 82 82 82
    backward: 3 3 3
    tangent: 6 6 6
    summary: 4 4 4
    map: 65 65 65
"""


def _exceeded():
    """Return the ratios by setting and family."""
    setting, found = "", {}
    for line in EXCEEDED.strip().splitlines():
        if line.startswith(" "):
            family, ratios = line.strip().split(": ")
            found[setting, family] = ratios
        else:
            setting = line
    return found


RATIOS = _exceeded()


def _cases():
    for (drawn, *others), family in itertools.product(SETTINGS, FAMILIES):
        ratios = RATIOS.get((str(drawn), family))
        reason = f"on x86_v4, x86_v3 and baseline, {ratios} times NumPy's error"
        marks = [pytest.mark.xfail(strict=True, reason=reason)] if ratios else []
        yield pytest.param(family, drawn, *others, id=f"{family}-{drawn}", marks=marks)


@pytest.mark.parametrize(("family", "drawn", "dim", "seed"), list(_cases()))
def test_the_error_is_at_most_twice_that_of_the_formula(family, drawn, dim, seed, target):
    ratio, of_numpy = excess(family, drawn, dim, seed)
    assert ratio <= 1, f"{of_numpy:.1f} times NumPy's error"


def test_what_is_listed_is_tested():
    settings = [str(drawn) for drawn, *_ in SETTINGS]
    assert set(RATIOS) <= set(itertools.product(settings, FAMILIES))


@pytest.mark.parametrize("dim", [1, 2, 16, 33, 64, 256])
@pytest.mark.parametrize("kind", KINDS)
def test_scores_move_no_further_than_documented(kind, dim, target):
    """Each of head_dim steps of a product may round by half an eps of the partial sum; scale,
    log2(e) and the query are rounded before, and without fma, each term."""
    for number, scale in enumerate(SCALES):
        assert score_error(Drawn(kind, scale), dim, number) <= dim / 2 + 2
