"""Test that errors are at most twice those of the formula in NumPy, for every function that forms
scores and every kind of numbers."""

import itertools

import pytest

from data_kinds import KINDS, SCALES, Drawn
from formula_families import FAMILIES, SETTINGS, excess, score_error

CASES = [
    pytest.param(family, *setting, marks=[pytest.mark.slow] if number % 3 else [])
    for number, (setting, family) in enumerate(itertools.product(SETTINGS, FAMILIES))
]


@pytest.mark.parametrize(("family", "drawn", "dim", "seed"), CASES)
def test_the_error_is_at_most_twice_that_of_the_formula(family, drawn, dim, seed, target):
    ratio, of_numpy = excess(family, drawn, dim, seed)
    assert ratio <= 1, f"{of_numpy:.1f} times NumPy's error"


@pytest.mark.parametrize("dim", [1, 2, 16, 33, 64, 256])
@pytest.mark.parametrize("kind", KINDS)
def test_scores_move_no_further_than_documented(kind, dim, target):
    """Each of head_dim steps of a product may round by half an eps of the partial sum, and without
    fma, each term; the scale is rounded, and its product."""
    for number, scale in enumerate(SCALES):
        assert score_error(Drawn(kind, scale), dim, number) <= dim / 2 + 1
