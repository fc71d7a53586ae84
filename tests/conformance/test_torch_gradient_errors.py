"""How far gradients in float32 and 16 bits are from the exact ones, compared with PyTorch's own."""

import dataclasses
import functools
import zlib

import numpy as np
import pytest

from gradient_cases import GradientProblem
from torch_formula import INPUTS, as_tensors, formula, torch

EPS = np.finfo(np.float32).eps


@dataclasses.dataclass(frozen=True)
class Row:
    """Arrays of N(0, 1), times factors, plus offsets that all keys or all values of a head
    share."""

    name: str
    query: tuple = (2, 4, 256, 64)
    key: tuple = (2, 4, 256, 64)
    sharper: float = 1.0
    key_offset: float = 0.0
    value_offset: float = 0.0
    has_mask: bool = False
    is_causal: bool = False

    def build(self, dtype):
        random = np.random.default_rng(zlib.crc32(self.name.encode()))

        def normal(*shape):
            return random.standard_normal(shape)

        shared = (*self.key[:-2], 1, self.key[-1])
        arrays = (
            self.sharper * normal(*self.query),
            normal(*self.key) + self.key_offset * normal(*shared),
            normal(*self.key) + self.value_offset * normal(*shared),
        )
        options = {"is_causal": self.is_causal}
        if self.has_mask:
            options["mask"] = random.random((self.query[-2], self.key[-2])) < 0.7
        grads = normal(*self.query).astype(dtype), np.zeros(self.query[:-1], np.float32)
        return GradientProblem(*(array.astype(dtype) for array in arrays), options, *grads)


TABLE = [
    Row("normal"),
    Row("groups, causal", (1, 8, 300, 64), (1, 2, 300, 64), is_causal=True),
    Row("peaked, long, causal", (1, 2, 1024, 64), (1, 2, 1024, 64), sharper=8.0, is_causal=True),
    Row("one key has all weight", sharper=50.0),
    Row("keys share an offset", key_offset=3.0),
    Row("values share an offset", value_offset=30.0),
    Row("bool mask", has_mask=True),
    Row("one query", (8, 8, 1, 64), (8, 8, 900, 64)),
]
each_row = pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)


def differentiated(problem, attend, precision):
    """Return gradients in this precision, as float64."""
    tensors = as_tensors(problem, precision)
    leaves = {n: x.requires_grad_() for n, x in zip(INPUTS, tensors, strict=True) if x is not None}
    grad_output = torch.tensor(problem.grad_output.astype(np.float64)).to(precision)
    attend(problem, *tensors).backward(grad_output)
    return {name: leaf.grad.double().numpy() for name, leaf in leaves.items()}


def whole_matrices(problem, *tensors):
    return formula(problem, *tensors)[0]


def pytorchs_call(problem, query, key, value, mask, *others):
    """Call PyTorch's function, with the implementation that PyTorch chooses."""
    assert others == (None, None, None)
    assert mask is None
    if "mask" in problem.options:
        mask = torch.tensor(problem.options["mask"])
    return torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        mask,
        is_causal=problem.options["is_causal"],
        enable_gqa=query.shape[-3] != key.shape[-3],
    )


@functools.lru_cache(maxsize=4)
def solved(row, dtype):
    """Return a problem, its exact gradients, and the gradients of PyTorch's call and of its
    operators."""
    problem = row.build(dtype)
    precision = getattr(torch, dtype.name)
    return (
        problem,
        differentiated(problem, whole_matrices, torch.float64),
        differentiated(problem, pytorchs_call, precision),
        differentiated(problem, whole_matrices, precision),
    )


def assert_no_worse(actual, exact, other, worst=2.0):
    """Check that errors are at most twice another's: typically, and in one element `worst` times
    with 4 eps more."""
    assert exact.keys() == other.keys()
    for name, wanted in exact.items():
        part = getattr(actual, name).astype(np.float64)
        ours, theirs = np.abs(part - wanted), np.abs(other[name] - wanted)
        ratio = np.sqrt((ours**2).mean() / (theirs**2).mean())
        assert ratio <= 2, f"{name}: {ratio:.2f} times the error"
        allowed = worst * theirs.max() + 4 * EPS * np.abs(wanted).max()
        assert ours.max() <= allowed, f"{name}: error {ours.max():.3g}, allowed {allowed:.3g}"


@each_row
def test_float32(row, target):
    problem, exact, of_call, _ = solved(row, np.dtype(np.float32))
    assert_no_worse(problem.gradients(), exact, of_call)


@each_row
def test_16_bits(row, half, target):
    """FlashAttention's criterion compares with operators in 16 bits; PyTorch's call is compared
    too.

    If a mask has a gradient, PyTorch computes in float32 throughout, while the output from which
    regard's gradients start is rounded.
    """
    problem, exact, of_call, of_operators = solved(row, half)
    actual = problem.gradients()
    assert_no_worse(actual, exact, of_operators)
    assert_no_worse(actual, exact, of_call, worst=3.0)
