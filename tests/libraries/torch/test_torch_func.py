"""Test `torch.func` and both modes of autograd, in combination, against the formula's
derivatives."""

import numpy as np
import pytest

from cases import Case, build
from reference import solve
from torch_problems import NAMES, attend, torch

BATCHES = (2, 1, 2, 3, 2), (3, 1, 4, 2), (3, 1, 4, 3)
OTHERS = {"float_mask": (4, 5), "alibi_slopes": 0.3, "distance_bias": 3, "sinks": 0.1}
CASES = [
    Case("plain", (2, 2, 4, 3), (2, 2, 5, 3), (2, 2, 5, 2)),
    Case("two axes", (4, 3), (5, 3), (5, 2)),
    Case("groups, rows without keys", (4, 3, 3), (2, 5, 3), (2, 5, 2), is_causal=True),
    Case("dropout", (2, 4, 3), (2, 5, 3), (2, 5, 2)),
    *(Case(n, (2, 4, 3), (2, 5, 3), (2, 5, 2), **{n: option}) for n, option in OTHERS.items()),
    Case(
        *("everything", *BATCHES),
        float_mask=(2, 3, 4),
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


def formula(problem, query, key, value, mask, alibi_slopes, distance_bias, sinks):
    """Return the output and lse of these tensors with a problem's options, as whole matrices.

    The sink is one more column of the scores. In a fully masked row it has a score of 0, so that
    the gradients of the row's softmax are 0, and not NaN.
    """
    solved = solve(*problem.arrays, **problem.options)
    laid, (seen, factors) = solved.laid, map(torch.tensor, (solved.seen, solved.factors))
    scale, softcap, distance = map(torch.tensor, (laid.factor, laid.softcap, laid.distance))
    query, key, value = (x if x.ndim > 2 else x[None] for x in (query, key, value))
    heads, kv_heads = query.shape[-3], key.shape[-3]
    key, value = (x.repeat_interleave(heads // max(kv_heads, 1), dim=-3) for x in (key, value))
    scores = scale * (query @ key.mT)
    finite = torch.where(softcap == torch.inf, 1, softcap)
    scores = torch.where(softcap == torch.inf, scores, finite * torch.tanh(scores / finite))
    if alibi_slopes is not None:
        scores = scores - alibi_slopes[..., None, None] * distance.to(scores.dtype)
    if distance_bias is not None:
        columns = torch.tensor(laid.columns)
        table = distance_bias.expand(*columns.shape[:-2], distance_bias.shape[-1])
        scores = scores + table[..., None, :].expand(*columns.shape[:-1], -1).gather(-1, columns)
    if mask is not None:
        scores = scores + mask
    nothing = scores.new_tensor(-torch.inf)
    scores = torch.where(seen, scores, nothing)
    sinks = nothing.expand(heads) if sinks is None else sinks
    sinks = sinks[:, None, None].expand(*scores.shape[:-1], 1)
    is_empty = ~seen.any(dim=-1, keepdim=True) & (sinks == nothing)
    columns = torch.cat([scores, torch.where(is_empty, 0, sinks)], dim=-1)
    weights = torch.softmax(columns, dim=-1)[..., :-1] * factors.to(scores.dtype)
    output = weights @ value
    lse = torch.where(is_empty[..., 0], nothing, torch.logsumexp(columns, dim=-1))
    return (output[0], lse[0]) if solved.is_flat else (output, lse)


def loss(function):
    def of_results(*tensors):
        output, lse = function(*tensors)
        return (output**2).sum() + (lse.sin() * (1 + lse)).sum()

    return of_results


def of_all(transform, function):
    """Return the derivative with respect to all arguments."""
    return lambda *tensors: transform(function, tuple(range(len(tensors))))(*tensors)


def grad(function):
    return of_all(torch.func.grad, loss(function))


def along(function):
    def derivative(*tensors):
        directions = (torch.arange(x.numel()).to(x).sin().reshape(x.shape) for x in tensors)
        return torch.func.jvp(function, tensors, tuple(directions))[1]

    return derivative


def against(function):
    def derivative(*tensors):
        results, pull = torch.func.vjp(function, *tensors)
        return pull(tuple(result.cos() for result in results))

    return derivative


def jacobian(function):
    return of_all(torch.func.jacrev, function)


def forward_jacobian(function):
    return of_all(torch.func.jacfwd, function)


TRANSFORMS = {
    "grad": grad,
    "jvp": along,
    "vjp": against,
    "jacrev": jacobian,
    "jacfwd": forward_jacobian,
    "jvp of grad": lambda f: along(grad(f)),
    "jvp of jvp": lambda f: along(along(f)),
    "vjp of grad": lambda f: against(grad(f)),
    "vjp of jvp": lambda f: against(along(f)),
    "hessian": lambda f: forward_jacobian(grad(f)),
    "jacrev of grad": lambda f: jacobian(grad(f)),
    "jacrev of jacfwd": lambda f: jacobian(forward_jacobian(loss(f))),
}


def functions_of(case):
    """Return regard's call and the formula, as functions of all inputs, and these tensors."""
    problem = build(case, np.dtype(np.float64), dropout=0.4 if case.name == "dropout" else 0.0)
    given = {name: torch.tensor(array) for name, array in problem.inputs.items()}

    def finite(output, lse):
        return output, torch.where(lse == -torch.inf, 0, lse)

    def ours(*tensors):
        return finite(*attend(problem, dict(zip(given, tensors, strict=True)), return_lse=True))

    def theirs(*tensors):
        inputs = dict.fromkeys(NAMES) | dict(zip(given, tensors, strict=True))
        return finite(*formula(problem, **inputs))

    return ours, theirs, tuple(given.values())


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
        function, inputs, gen_non_contig_grad_outputs=True, check_fwd_over_rev=True, **CHECKED
    )
