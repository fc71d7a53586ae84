"""Test score functions in calls of `regard.torch` against the formula in PyTorch operators."""

import gc

import numpy as np
import pytest

import regard
from problem import drawn
from torch_problems import scaled_dot_product_attention, torch

from torch._dynamo.testing import CompileCounterWithBackend  # isort: skip
from regard.torch import _options  # isort: skip


BATCH, HEADS, LENGTH = 2, 3, 11


def make(factor=0.5):
    """Make ``factor * score**2`` and a bias of the distance, which grows with the head and the
    entry."""

    @regard.ScoreFunction.c_type("float64")
    def function(scores, queries, keys, stride, positions, first_key, head, entry, _):
        for k in range(keys):
            for q in range(queries):
                score, distance = scores[k * stride + q], positions[q] - first_key - k
                bias = 0.125 * abs(distance) * (head + 1) * (entry + 1)
                scores[k * stride + q] = factor * score * score - bias

    @regard.ScoreFunction.c_type("float64")
    def derivative(scores, queries, keys, stride, *_):
        for k in range(keys):
            for q in range(queries):
                scores[k * stride + q] *= 2 * factor

    return regard.ScoreFunction(function, derivative)


def formula(query, key, value, factor=0.5, entry=0):
    scores = factor * (query @ key.mT / query.shape[-1] ** 0.5) ** 2
    places = torch.arange(LENGTH, dtype=query.dtype)
    heads = torch.arange(1.0, HEADS + 1, dtype=query.dtype)[:, None, None]
    entries = torch.arange(BATCH, dtype=query.dtype)[:, None, None, None] + entry + 1
    scores = scores - 0.125 * (places[:, None] - places).abs() * heads * entries
    return torch.softmax(scores, dim=-1) @ value


def tensors():
    shape = BATCH, HEADS, LENGTH, 8
    return [torch.from_numpy(drawn(shape, np.float64, i)) for i in range(3)]


def assert_close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("is_recorded", [False, True], ids=["", "gradients"])
def test_results(is_recorded):
    query, key, value = tensors()
    query.requires_grad_(is_recorded)
    output = scaled_dot_product_attention(query, key, value, score_function=make())
    assert_close(output, formula(query, key, value))
    output = scaled_dot_product_attention(
        query, key, value, score_function=make(), dropout_origin=(3, 0, 0)
    )
    assert_close(output, formula(query, key, value, entry=3))


def gradients(function, **options):
    leaves = [x.requires_grad_() for x in tensors()]
    output = function(*leaves, **options)
    gc.collect()
    return output, *torch.autograd.grad((output**2).sum(), leaves)


def test_gradients_of_a_function_that_only_the_call_holds():
    ours = gradients(lambda *three: scaled_dot_product_attention(*three, score_function=make()))
    assert_close(ours, gradients(formula))


def test_tangents():
    query, key, value = tensors()

    def along(function):
        return torch.func.jvp(lambda x: function(x, key, value), (query,), (query,))

    own = make()
    ours = along(lambda *three: scaled_dot_product_attention(*three, score_function=own))
    assert_close(ours, along(formula))


def test_compiled_calls():
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(scaled_dot_product_attention, fullgraph=True, backend=counter)
    for count, factor in enumerate((0.5, 0.25, 1.0), 1):
        own = make(factor)
        for _ in range(2):
            ours = gradients(lambda *three, own=own: compiled(*three, score_function=own))
            wanted = gradients(lambda *three, factor=factor: formula(*three, factor))
            assert_close(ours, wanted)
        assert counter.frame_count == count
    held = len(_options._KEPT)
    ours = gradients(lambda *three: compiled(*three, score_function=make(2.0)))
    assert len(_options._KEPT) == held + 1
    assert_close(ours, gradients(lambda *x: formula(*x, 2.0)))
