"""Test interrupts of `backward`: `grads` contain the whole of a call or nothing of it."""

import numpy as np
import pytest

from interrupts import STEPS, interrupted
from trained_layers import (
    D,
    assert_same_arrays,
    gradients_of,
    many_heads,
    normal,
    one_head,
    output_like,
)

X = normal((2, 4, D))


@pytest.fixture(params=[one_head, pytest.param(many_heads, marks=pytest.mark.slow)])
def kind(request):
    """Return either kind of layer."""
    return request.param


@STEPS
def test_ctrl_c_leaves_all_gradients_or_none(kind, step):
    """A call whose `backward` was interrupted is used up once `grads` contain its part."""
    layer = kind()
    grad = output_like(layer, X)
    once = gradients_of(layer, X, grad)
    once.pop("x")
    before = {name: array.copy() for name, array in once.items()}
    twice = {name: array + array for name, array in once.items()}
    number, outcomes = 0, []
    while True:
        layer.zero_grads()
        layer(X)
        layer.backward(grad)
        layer(X)
        if not interrupted(number, lambda: layer.backward(grad)):
            break
        is_added = not np.array_equal(layer.grads["W_query.weight"], before["W_query.weight"])
        assert_same_arrays(layer.grads, twice if is_added else before)
        if is_added:
            with pytest.raises(RuntimeError, match="computed already"):
                layer.backward(grad)
        outcomes.append(is_added)
        number += step
    assert number > 300
    assert_same_arrays(layer.grads, twice)
    assert outcomes == sorted(outcomes)
    assert not outcomes[0]
