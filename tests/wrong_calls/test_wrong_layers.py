"""Wrong calls of the layers, and that an error leaves parameters and gradients as they were."""

import numpy as np
import pytest

import regard
from messages import check, each
from regard import MultiHeadAttention, SelfAttention, TorchGenerator
from trained_layers import (
    D,
    assert_same_arrays,
    gradients_of,
    many_heads,
    normal,
    one_head,
    output_like,
)

X, Y = np.zeros((2, 5, 12)), np.zeros((2, 6, 3))
EAGER = MultiHeadAttention(12, 3, rotary=True, rng=0)
ALONE = SelfAttention(3, 2, rng=0)
PACKED, STATE = normal((11, 12)), EAGER.state_dict()
TRAINED = MultiHeadAttention(12, 3, rng=0).train()
GROUPED = MultiHeadAttention(12, 4, num_kv_heads=1, rng=0)
CACHE = regard.KVCache(2, 3, 4)
QUERY = "W_query.weight"
DRAWS = TorchGenerator(0)
STARTS = [0, 3, 3, 10, 11]


def made(**options):
    return MultiHeadAttention(**{"d_model": 12, "num_heads": 3, "rng": 0} | options)


CONSTRUCTORS = [
    *(
        (lambda name=name: made(**{name: 0}), ValueError, f"{name} must be at least 1, got 0")
        for name in ("d_model", "num_kv_heads", "head_dim", "d_key", "d_value", "distance_bias")
    ),
    *(
        (lambda name=name: made(**{name: 1}), TypeError, f"{name} must be True or False, got int")
        for name in ("qkv_bias", "out_bias", "is_causal", "alibi")
    ),
    (lambda: made(num_heads=True), TypeError, "num_heads must be an int, got bool"),
    (lambda: made(num_heads=5), ValueError, "num_heads must divide d_model if ... got 5 and"),
    (lambda: made(num_kv_heads=2), ValueError, "num_kv_heads must divide num_heads, got 2 and 3"),
    (lambda: made(window=3), TypeError, "window must be a pair (left, right), got int"),
    (lambda: made(rotary=10000.0), TypeError, "rotary must be None, True or a mapping, got float"),
    (lambda: made(rotary={"theta": 3}), ValueError, "rotary must have keys among ... got theta"),
    (lambda: made(rotary={"rotary_dim": 6}), ValueError, "rotary_dim must be at ... got 6 and"),
    (lambda: made(rotary=True, head_dim=5), ValueError, "rotary_dim must be even ... got 5, the"),
    (lambda: made(rotary={"inverse_frequencies": [1.0], "base": 5}), ValueError, "rotary's"),
    (lambda: made(rotary={"interleaved": 1}), TypeError, "rotary['interleaved'] must ... got int"),
    (lambda: made(rotary={"scaling": {"rope_type": "linear"}}), ValueError, "scaling"),
    (lambda: made(qk_norm="layer"), ValueError, "qk_norm must be None, 'rms' ... got 'layer'"),
    (lambda: made(dtype=np.float16), TypeError, "dtype must be float32 or float64, got float16"),
    (lambda: made(dropout=1.0), ValueError, "dropout must be at least 0 and less than 1, got 1.0"),
    (lambda: SelfAttention(0, 2), ValueError, "d_in must be at least 1, got 0"),
    (lambda: SelfAttention(3, 2, init="xavier"), ValueError, "init must be ... got 'xavier'"),
    (lambda: SelfAttention(3, 2, init="uniform", qkv_bias=True), ValueError, "qkv_bias"),
    (lambda: SelfAttention(3, 2, rng="seed"), TypeError, "rng must be a ... got str"),
    (lambda: TorchGenerator(2**64), ValueError, "seed must be at ... got 18446744073709551616"),
    (lambda: DRAWS.randn(3, -1), ValueError, "shape must be at least 0, got -1"),
    (lambda: DRAWS.rand(2, dtype=np.float16), TypeError, "dtype must be float32 ... got float16"),
    (lambda: DRAWS.uniform("0", 1), TypeError, "low must be a real number, got str"),
    (lambda: DRAWS.uniform(2, 1), ValueError, "low must not be above high, got 2 and 1"),
    (lambda: DRAWS.linear(3, 2, 1), TypeError, "bias must be True or False, got int"),
]
CALLS = [
    (lambda: EAGER(X[..., :8]), ValueError, "query must have shape (..., seq, 12), got (2, 5, 8)"),
    (lambda: EAGER(X, X[..., :8]), ValueError, "key must have shape (..., seq, 12), got (2, 5,"),
    (lambda: EAGER(X, None, X), ValueError, "value needs key, got only value"),
    (lambda: EAGER(X, query_offset="end", key_lengths=[1, 2, 3]), ValueError, "key_lengths"),
    (lambda: EAGER(X, cache=CACHE, left_padding=3), ValueError, "left_padding must be left out"),
    (lambda: EAGER(np.zeros((3, 5, 12)), cache=CACHE), ValueError, "query must have"),
    (lambda: EAGER(X, X, cache=CACHE), ValueError, "key must be left out with ... got key in"),
    (lambda: EAGER(X, cache={}), TypeError, "cache must be a KVCache, got dict"),
    (lambda: EAGER(X, cache=CACHE, query_offset="end"), ValueError, "query_offset must be left"),
    (lambda: EAGER(X, cache=CACHE, starts=STARTS), ValueError, "query must be ... got 1 batch"),
    (lambda: EAGER(PACKED, starts=STARTS, key=PACKED), ValueError, "key must be left out with"),
    (lambda: EAGER(PACKED, starts=STARTS, key_lengths=3), ValueError, "key_lengths must be left"),
    (lambda: EAGER(PACKED, starts=[0, 3]), ValueError, "starts must end with the number"),
    (lambda: TRAINED(PACKED, starts=STARTS), ValueError, "starts ... pass"),
    (lambda: TRAINED(X, cache=CACHE), ValueError, "cache must be left out ... call eval() first"),
    (lambda: TRAINED(X, precision="int8"), ValueError, "precision must be ... got 'int8', which"),
    (lambda: EAGER(X, head_gates=[1, 2]), ValueError, "head_gates must be a ... got shape (2,)"),
    (lambda: EAGER.record(X, cache=CACHE), TypeError, "has no argument cache"),
    (lambda: ALONE(Y[..., :2]), ValueError, "x must have shape (..., seq, 3), got (2, 6, 2)"),
    (lambda: ALONE(Y + 1j), TypeError, "x must be an array of real numbers, got complex128"),
    (lambda: ALONE(Y, mask=np.ones((3, 6, 6), bool)), ValueError, "mask must ... got shape (3"),
    (lambda: EAGER.load_state_dict({}), ValueError, "state must have the names of ... got none"),
    (lambda: EAGER.load_state_dict((STATE, {})), TypeError, "state must be a mapping, got a tuple"),
    (lambda: EAGER.load_state_dict({}, None), TypeError, "prefix must be a str, got NoneType"),
    (lambda: EAGER.load_state_dict(STATE | {QUERY: X[0, :3]}), ValueError, "W_query.weight"),
    (
        lambda: EAGER.load_state_dict(STATE | {QUERY: STATE[QUERY] * 1j}),
        TypeError,
        "W_query.weight must be floating-point, got complex64",
    ),
    (lambda: EAGER.load_state_dict(STATE | {"W_more": X}), ValueError, "state ... got missing"),
    (lambda: EAGER.state_dict("keras"), ValueError, "names must be one of ... got 'keras'"),
    (lambda: GROUPED.state_dict("torch"), ValueError, "names must be ... got 'torch', which"),
]


@each(CONSTRUCTORS)
def test_constructors(wrong, error, parts):
    check(wrong, error, parts)


@each(CALLS)
def test_calls(wrong, error, parts):
    before = EAGER.state_dict()
    check(wrong, error, parts)
    assert_same_arrays(EAGER.state_dict(), before)
    assert len(CACHE) == 0


@pytest.fixture(params=[one_head, many_heads])
def kind(request):
    """Return either kind of layer."""
    return request.param


Z = normal((2, 4, D))


def called(layer):
    layer(Z)
    return layer


EVAL, NONE_YET = "in eval() mode: call train() before", "there was none since train()"
HISTORIES = {
    "new": (lambda layer: layer.eval(), EVAL),
    "eval after the call": (lambda layer: called(layer).eval(), EVAL),
    "no call": (lambda layer: layer, NONE_YET),
    "call before train": (lambda layer: called(layer.eval()).train(), NONE_YET),
}


@pytest.mark.parametrize("history", HISTORIES)
def test_backward_without_a_call(history, kind):
    prepare, reason = HISTORIES[history]
    layer = kind()
    grad = output_like(layer, Z)
    layer = prepare(layer.eval().train())
    before = {name: array.copy() for name, array in layer.grads.items()}
    check(lambda: layer.backward(grad), RuntimeError, f"backward needs a forward call ... {reason}")
    assert_same_arrays(layer.grads, before)


GRADIENTS = [
    (lambda g: None, TypeError, "grad must be an array, got None"),
    (lambda g: "a", TypeError, "grad must be an array of real numbers, got <U1"),
    (lambda g: g + 0j, TypeError, "grad must be an array of real numbers, got complex128"),
    (lambda g: g[..., :2], ValueError, "grad must have the shape ... got (2, 4, 2)"),
]


@each(GRADIENTS)
def test_a_wrong_gradient_changes_nothing(wrong, error, parts, kind):
    layer = kind()
    grad = output_like(layer, Z)
    layer.backward(grad)
    before = {name: array.copy() for name, array in layer.grads.items()}
    layer(Z)
    check(lambda: layer.backward(wrong(grad)), error, parts)
    check(lambda: layer.backward(grad, threads=0), ValueError, "threads must be at least 1, got 0")
    assert_same_arrays(layer.grads, before)
    layer.backward(grad)
    assert_same_arrays(layer.grads, {name: 2 * array for name, array in before.items()})


def test_what_ends_the_call_that_backward_belongs_to(kind):
    """A load that fails and a call that fails do not; the gradients, a load and a call do."""
    layer = kind()
    grad, state = output_like(layer, Z), layer.state_dict()
    wanted = gradients_of(layer, Z, grad)
    layer.zero_grads()
    layer(Z)
    name = next(iter(state))
    shape, mask = "must have shape", np.ones((3, 3), bool)
    check(lambda: layer.load_state_dict(state | {name: state[name][:1]}), ValueError, shape)
    check(lambda: layer(normal((2, 4, D), 5), mask=mask), ValueError, "mask must broadcast")
    assert_same_arrays({"x": layer.train().backward(grad)} | layer.grads, wanted)
    used = "computed already: call the layer again"
    check(lambda: layer.backward(grad), RuntimeError, used)
    layer.load_state_dict(state)
    check(lambda: layer.backward(grad), RuntimeError, used)
    layer(Z)
    layer.load_state_dict(state)
    replaced = "the parameters have been replaced ... call the layer again"
    check(lambda: layer.backward(grad), RuntimeError, replaced)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_seeds_of_dropout(mode, kind):
    layer = getattr(kind(dropout=0.1), mode)()
    for seed, error in ((-1, ValueError), (2**64, ValueError), (1.0, TypeError), (True, TypeError)):
        check(lambda: layer(Z, dropout_seed=seed), error, "dropout_seed must be")  # noqa: B023
    layer(Z, dropout_seed=np.uint64(2**64 - 1))
    needed = "dropout_seed must be an int in train() mode ... got None ... pass another seed"
    if mode == "train":
        check(lambda: layer(Z), TypeError, needed)
    else:
        layer(Z)
