"""Results and gradients of `regard.torch` equal, to the last bit, the results of regard's NumPy
calls."""

import dataclasses

import numpy as np
import pytest

from cases import AXES
from element_types import each_in_one_type
from gradient_cases import ALL, FEW, build
from torch_problems import NAMES, as_tensor, assert_same, attend, leaves_of, torch

CASES = [*AXES, *FEW]


def check_forward(problem):
    """Check the call without gradients, and through the operator."""
    wanted = problem.attend()
    for names in ((), NAMES[:1]):
        leaves = leaves_of(problem, names)
        actual = attend(problem, leaves, return_lse=True)
        for tensor, array in zip(actual, wanted, strict=True):
            assert_same(tensor, array)
        output = attend(problem, leaves)
        assert_same(output, wanted[0])
        assert output.requires_grad == bool(names)


def check_gradients(problem):
    leaves = leaves_of(problem)
    output, lse = attend(problem, leaves, return_lse=True)
    grads = as_tensor(problem.grad_output), as_tensor(problem.grad_lse)
    actual = torch.autograd.grad((output, lse), tuple(leaves.values()), grads)
    wanted = problem.gradients()
    for name, gradient in zip(leaves, actual, strict=True):
        assert_same(gradient, getattr(wanted, name))


@each_in_one_type(CASES, "storage")
def test_output_and_lse(case, storage):
    check_forward(build(case, storage))


@each_in_one_type(CASES, "storage")
def test_gradients(case, storage):
    check_gradients(build(case, storage))


@pytest.mark.slow
@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_all_cases_in_all_types(case, storage):
    check_forward(build(case, storage))
    check_gradients(build(case, storage))


def test_bfloat16():
    problem = build(FEW[0], np.dtype(np.float32))
    problem = dataclasses.replace(problem, options=problem.options | {"precision": "bfloat16"})
    check_forward(problem)
    check_gradients(problem)
