"""Derivatives of attention in float64, compared with PyTorch's autograd derivatives of the
formula."""

import numpy as np
import pytest

import regard
from cases import Case
from gradient_cases import FEW, build, drawn
from gradient_reference import Tangents, backward, jvp
from option_cases import MIXES
from reference import error, largest
from torch_formula import INPUTS, as_tensors, formula, torch

# PyTorch's forward mode compiles its decompositions with functions that PyTorch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is:DeprecationWarning")

FLOAT64 = np.dtype(np.float64)
EPS = float(np.finfo(FLOAT64).eps)
BATCHES = (2, 1, 4, 19, 8), (3, 2, 107, 8), (1, 3, 2, 107, 12)
EACH = [
    *MIXES[::6],
    *FEW[::4],
    Case("offset of each entry", *BATCHES, is_causal=True, query_offset=((0, 9, 88), (-3, 40, 1))),
    Case("float mask of each key", *BATCHES, float_mask=(107,), sinks=0.5),
]
each_case = pytest.mark.parametrize("case", EACH, ids=lambda case: case.name)


def assert_alike(function, problem, *arrays, actual, wanted, **extra):
    """Allow 1e-12 of the largest element, and what rounding may leave of sums that cancel, which a
    function of `gradient_reference` determines part by part."""
    bounds = function(*arrays, **problem.options, **extra, magnitudes=EPS)._asdict()
    for name, tensor in wanted.items():
        other, part = tensor.detach().numpy(), getattr(actual, name)
        assert part.dtype == other.dtype, name
        assert part.shape == other.shape, name
        allowed = 1e-12 * largest(other) + largest(bounds[name])
        off = error(part, other)
        assert off <= allowed, f"{name}: differs by {off:.3g} of {largest(other):.3g}"


@each_case
def test_gradients(case, target):
    problem = build(case, FLOAT64)
    grad_output, grad_lse = (torch.tensor(x) for x in (problem.grad_output, problem.grad_lse))
    inputs = [None if x is None else x.requires_grad_() for x in as_tensors(problem)]
    output, lse = formula(problem, *inputs)
    of_lse = torch.where(lse == -torch.inf, 0, lse) * grad_lse
    ((output * grad_output).sum() + of_lse.sum()).backward()
    wanted = {n: leaf.grad for n, leaf in zip(INPUTS, inputs, strict=True) if leaf is not None}
    actual = problem.gradients()
    assert [part is not None for part in actual] == [name in wanted for name in INPUTS]
    arrays = problem.grad_output, *problem.arrays
    grads = {"grad_lse": problem.grad_lse}
    assert_alike(backward, problem, *arrays, actual=actual, wanted=wanted, **grads)


@each_case
def test_tangents(case, target):
    problem = build(case, FLOAT64)
    query, key, value, *others = as_tensors(problem)
    tangents = [drawn(x.shape, FLOAT64, 3 + i) for i, x in enumerate(problem.arrays)]
    _, (output, lse) = torch.func.jvp(
        lambda *three: formula(problem, *three, *others),
        (query, key, value),
        tuple(map(torch.from_numpy, tangents)),
    )
    wanted = {"tangent_output": output, "tangent_lse": lse}
    arrays = *problem.arrays, *tangents
    actual = regard.scaled_dot_product_attention_jvp(*arrays, **problem.options, return_lse=True)
    assert_alike(jvp, problem, *arrays, actual=Tangents(*actual), wanted=wanted)
