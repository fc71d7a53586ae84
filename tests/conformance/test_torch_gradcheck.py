"""`regard.torch` under PyTorch's own checks of derivatives by differences."""

import numpy as np
import pytest

import regard
from cases import Case
from gradient_cases import More, build, gaussian, pair
from torch_formula import INPUTS, as_tensors, torch
from torch_problems import attend

# PyTorch's forward mode compiles its decompositions with functions that PyTorch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is:DeprecationWarning")

SHAPES = (2, 4, 3), (2, 5, 3), (2, 5, 2)
GROUPED = (4, 3, 3), (2, 5, 3), (2, 5, 2)
BATCHES = (2, 1, 2, 3, 2), (3, 1, 4, 2), (3, 1, 4, 3)
DROPOUT = {"dropout_p": 0.4, "dropout_seed": 2**40 + 1}
EVERYTHING = Case(
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
    distance_bias=2,
    sinks=0.1,
)
CASES = [
    Case("plain", *SHAPES),
    Case("two axes", (4, 3), (5, 3), (5, 2)),
    Case("broadcast batches", *BATCHES),
    Case("groups", *GROUPED),
    Case("causal", *SHAPES, is_causal=True),
    Case("causal, groups", *GROUPED, is_causal=True, query_offset=2),
    Case("rows without keys", *SHAPES, is_causal=True, query_offset=-2),
    Case("offset of each entry", *BATCHES, is_causal=True, query_offset=(0, -1, 2)),
    Case("window", *SHAPES, window=(1, 0)),
    Case("window, offset", *SHAPES, window=(2, 1), query_offset=2),
    Case("bool mask", *SHAPES, bool_mask=(4, 5)),
    Case("float mask", *SHAPES, float_mask=(2, 4, 5)),
    Case("float mask, broadcast", *BATCHES, float_mask=(3, 2, 1, 4)),
    Case("float mask of a row", *SHAPES, float_mask=(5,), sinks=0.5),
    More("pair of masks", Case("pair", *SHAPES), {"mask": pair((2, 1, 5), (4, 5))}),
    Case("lengths", *BATCHES, key_lengths=(0, 3, 4)),
    Case("padding", *SHAPES, left_padding=2),
    Case("scale", *SHAPES, scale=-0.7),
    Case("softcap", *SHAPES, softcap=0.6, scale=1.0),
    Case("slopes", *SHAPES, alibi_slopes=0.5, query_offset=1),
    Case("distances", *SHAPES, distance_bias=3, query_offset=1),
    Case("distances, groups", *GROUPED, distance_bias=6, is_causal=True, query_offset=2),
    More("distances of all", Case("all", *BATCHES), {"distance_bias": np.linspace(-1, 1, 7)}),
    Case("scale of each head", *GROUPED, scale=(0.3, -0.7, 0.0, 1.0)),
    Case("softcap of each head", *SHAPES, softcap=(0.6, float("inf"))),
    Case("sinks", *GROUPED, sinks=0.5, window=(0, 0)),
    Case("sinks of some", *SHAPES, sinks=(float("-inf"), 0.5)),
    More("dropout", Case("dropout", *SHAPES), DROPOUT),
    More("dropout, groups", Case("groups", *GROUPED, is_causal=True, query_offset=2), DROPOUT),
    More("all", EVERYTHING, DROPOUT),
]
LARGER = [
    Case("plain", (2, 3, 65, 16), (2, 3, 130, 16), (2, 3, 130, 24)),
    Case("causal, groups", (6, 49, 12), (2, 97, 12), (2, 97, 12), is_causal=True, query_offset=48),
    Case("mask", (2, 2, 40, 8), (2, 1, 200, 8), (2, 1, 200, 8), float_mask=(2, 40, 200)),
    More("dropout", Case("rows", (2, 30, 8), (2, 300, 8), (2, 300, 8)), DROPOUT),
    Case("long", (1, 20, 4), (1, 2100, 4), (1, 2100, 4), softcap=3.0, window=(2000, 5), sinks=2.0),
]
# Central differences lose eps / 1e-6, some 1e-10, to rounding, and less to the length of the step.
CHECKED = {"eps": 1e-6, "atol": 1e-8, "rtol": 1e-7, "nondet_tol": 0.0}
FAST = CHECKED | {"fast_mode": True}


def attention(problem):
    """Return a function of the inputs with finite results: lse is set to 0 if it is not finite."""

    def function(*inputs):
        given = {n: x for n, x in zip(INPUTS, inputs, strict=True) if x is not None}
        output, lse = attend(problem, given, return_lse=True)
        return output, torch.where(lse == -torch.inf, 0, lse)

    return function


def inputs_of(problem, names):
    """Return the inputs; those in `names` are differentiated."""
    tensors = as_tensors(problem)
    for name, tensor in zip(INPUTS, tensors, strict=True):
        if tensor is not None:
            tensor.requires_grad_(name in names)
    return tuple(tensors)


def built(case):
    return build(gaussian(case), np.dtype(np.float64), dropout=0.0)


@pytest.fixture(autouse=True)
def _seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def check_gradients(problem, **settings):
    assert torch.autograd.gradcheck(attention(problem), inputs_of(problem, INPUTS), **settings)


def check_tangents(problem, **settings):
    inputs = inputs_of(problem, INPUTS[:3])
    settings |= {"check_forward_ad": True, "check_backward_ad": False}
    assert torch.autograd.gradcheck(attention(problem), inputs, **settings)


def check_double_gradients(problem, **settings):
    inputs = inputs_of(problem, INPUTS[:3])
    settings |= {"gen_non_contig_grad_outputs": True}
    assert torch.autograd.gradgradcheck(attention(problem), inputs, **settings)


CHECKS = [check_gradients, check_tangents, check_double_gradients]
each_check = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)


@each_check
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_derivatives(case, check, target):
    check(built(case), **CHECKED)


@each_check
@pytest.mark.parametrize("case", LARGER, ids=lambda case: case.name)
def test_derivatives_along_random_directions(case, check, target):
    check(built(case), **FAST)


@pytest.mark.parametrize("settings", [CHECKED, FAST], ids=["each element", "random directions"])
@pytest.mark.parametrize(
    ("check", "name"),
    [
        (check_gradients, "scaled_dot_product_attention_backward"),
        (check_tangents, "scaled_dot_product_attention_jvp"),
        (check_double_gradients, "attention_formula"),
    ],
)
def test_a_scale_that_is_wrong_by_a_millionth_is_found(check, name, settings, monkeypatch):
    owner = regard if hasattr(regard, name) else regard.torch._autograd
    call = getattr(owner, name)
    problem = built(Case("scale", *SHAPES, scale=1.0))
    check(problem, **settings)

    def wrong(*given, **options):
        if owner is regard:
            return call(*given, **options | {"scale": 1 + 1e-6})
        *arrays, options, factors = given
        return call(*arrays, options | {"scale": 1 + 1e-6}, factors)

    monkeypatch.setattr(owner, name, wrong)
    with pytest.raises(RuntimeError, match="mismatch for output"):
        check(problem, **settings)
