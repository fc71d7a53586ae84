"""Test the reference implementation of the gradients without the kernels: against known random
numbers, and derivatives by imaginary steps."""

import dataclasses

import hypothesis
import numpy as np
import pytest

import gradient_reference
import reference
from drawn_problems import examples, problems
from philox import philox, words
from problem import drawn
from reference import STEP

DOUBLE = np.dtype(np.float64)
ROLES = ("query", "key", "value", "grad_output")


# Random123's known answers (kat_vectors) for Philox4x32-10: counter, key, words.
KNOWN = [
    ("0 0 0 0", "0 0", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    (" ".join(["ffffffff"] * 4), "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


@pytest.mark.parametrize(("counter", "key", "wanted"), KNOWN)
def test_philox_gives_the_known_answers(counter, key, wanted):
    counter, key, wanted = ([int(x, 16) for x in text.split()] for text in (counter, key, wanted))
    assert [int(word) for word in philox(counter, key)] == wanted
    many = [np.full((2, 3), word) for word in counter]
    for word, number in zip(philox(many, key), wanted, strict=True):
        assert (word == number).all()
        assert word.shape == (2, 3)


def test_a_word_is_that_of_its_place():
    """Compare word by word with the definition of the counter and the key."""
    seed = 0xFEDCBA9876543210
    shape, offsets = (2, 3, 2, 5, 11), np.array([[0, -2, 7], [2**40, -(2**40), 3]])
    all_words = words(shape, seed=seed, query_offset=offsets)
    for b, (first, second) in enumerate(np.ndindex(2, 3)):
        for h, i, j in np.ndindex(shape[2:]):
            position = (i + int(offsets[first, second])) % 2**32
            four = philox((j // 4, position, h, b), (0x76543210, 0xFEDCBA98))
            assert all_words[first, second, h, i, j] == four[j % 4]


WIDE = {"types": ["float64"], "mixed": False}


def moved(problem, along, step):
    """Return the problem with everything that has a direction moved along it."""
    changes = {
        name: getattr(problem, name) + step * d for name, d in along.items() if name in ROLES
    }
    options = dict(problem.options)
    for name in along.keys() & {"alibi_slopes", "distance_bias", "sinks"}:
        options[name] = options[name] + step * along[name]
    if "mask" in along:
        mask = options["mask"]
        is_pair = isinstance(mask, tuple)
        bias = (mask[1] if is_pair else mask) + step * along["mask"]
        options["mask"] = (mask[0], bias) if is_pair else bias
    return dataclasses.replace(problem, options=options, **changes)


def directions(problem, names, seed):
    for name in names:
        if name == "mask":
            mask = problem.options["mask"]
            shape = (mask[1] if isinstance(mask, tuple) else mask).shape
        else:
            shape = np.shape(getattr(problem, name, problem.options.get(name)))
        yield name, drawn(shape, DOUBLE, seed)


def loss(problem):
    """Return a loss of the outputs, and of the lse of rows that see some key."""
    output, _, lse = reference.attention(*problem.arrays, **problem.options, precision=complex)
    sums = np.where(np.isfinite(lse), lse, 0) * problem.grad_lse
    return (output * problem.grad_output).sum() + sums.sum()


def gradients_of(problem):
    return gradient_reference.backward(
        problem.grad_output,
        *problem.arrays,
        **problem.options,
        grad_lse=problem.grad_lse,
        precision=complex,
    )


# Errors are small where scores are near 0, which Gaussian numbers make.
SMOOTH = problems(**WIDE, gaussian=True)


def assert_slopes(problem, function, gradients, names):
    """Each input moves by itself in one direction, by an imaginary step (see
    `reference.derivatives`). Errors are relative to the terms of the sum."""
    for name, direction in directions(problem, names, seed=11):
        terms = getattr(gradients, name) * direction
        wanted = function(moved(problem, {name: direction}, 1j * STEP)).imag / STEP
        size = 1 + abs(function(problem)) + np.abs(terms).sum()
        assert abs(terms.sum() - wanted) <= 1e-12 * size, name


@hypothesis.given(problem=SMOOTH)
@examples(40)
def test_gradients_are_derivatives(problem):
    assert_slopes(problem, loss, gradients_of(problem), problem.inputs)


@hypothesis.given(problem=SMOOTH)
@examples(40)
def test_tangents_are_derivatives(problem):
    along = dict(directions(problem, ROLES[:3], seed=3))
    tangents = gradient_reference.jvp(*problem.arrays, *along.values(), **problem.options)
    stepped = moved(problem, along, 1j * STEP)
    stepped = reference.attention(*stepped.arrays, **stepped.options, precision=complex)
    for actual, result in (
        (tangents.tangent_output, stepped.output),
        (tangents.tangent_lse, stepped.lse),
    ):
        wanted = result.imag / STEP
        assert reference.error(actual, wanted) <= 1e-12 * (1 + reference.largest(wanted))


@hypothesis.given(problem=SMOOTH)
@examples(40)
def test_gradients_of_gradients_are_derivatives(problem):
    cotangents = dict(directions(problem, ("query", "key", "value"), seed=7))

    def product(problem):
        gradients = gradients_of(problem)
        return sum((getattr(gradients, name) * c).sum() for name, c in cotangents.items())

    given = *cotangents.values(), problem.grad_output, *problem.arrays
    double = gradient_reference.double_backward(
        *given, **problem.options, grad_lse=problem.grad_lse
    )
    assert_slopes(problem, product, double, double._fields)
