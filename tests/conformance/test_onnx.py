"""All of ONNX's own node tests of `Attention`, `LinearAttention` and `RotaryEmbedding`: the models
and data that onnx generates for implementers of its operators, which become calls of regard.

https://onnx.ai/onnx/operators/onnx__Attention.html
https://onnx.ai/onnx/operators/onnx__LinearAttention.html
https://onnx.ai/onnx/operators/onnx__RotaryEmbedding.html
"""

import functools
import importlib
import warnings
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.backend.test.case import node as onnx_nodes
from onnx.backend.test.runner import Runner

from regard import linear_attention, positional
from regard import scaled_dot_product_attention as attend

WEIGHTS = 3  # a mode of qk_matmul_output; the others are scores, which a fused call never stores


def attention(
    query,
    key,
    value,
    mask=None,
    past_key=None,
    past_value=None,
    key_lengths=None,
    *,
    is_causal=0,
    kv_num_heads=None,
    left_window_size=-1,
    q_num_heads=None,
    qk_matmul_output_mode=0,
    right_window_size=-1,
    scale=None,
    softcap=0.0,
    softmax_precision=None,
):
    """Return Y, present_key, present_value and weights if they are asked for."""
    flat = query.ndim == 3
    if flat:
        query = _heads_apart(query, q_num_heads)
        key, value = (_heads_apart(x, kv_num_heads) for x in (key, value))
    q_len, past = query.shape[2], 0
    if past_key is not None:
        past = past_key.shape[2]
        key = np.concatenate((past_key, key), axis=2)
        value = np.concatenate((past_value, value), axis=2)
    options = {
        "mask": _full_length(mask, key.shape[2]),
        "is_causal": bool(is_causal),
        "query_offset": past if key_lengths is None else key_lengths - q_len,
        "window": _window(left_window_size, right_window_size),
        "key_lengths": key_lengths,
        "scale": scale,
        "softcap": softcap or None,
    }
    # regard's softmax has the precision of the scores: float32, or float64 if any input has it.
    wide = softmax_precision == onnx.TensorProto.DOUBLE
    asked = query.astype(np.float64) if wide else query
    if qk_matmul_output_mode == WEIGHTS:
        output, weights = attend(asked, key, value, **options, return_weights=True)
        weights = weights.astype(query.dtype, copy=False)
    else:
        output, weights = attend(asked, key, value, **options), None
    output = output.astype(query.dtype, copy=False)
    return _heads_together(output) if flat else output, key, value, weights


def linear(
    query,
    key,
    value,
    past_state=None,
    decay=None,
    beta=None,
    *,
    q_num_heads,
    kv_num_heads,
    scale=0.0,
    update_rule=b"gated_delta",
    chunk_size=64,
):
    """Return the output and the present state. What is given determines the rule."""
    assert (decay is not None, beta is not None) == (
        b"gated" in update_rule,
        b"delta" in update_rule,
    )
    if decay is not None:
        decay = _heads_apart(decay, kv_num_heads)
        decay = decay[..., 0] if decay.shape[-1] == 1 else decay
    if beta is not None:
        beta = np.broadcast_to(beta, (*beta.shape[:2], kv_num_heads)).swapaxes(1, 2)
    key, of_value = (_heads_apart(x, kv_num_heads) for x in (key, value))
    output, state = linear_attention(
        _heads_apart(query, q_num_heads),
        key,
        of_value,
        decay=decay,
        beta=beta,
        state=past_state,
        scale=scale or None,
        return_state=True,
    )
    stored = query.dtype if past_state is None else past_state.dtype
    return _heads_together(output), state.astype(stored)


def rotary_embedding(
    array,
    cos,
    sin,
    positions=None,
    *,
    interleaved=0,
    num_heads=None,
    rotary_embedding_dim=0,
):
    """Return Y. With positions, the caches are tables that the positions index; without positions,
    they hold one row per token."""
    flat = array.ndim == 3
    if flat:
        array = _heads_apart(array, num_heads)
    turned = positional.rotary(
        array,
        positions,
        rotary_dim=rotary_embedding_dim or None,
        interleaved=bool(interleaved),
        cache=(cos, sin),
    )
    return (_heads_together(turned) if flat else turned,)


def _heads_apart(array, heads):
    """View (batch, length, heads * dim) as (batch, heads, length, dim)."""
    batch, length, width = array.shape
    return array.reshape(batch, length, heads, width // heads).swapaxes(1, 2)


def _heads_together(array):
    batch, heads, length, dim = array.shape
    return array.swapaxes(1, 2).reshape(batch, length, heads * dim)


def _full_length(mask, kv_len):
    """Extend a mask to hide the keys beyond its end; a last axis of 1 is an end, not a
    broadcast."""
    if mask is None or mask.shape[-1] == kv_len:
        return mask
    missing = [(0, 0)] * (mask.ndim - 1) + [(0, kv_len - mask.shape[-1])]
    return np.pad(mask, missing, constant_values=False if mask.dtype == bool else -np.inf)


def _window(*sizes):
    left, right = (None if size == -1 else size for size in sizes)
    return None if left is None and right is None else (left, right)


class NodeCase(NamedTuple):
    name: str
    inputs: list  # None for an optional input that is left out
    attributes: dict
    outputs: list  # likewise
    rtol: float
    atol: float


def node_cases(operator):
    """Return the plain cases of an operator; the expanded cases are the same data for another
    graph."""
    found = []
    for case in collected():
        (node, *others) = case.model.graph.node
        if node.op_type != operator or others or "_expanded" in case.name:
            continue
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        ((inputs, outputs),) = case.data_sets
        inputs, outputs = in_their_slots(node.input, inputs), in_their_slots(node.output, outputs)
        found.append(NodeCase(case.name, inputs, attributes, outputs, case.rtol, case.atol))
    return found


@functools.cache
def collected():
    """Return all cases, which onnx generates when it imports their modules. Its own
    `collect_testcases` imports the modules of all operators, which takes five seconds in each test
    process."""
    with warnings.catch_warnings(action="ignore"):  # from how some cases are made
        for module in ("attention", "linear_attention", "rotaryembedding"):
            importlib.import_module(f"{onnx_nodes.__name__}.{module}")
    return onnx_nodes._NodeTestCases


def in_their_slots(names, arrays):
    """Put arrays in their slots. An optional input or output that is left out has an empty name and
    no array."""
    arrays = iter(arrays)
    return [next(arrays) if name else None for name in names]


def assert_passes(case, results):
    """Check results as onnx's own runner judges a backend: shapes, dtypes, and the case's
    tolerances."""
    pairs = zip(results, case.outputs, strict=False)
    asked = [pair for pair in pairs if pair[0] is not None and pair[1] is not None]
    results, wanted = zip(*asked, strict=True)
    assert all(type(result) is np.ndarray for result in results)
    Runner.assert_similar_outputs(wanted, results, case.rtol, case.atol)


ATTENTION, ROTARY = node_cases("Attention"), node_cases("RotaryEmbedding")
LINEAR = node_cases("LinearAttention")


def test_no_case_is_missing():
    """onnx 1.23 has 93, 14 and 8 cases; a smaller suite proves less."""
    assert len({case.name for case in ATTENTION}) >= 93
    assert len({case.name for case in LINEAR}) >= 14
    assert len({case.name for case in ROTARY}) >= 8


@pytest.mark.parametrize("case", ATTENTION, ids=lambda case: case.name)
def test_attention(case, target):
    assert_passes(case, attention(*case.inputs, **case.attributes))


@pytest.mark.parametrize("case", LINEAR, ids=lambda case: case.name)
def test_linear_attention(case, target):
    assert_passes(case, linear(*case.inputs, **case.attributes))


@pytest.mark.parametrize("case", ROTARY, ids=lambda case: case.name)
def test_rotary_embedding(case):
    assert_passes(case, rotary_embedding(*case.inputs, **case.attributes))
