"""Test calls of `backward` that are refused or fail, and what they leave behind."""

import numpy as np
import pytest

import regard
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
START = "backward needs a forward call in train() mode, and "
NONE_YET = "there was none since train()"
EVAL = "the layer is in eval() mode: call train() before the forward call"
USED = "the gradients of the last call have been computed already: call the layer again"
LOADED = "the parameters have been replaced since the last call: call the layer again"


@pytest.fixture(params=[one_head, many_heads])
def kind(request):
    """Return either kind of layer."""
    return request.param


def called(layer):
    layer(X)
    return layer


def used(layer):
    layer.backward(output_like(layer, X))
    return layer


HISTORIES = {
    "new": (lambda layer: layer.eval(), EVAL),
    "call in eval mode": (lambda layer: called(layer.eval()), EVAL),
    "eval after the call": (lambda layer: called(layer).eval(), EVAL),
    "no call": (lambda layer: layer, NONE_YET),
    "call before train": (lambda layer: called(layer.eval()).train(), NONE_YET),
    "eval and train after the call": (lambda layer: called(layer).eval().train(), NONE_YET),
    "twice": (used, USED),
}


@pytest.mark.parametrize("history", HISTORIES)
def test_backward_without_a_call(history, kind):
    prepare, reason = HISTORIES[history]
    layer = kind()
    grad = output_like(layer, X)
    layer.eval().train()
    layer = prepare(layer)
    before = {name: array.copy() for name, array in layer.grads.items()}
    with pytest.raises(RuntimeError) as raised:
        layer.backward(grad)
    assert str(raised.value) == START + reason
    assert_same_arrays(layer.grads, before)


def test_train_keeps_what_is_held(kind):
    layer = kind()
    grad = output_like(layer, X)
    wanted = gradients_of(layer, X, grad)
    layer.zero_grads()
    layer(X)
    assert_same_arrays({"x": layer.train().backward(grad)} | layer.grads, wanted)


def test_loading_ends_a_call(kind):
    layer = kind()
    grad, state = output_like(layer, X), layer.state_dict()
    name = next(iter(state))
    with pytest.raises(ValueError, match="must have shape"):
        layer.load_state_dict(state | {name: state[name][:1]})
    layer.backward(grad)
    layer.load_state_dict(state)
    with pytest.raises(RuntimeError) as raised:
        layer.backward(grad)
    assert str(raised.value) == START + USED
    layer(X)
    layer.load_state_dict(state)
    with pytest.raises(RuntimeError) as raised:
        layer.backward(grad)
    assert str(raised.value) == START + LOADED


SHAPE = "grad must have the shape of the output, (2, 4, {0})"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda g: None, TypeError, "grad must be an array, got None"),
        (lambda g: "a", TypeError, "grad must be an array of real numbers, got <U1"),
        (lambda g: g + 0j, TypeError, "grad must be an array of real numbers, got complex128"),
        (lambda g: g.astype("O"), TypeError, "grad must be an array of real numbers, got object"),
        (lambda g: [[1], [1, 2]], ValueError, "grad must be an array or a regular nested list: "),
        (lambda g: 1.0, ValueError, f"{SHAPE}, got ()"),
        (lambda g: g[:1], ValueError, f"{SHAPE}, got (1, 4, {{0}})"),
        (lambda g: g[..., :2], ValueError, f"{SHAPE}, got (2, 4, 2)"),
    ],
)  # fmt: skip
def test_a_wrong_gradient_changes_nothing(change, error, message, kind):
    layer = kind()
    grad = output_like(layer, X)
    layer.backward(grad)
    wanted = {name: 2 * array for name, array in layer.grads.items()}
    before = {name: array.copy() for name, array in layer.grads.items()}
    layer(X)
    with pytest.raises(error) as raised:
        layer.backward(change(grad))
    assert str(raised.value).startswith(message.format(grad.shape[-1]))
    assert_same_arrays(layer.grads, before)
    layer.backward(grad)
    assert_same_arrays(layer.grads, wanted)


def test_wrong_threads(kind):
    layer = kind()
    grad = output_like(layer, X)
    with pytest.raises(ValueError, match="threads must be"):
        layer.backward(grad, threads=0)
    layer.backward(grad)


def test_other_keywords(kind):
    with pytest.raises(TypeError, match=r"backward\(\) has no argument retain_graph: "):
        kind().backward(X, retain_graph=True)


def test_the_mode_is_set_by_calls(kind):
    layer = kind()
    for name in ("training", "grads"):
        with pytest.raises(AttributeError):
            setattr(layer, name, True)


def test_a_call_that_fails_keeps_the_last_one(kind):
    layer = kind()
    grad = output_like(layer, X)
    wanted = gradients_of(layer, X, grad)
    layer.zero_grads()
    layer(X)
    with pytest.raises(ValueError, match="mask must broadcast"):
        layer(normal((2, 4, D), 5), mask=np.ones((3, 3), bool))
    assert_same_arrays({"x": layer.backward(grad)} | layer.grads, wanted)


def test_caches_are_for_eval_mode():
    layer = regard.MultiHeadAttention(8, 2, is_causal=True, rng=0).train()
    cache = regard.KVCache(2, 2, 4)
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        layer(np.zeros((2, 3, 8)), cache=cache)
    assert str(raised.value) == (
        "cache must be left out in train() mode, which computes no gradients of the contents of "
        "a cache: call eval() first"
    )
    assert cache.lengths.tolist() == [0, 0]
    layer.eval()(np.zeros((2, 3, 8)), cache=cache)
    assert cache.lengths.tolist() == [3, 3]


@pytest.mark.parametrize("name", ["SelfAttention", "MultiHeadAttention"])
@pytest.mark.parametrize(
    ("dropout", "error", "message"),
    [
        (1.0, ValueError, "dropout must be at least 0 and less than 1, got 1.0"),
        (-0.1, ValueError, "dropout must be at least 0 and less than 1, got -0.1"),
        (np.nan, ValueError, "dropout must be at least 0 and less than 1, got nan"),
        (True, TypeError, "dropout must be a real number, got bool"),
        (None, TypeError, "dropout must be a real number, got NoneType"),
        ("0.1", TypeError, "dropout must be a real number, got str"),
    ],
)
def test_wrong_dropout(dropout, error, message, name):
    with pytest.raises(error) as raised:
        getattr(regard, name)(4, 2, dropout=dropout, rng=0)
    assert str(raised.value) == message


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize(
    ("seed", "error", "message"),
    [
        (-1, ValueError, "dropout_seed must be at least 0, got -1"),
        (2**64, ValueError, f"dropout_seed must be at most {2**64 - 1}, got {2**64}"),
        (1.0, TypeError, "dropout_seed must be an int, got float"),
        (True, TypeError, "dropout_seed must be an int, got bool"),
    ],
)
def test_wrong_seeds(seed, error, message, mode, kind):
    layer = getattr(kind(dropout=0.1), mode)()
    with pytest.raises(error) as raised:
        layer(X, dropout_seed=seed)
    assert str(raised.value) == message


def test_dropout_needs_a_seed(kind):
    layer = kind(dropout=0.1)
    with pytest.raises(TypeError) as raised:
        layer(X)
    assert str(raised.value) == (
        "dropout_seed must be an int in train() mode for a layer with dropout=0.1, got None: the "
        "seed determines which weights are dropped, so pass another seed in each call"
    )
    layer(X, dropout_seed=np.uint64(2**64 - 1))
    layer.eval()(X)


def test_representations_show_dropout():
    assert "dropout" not in repr(regard.MultiHeadAttention(4, 2, rng=0))
    assert repr(regard.MultiHeadAttention(4, 2, dropout=0.1, rng=0)).endswith(
        "is_causal=False, dropout=0.1, dtype=float32)"
    )
    assert repr(regard.SelfAttention(4, 2, dropout=0.1, rng=0)) == (
        "SelfAttention(d_in=4, d_out=2, qkv_bias=False, init='linear', dropout=0.1, dtype=float32)"
    )


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
