"""Test `torch.func` and both modes of autograd, in combination, against the formula's
derivatives."""

import numpy as np
import pytest

from cases import Case
from gradient_cases import More, build, gaussian
from torch_formula import INPUTS, as_tensors, formula
from torch_problems import attend, scaled_dot_product_attention, torch

# PyTorch's forward mode compiles its decompositions with functions that PyTorch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is:DeprecationWarning")

DROPOUT = {"dropout_p": 0.4, "dropout_seed": 2**40 + 1}
BATCHES = (2, 1, 2, 3, 2), (3, 1, 4, 2), (3, 1, 4, 3)
CASES = [
    Case("plain", (2, 2, 4, 3), (2, 2, 5, 3), (2, 2, 5, 2)),
    Case("two axes", (4, 3), (5, 3), (5, 2)),
    Case("groups, rows without keys", (4, 3, 3), (2, 5, 3), (2, 5, 2), is_causal=True),
    More("dropout", Case("dropout", (2, 4, 3), (2, 5, 3), (2, 5, 2)), DROPOUT),
    Case(
        *("everything", *BATCHES),
        float_mask=(2, 3, 2, 3, 4),
        is_causal=True,
        query_offset=2,
        window=(2, 1),
        key_lengths=(4, 3, 4),
        left_padding=1,
        scale=1.2,
        softcap=1.5,
        alibi_slopes=0.3,
        distance_bias=3,
        sinks=0.1,
    ),
]
THREE = (0, 1, 2)


def loss(function):
    def of_results(*tensors):
        output, lse = function(*tensors)
        return (output**2).sum() + (lse.sin() * (1 + lse)).sum()

    return of_results


def grad(function):
    return torch.func.grad(loss(function), THREE)


def along(function):
    def derivative(*tensors):
        return torch.func.jvp(function, tensors, tuple(x.flip(-2).sin() for x in tensors))[1]

    return derivative


def against(function):
    def derivative(*tensors):
        results, pull = torch.func.vjp(function, *tensors)
        return pull(tuple(result.cos() for result in results))

    return derivative


def jacobian(function):
    return torch.func.jacrev(function, THREE)


def forward_jacobian(function):
    return torch.func.jacfwd(function, THREE)


TRANSFORMS = {
    "grad": grad,
    "jvp": along,
    "vjp": against,
    "jacrev": jacobian,
    "jacfwd": forward_jacobian,
    "jvp of grad": lambda f: along(grad(f)),
    "vjp of grad": lambda f: against(grad(f)),
    "vjp of jvp": lambda f: against(along(f)),
    "hessian": lambda f: forward_jacobian(grad(f)),
    "jacrev of grad": lambda f: jacobian(grad(f)),
    "jacrev of jacfwd": lambda f: jacobian(forward_jacobian(loss(f))),
}


def functions_of(case):
    """Return regard's call and the formula, as functions of query, key and value, and these
    tensors."""
    problem = build(
        gaussian(case), np.dtype(np.float64), dropout=None if isinstance(case, More) else 0.0
    )
    tensors = as_tensors(problem)
    three, others = tensors[:3], tensors[3:]

    def finite(output, lse):
        return output, torch.where(lse == -torch.inf, 0, lse)

    def ours(*tensors):
        inputs = (*tensors, *others)
        given = {n: x for n, x in zip(INPUTS, inputs, strict=True) if x is not None}
        return finite(*attend(problem, given, return_lse=True))

    def theirs(*tensors):
        return finite(*formula(problem, *tensors, *others))

    return ours, theirs, three


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name == "jacrev of jacfwd" else ())
        for name in TRANSFORMS
    ],
)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_transforms(case, name):
    ours, theirs, tensors = functions_of(case)
    actual, tree = torch.utils._pytree.tree_flatten(TRANSFORMS[name](ours)(*tensors))
    wanted, of_formula = torch.utils._pytree.tree_flatten(TRANSFORMS[name](theirs)(*tensors))
    assert tree == of_formula
    largest = max(float(x.abs().max()) for x in wanted)
    for one, other in zip(actual, wanted, strict=True):
        assert one.shape == other.shape
        assert float((one - other).abs().max()) <= 1e-12 * largest


# Central differences lose eps / 1e-6, some 1e-10, to rounding, and less to the length of the step.
CHECKED = {"eps": 1e-6, "atol": 1e-8, "rtol": 1e-7, "nondet_tol": 0.0}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_pytorchs_own_checks_by_differences(case):
    """They also pass missing gradients, strided ones and batches of them."""
    function, _, tensors = functions_of(case)
    inputs = [x.requires_grad_() for x in tensors]
    assert torch.autograd.gradcheck(
        function, inputs, check_forward_ad=True, check_batched_grad=True, **CHECKED
    )
    assert torch.autograd.gradgradcheck(
        function, inputs, gen_non_contig_grad_outputs=True, **CHECKED
    )


def drawn(*shapes):
    random = torch.Generator().manual_seed(1)
    return [torch.randn(s, generator=random, dtype=torch.float64) for s in shapes]


# Central differences with steps of 1e-5 lose 1e5 * eps, some 2e-11, of numbers up to some 10 to
# rounding, and 1e-10 / 6 of third derivatives up to some 100 to the length of the step.
OF_DIFFERENCES = 1e-8
each_other = pytest.mark.parametrize(
    "name", ["attn_mask", "alibi_slopes", "distance_bias", "sinks"]
)


def other(name):
    """Return a function of a mask, slopes, a table or sinks, and its argument."""
    shape = {"attn_mask": (4, 5), "distance_bias": (2, 3)}.get(name, (2,))
    *tensors, option = drawn((2, 4, 3), (2, 5, 3), (2, 5, 3), shape)
    return lambda x: scaled_dot_product_attention(*tensors, **{name: x}), option


@each_other
@pytest.mark.parametrize("mode", ["jacfwd", "jacrev of grad", "hessian", "jacfwd of jacfwd"])
def test_derivatives_of_other_inputs(name, mode):
    """Derivatives along a direction are compared with differences of gradients."""
    function, option = other(name)

    def loss(x):
        return (function(x) ** 2).sum()

    first, jacrev, jacfwd = torch.func.grad(loss), torch.func.jacrev, torch.func.jacfwd
    direction = option.cos()
    step = 1e-5 * direction
    if mode == "jacfwd":
        wanted = ((function(option + step) - function(option - step)) / 2e-5).sum(-1)
        actual = (jacfwd(lambda x: function(x).sum(-1))(option) * direction).flatten(2).sum(-1)
    else:
        derive = {"jacrev of grad": jacrev(first), "hessian": torch.func.hessian(loss)}
        derive["jacfwd of jacfwd"] = jacfwd(jacfwd(loss))
        actual = derive[mode](option).flatten(option.ndim) @ direction.flatten()
        wanted = (first(option + step) - first(option - step)) / 2e-5
    assert float(wanted.abs().max()) > 1e-3
    assert float((actual - wanted).abs().max()) <= OF_DIFFERENCES
