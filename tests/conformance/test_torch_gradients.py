"""Derivatives of attention in float64, compared with PyTorch's autograd derivatives of the
formula."""

import hypothesis
import numpy as np
import pytest

import regard
from cases import Case
from gradient_cases import ALL, GradientProblem, More, build, drawn, pair
from gradient_reference import Tangents, backward, jvp
from reference import error, largest
from test_torch import OPERATOR, as_array, problems
from torch_formula import INPUTS, as_tensors, formula, torch

# PyTorch's forward mode compiles its decompositions with functions that PyTorch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is:DeprecationWarning")

FLOAT64 = np.dtype(np.float64)
EPS = float(np.finfo(FLOAT64).eps)
SHAPES = (2, 6, 37, 24), (2, 2, 101, 24), (2, 2, 101, 20)
BATCHES = (2, 1, 4, 19, 8), (3, 2, 107, 8), (1, 3, 2, 107, 12)
DROPOUT = {"dropout_p": 0.3, "dropout_seed": 2**63 + 5}
EACH = [
    Case("plain", *SHAPES),
    Case("two axes", (37, 24), (101, 24), (101, 20)),
    Case("broadcast batches", *BATCHES),
    Case("causal", *SHAPES, is_causal=True),
    Case("causal, offset", *SHAPES, is_causal=True, query_offset=64),
    Case("rows without keys", *SHAPES, is_causal=True, query_offset=-9),
    Case("offset of each entry", *BATCHES, is_causal=True, query_offset=((0, 9, 88), (-3, 40, 1))),
    Case("window", *SHAPES, window=(30, 4), query_offset=50),
    Case("lengths", *BATCHES, key_lengths=(0, 60, 107)),
    Case("padding", *BATCHES, left_padding=((7,), (100,))),
    Case("scale", *SHAPES, scale=-0.4),
    Case("softcap", *SHAPES, softcap=1.3, scale=1.0),
    Case("slopes", *SHAPES, alibi_slopes=0.1, query_offset=64),
    Case("distances", *SHAPES, distance_bias=50, query_offset=64),
    More(
        "distances of each entry",
        Case("entries", *BATCHES, query_offset=88),
        {"distance_bias": np.linspace(-1, 1, 2 * 3 * 4 * 61).reshape(2, 3, 4, 61)},
    ),
    More("distances of all heads", Case("heads", *SHAPES), {"distance_bias": np.arange(5.0)}),
    Case("scale of each head", *SHAPES, scale=(0.1, 0.2, 0.3, -0.1, 0.0, 1.0)),
    Case("softcap of each head", *SHAPES, softcap=(0.5, 1.0, float("inf"), 2.0, 1.0, 3.0)),
    More(
        "slopes of each entry",
        Case("entries", *BATCHES, query_offset=88),
        {"alibi_slopes": np.linspace(0, 0.2, 24).reshape(2, 3, 4)},
    ),
    Case("sinks", *SHAPES, sinks=1.0, is_causal=True, query_offset=-9),
    Case("bool mask", *SHAPES, bool_mask=(6, 37, 101)),
    Case("float mask", *SHAPES, float_mask=(2, 6, 37, 101)),
    Case("float mask of all heads", *BATCHES, float_mask=(3, 1, 19, 107)),
    Case("float mask of each key", *BATCHES, float_mask=(107,), sinks=0.5),
    More("pair of masks", Case("pair", *BATCHES), {"mask": pair((107,), (3, 4, 19, 107))}),
    More("dropout", Case("dropout", *BATCHES), DROPOUT),
    More(
        "all",
        Case(
            *("everything", *BATCHES),
            float_mask=(3, 4, 19, 107),
            is_causal=True,
            query_offset=((0, 9, 88), (40, 60, 1)),
            window=(50, 3),
            key_lengths=(107, 60, 90),
            left_padding=((0,), (4,)),
            scale=0.9,
            softcap=2.5,
            alibi_slopes=0.1,
            sinks=-0.5,
        ),
        DROPOUT,
    ),
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


def loss_of(problem, grad_output, output, lse):
    grad_lse = torch.tensor(problem.grad_lse)
    return (output * grad_output).sum() + (torch.where(lse == -torch.inf, 0, lse) * grad_lse).sum()


def leaves_of(problem):
    """Return the gradient of the output, and the inputs."""
    tensors = torch.tensor(problem.grad_output), *as_tensors(problem)
    return [None if x is None else x.requires_grad_() for x in tensors]


def directions_of(problem):
    return [drawn(x.shape, FLOAT64, 3 + i) for i, x in enumerate(problem.arrays)]


def check_gradients(problem, attend=formula):
    grad_output, *inputs = leaves_of(problem)
    loss_of(problem, grad_output, *attend(problem, *inputs)).backward()
    wanted = {n: leaf.grad for n, leaf in zip(INPUTS, inputs, strict=True) if leaf is not None}
    actual = problem.gradients()
    assert [part is not None for part in actual] == [name in wanted for name in INPUTS]
    arrays = problem.grad_output, *problem.arrays
    grads = {"grad_lse": problem.grad_lse}
    assert_alike(backward, problem, *arrays, actual=actual, wanted=wanted, **grads)


def check_tangents(problem):
    tensors = as_tensors(problem)
    inputs, others = tensors[:3], tensors[3:]
    tangents = directions_of(problem)
    _, (output, lse) = torch.func.jvp(
        lambda *three: formula(problem, *three, *others),
        tuple(inputs),
        tuple(map(torch.from_numpy, tangents)),
    )
    wanted = {"tangent_output": output, "tangent_lse": lse}
    arrays = *problem.arrays, *tangents
    actual = regard.scaled_dot_product_attention_jvp(*arrays, **problem.options, return_lse=True)
    assert_alike(jvp, problem, *arrays, actual=Tangents(*actual), wanted=wanted)


@each_case
def test_gradients(case, target):
    check_gradients(build(case, FLOAT64))


@each_case
def test_tangents(case, target):
    check_tangents(build(case, FLOAT64))


@pytest.mark.slow
@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_derivatives_in_all_cases(case, target):
    problem = build(case, FLOAT64)
    check_gradients(problem)
    check_tangents(problem)


def of_pytorch(arrays, ours, theirs):
    """Return a problem, and PyTorch's own call in place of the formula."""
    arrays = [array.astype(FLOAT64) for array in arrays]
    if ours.get("mask") is not None and ours["mask"].dtype != bool:
        ours = ours | {"mask": ours["mask"].astype(FLOAT64)}
    output, lse = regard.scaled_dot_product_attention(*arrays, **ours, return_lse=True)
    grads = drawn(output.shape, FLOAT64), np.zeros_like(lse)
    problem = GradientProblem(*arrays, ours, *grads)

    def attend(problem, query, key, value, mask, *others):
        options = dict(theirs)
        shown = options.pop("mask", None)
        if options.pop("lower_right", False):
            lengths = query.shape[-2], key.shape[-2]
            mask = torch.nn.attention.bias.causal_lower_right(*lengths)
        elif mask is None and shown is not None:
            mask = torch.tensor(shown)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            output = torch.nn.functional.scaled_dot_product_attention(
                query, key, value, mask, **options
            )
        return output, torch.zeros(lse.shape)

    return problem, attend


def check_call(arrays, ours, theirs):
    problem, attend = of_pytorch(arrays, ours, theirs)
    check_gradients(problem, attend)


@hypothesis.given(drawn_problem=problems())
@hypothesis.settings(
    derandomize=True,
    deadline=None,
    max_examples=200,
    suppress_health_check=[
        hypothesis.HealthCheck.function_scoped_fixture,
        hypothesis.HealthCheck.too_slow,
    ],
)
def test_drawn_problems_and_pytorchs_call(target, drawn_problem):
    check_call(*drawn_problem)


def test_samples_of_pytorchs_own_tests(target):
    """All samples with deterministic gradients: 13 of the 25 in PyTorch 2.13."""
    pytest.importorskip("expecttest", reason="PyTorch's samples need expecttest")
    from torch.testing._internal.common_methods_invocations import op_db

    (operator,) = (operator for operator in op_db if operator.name == OPERATOR)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        samples = list(operator.sample_inputs("cpu", torch.float64, requires_grad=True))
    samples = [sample for sample in samples if not sample.kwargs.get("dropout_p")]
    assert len(samples) >= 13
    for sample in samples:
        tensors = sample.input, *sample.args
        assert all(tensor.requires_grad for tensor in tensors)
        arrays = [as_array(tensor.detach()) for tensor in tensors]
        options = {k: v for k, v in sample.kwargs.items() if k != "dropout_p"}
        if options.get("attn_mask") is not None:
            options["mask"] = as_array(options["attn_mask"].detach())
        options.pop("attn_mask", None)
        check_call(arrays, options, options)
