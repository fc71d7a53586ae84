"""PyTorch, JAX and Dask calls compute what the NumPy calls compute: output, lse, gradients and
tangents, for the options, types and shapes of the common tables, and for sparse masks.

PyTorch and JAX have the bits of the NumPy calls. Dask merges parts of the keys, and is compared
with the reference implementation.
"""

import dataclasses
import importlib
import itertools

import numpy as np
import pytest

import regard
from cases import build
from element_types import each_in_one_type
from error_limits import assert_matches, assert_within, expected
from option_cases import FEW, MIXES
from problem import Problem, drawn
from reference import assert_same_bits
from sparse_cases import NAMES, dense, sparse_masks

ROLES = ("query", "key", "value")
RESULTS = ("output", "lse")
TANGENTS = ("tangent_output", "tangent_lse")
SOME = [*MIXES[::9], *FEW[::2]]


class OfPyTorch:
    """Calls of `regard.torch`, with results as arrays by name."""

    def __init__(self):
        self.tensors = pytest.importorskip("torch_problems")
        self.torch = self.tensors.torch

    def results(self, problem):
        leaves = self.tensors.leaves_of(problem)
        results = self.tensors.attend(problem, leaves, return_lse=True)
        for wanted in (ROLES[:1], ()):  # through the operator, and around it
            others = self.tensors.leaves_of(problem, wanted)
            output = self.tensors.attend(problem, others)
            assert output.requires_grad == bool(wanted)
            assert self.torch.equal(output, results[0])
        grads = map(self.tensors.as_tensor, (problem.grad_output, problem.grad_lse))
        gradients = self.torch.autograd.grad(results, tuple(leaves.values()), tuple(grads))
        return self.named([*RESULTS, *leaves], [*results, *gradients])

    def tangents(self, problem, directions):
        leaves = self.tensors.leaves_of(problem, ())

        def function(*three):
            given = leaves | dict(zip(ROLES, three, strict=True))
            return self.tensors.attend(problem, given, return_lse=True)

        three = tuple(leaves[role] for role in ROLES)
        moved = tuple(map(self.tensors.as_tensor, directions))
        results, along = self.torch.func.jvp(function, three, moved)
        return self.named([*RESULTS, *TANGENTS], [*results, *along])

    def named(self, names, tensors):
        return dict(zip(names, map(self.tensors.as_array, tensors), strict=True))


class OfJAX:
    """Calls of `regard.jax`, compiled; masks, slopes and other arrays are traced."""

    def __init__(self):
        self.jax = pytest.importorskip("jax", reason='pip install ".[jax]"')
        self.call = importlib.import_module("regard.jax").scaled_dot_product_attention

    def function_of(self, problem):
        def function(inputs):
            options = dict(problem.options)
            if "mask" in inputs:
                is_pair = isinstance(options["mask"], tuple)
                mask = inputs["mask"]
                options["mask"] = (options["mask"][0], mask) if is_pair else mask
            options |= {name: x for name, x in inputs.items() if name not in (*ROLES, "mask")}
            return self.call(*(inputs[role] for role in ROLES), **options, return_lse=True)

        return function

    def results(self, problem):
        function = self.function_of(problem)

        @self.jax.jit
        def everything(inputs, grads):
            results, pull = self.jax.vjp(function, inputs)
            return results, pull(grads)[0]

        inputs = {name: np.asarray(array) for name, array in problem.inputs.items()}
        with self.jax.enable_x64(True):
            results, gradients = everything(inputs, (problem.grad_output, problem.grad_lse))
        results = dict(zip(RESULTS, results, strict=True)) | gradients
        return {name: np.asarray(array) for name, array in results.items()}

    def tangents(self, problem, directions):
        function, inputs = self.function_of(problem), dict(problem.inputs)
        three = {role: inputs.pop(role) for role in ROLES}

        @self.jax.jit
        def along(three, moved):
            return self.jax.jvp(lambda three: function(inputs | three), (three,), (moved,))

        with self.jax.enable_x64(True):
            results, moved = along(three, dict(zip(ROLES, directions, strict=True)))
        return dict(zip((*RESULTS, *TANGENTS), map(np.asarray, (*results, *moved)), strict=True))


class OfDask:
    """Calls of `regard.dask`, in chunks that the name of a problem decides."""

    def __init__(self):
        self.dask = pytest.importorskip("dask", reason='pip install ".[dask]"')
        self.chunks = importlib.import_module("dask_chunks")

    def results(self, problem, name="chunks"):
        whole, state, gradients = self.chunks.call(problem, name)
        assert state[0].chunks == whole.output_chunks
        assert state[1].chunks == whole.output_chunks[:-1]
        lazy = dict(zip(RESULTS, state, strict=True)) | gradients._asdict()
        lazy = {name: array for name, array in lazy.items() if array is not None}
        for role, array in zip(ROLES, whole.arrays, strict=True):
            assert lazy[role].chunks == array.chunks
        (results,) = self.dask.compute(lazy, scheduler="synchronous")
        assert {n: x.dtype for n, x in results.items()} == {n: x.dtype for n, x in lazy.items()}
        return results


each_with_bits = pytest.mark.parametrize("library", [OfPyTorch, OfJAX])


def check_bits(library, problem):
    """Check output, lse and gradients, and that there is a gradient of each input that has one."""
    state = problem.attend()
    wanted = dict(zip(RESULTS, state, strict=True))
    wanted |= {name: getattr(problem.gradients(state), name) for name in problem.inputs}
    actual = library().results(problem)
    assert actual.keys() == wanted.keys()
    for name, array in wanted.items():
        assert_same_bits(actual[name], array)


def check_tangents(library, problem):
    directions = [drawn(x.shape, x.dtype, 3 + i) for i, x in enumerate(problem.arrays)]
    output, along, lse, along_lse = regard.scaled_dot_product_attention_jvp(
        *problem.arrays, *directions, **problem.options, return_lse=True
    )
    actual = library().tangents(problem, directions)
    wanted = dict(zip((*RESULTS, *TANGENTS), (output, lse, along, along_lse), strict=True))
    for name, array in wanted.items():
        assert_same_bits(actual[name], array)


def merged(want, problem):
    """Add what a merge may change in float64, where the lse of each part is rounded.

    With u = eps / 2, a part's weight w is off by u |lse of the part| of itself. Its lse is lse +
    log w, and the sum of -w log w is at most log n for n parts. The part moves the output by its
    distance from it, at most 2 max |value|. Each level of the tree, and the sinks, add this once.
    In other types, the lse of a part is float64, and nothing is added.
    """
    if want.arithmetic != np.float64:
        return want
    parts = 5
    lse, value = (x[np.isfinite(x)] for x in (want.exact.lse, problem.value))
    of_level = (np.abs(lse).max(initial=0) + np.log(parts)) * np.abs(value).max(initial=0)
    levels = np.ceil(np.log2(parts)) + ("sinks" in problem.options)
    moved = np.finfo(np.float64).eps * levels * float(of_level)
    return want._replace(limit=want.limit._replace(output=want.limit.output + moved))


def check_limits(problem, name):
    """Check Dask's results, of which dropout is compared in the gradients alone."""
    results = OfDask().results(problem, name)
    if not problem.options.get("dropout_p"):
        want = merged(expected(*problem.arrays, **problem.options), problem)
        assert_matches(want, output=results["output"], lse=results["lse"])
    judged = problem.expected()
    assert results.keys() == {*RESULTS, *problem.inputs}
    for name, array in problem.inputs.items():
        assert_within(getattr(judged, name), results[name], array.dtype, name)


@each_with_bits
@each_in_one_type(SOME, "storage")
def test_results_and_gradients(library, case, storage):
    check_bits(library, build(case, storage))


@each_with_bits
@each_in_one_type(SOME[::2], "storage")
def test_tangents(library, case, storage):
    check_tangents(library, build(case, storage))


@each_in_one_type(SOME, "storage")
def test_dask(case, storage):
    check_limits(build(case, storage), case.name)


@each_with_bits
def test_precision(library):
    problem = build(SOME[0], np.dtype(np.float32))
    options = problem.options | {"precision": "bfloat16"}
    check_bits(library, dataclasses.replace(problem, options=options))


BATCH, HEADS, Q_LEN, KV_LEN = 2, 4, 33, 90
SHAPES = (BATCH, HEADS, Q_LEN, 8), (BATCH, 2, KV_LEN, 8), (BATCH, 2, KV_LEN, 5)
MASKS = sparse_masks(BATCH, HEADS, Q_LEN, KV_LEN)
OPTIONS = {
    "plain": {},
    "positions": {"is_causal": True, "query_offset": np.array([57, 3]), "left_padding": 4},
    "scores": {
        "softcap": np.array([np.inf, 2.0, 0.5, 1.0]),
        "scale": drawn((2, 4), np.float64),
        "sinks": drawn((4,), np.float32),
        "distance_bias": drawn((4, 41), np.float32, 1),
    },
    "dropout": {"dropout_p": 0.3, "dropout_seed": 5},
}
PAIRS = itertools.product([OfPyTorch, OfJAX, OfDask], NAMES)
EACH_MASK = [(*pair, name) for pair, name in zip(PAIRS, itertools.cycle(OPTIONS), strict=False)]


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("library", "name", "scores"), EACH_MASK)
def test_a_sparse_mask_has_the_bits_of_the_dense_mask(library, name, scores, with_bias):
    arrays = [drawn(shape, np.float32, i) for i, shape in enumerate(SHAPES)]
    grads = drawn((BATCH, HEADS, Q_LEN, 5), np.float32), drawn((BATCH, HEADS, Q_LEN), np.float32)
    results = []
    for mask in (MASKS[name], dense(MASKS[name], KV_LEN)):
        if with_bias:
            mask = mask, drawn((HEADS, Q_LEN, KV_LEN), np.float32, 5)
        problem = Problem(*arrays, OPTIONS[scores] | {"mask": mask}, *grads)
        results.append(library().results(problem))
    for key, wanted in results[1].items():  # -0 plus the zeros of a hidden pair is +0
        assert_same_bits(results[0][key] + 0, wanted + 0)
