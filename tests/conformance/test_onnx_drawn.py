"""ONNX's `Attention` on drawn inputs and attributes, compared with onnx's reference evaluator."""

import hypothesis
import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import regard
from onnx_adapter import CAPPED_SCORES, MASKED_SCORES, RAW_SCORES, WEIGHTS, attention
from peers import assert_as_close, floor, floor_of_scores
from reference import assert_same_bits

INPUTS = ["Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"]
OUTPUTS = ["Y", "present_key", "present_value", "qk_matmul_output"]
MODES = [RAW_SCORES, CAPPED_SCORES, MASKED_SCORES, WEIGHTS]


@st.composite
def nodes(draw):
    """Draw inputs in their slots and attributes: anything small that the operator allows.

    Cases are left out in which onnx 1.23's evaluator deviates from the operator's specification:
    mode 0 asks for raw scores and gets capped ones, and causality without a window reads q_len from
    the mask, which must have it.
    """
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dtype = draw(st.sampled_from([np.float32, np.float16, ml_dtypes.bfloat16]))
    batch, kv_heads, group = (draw(st.integers(1, 3)) for _ in range(3))
    q_len, kv_len, past_len = (draw(st.integers(*ends)) for ends in ((1, 20), (1, 100), (0, 60)))
    head_dim, value_dim = draw(st.integers(1, 33)), draw(st.integers(1, 33))
    heads, cache = kv_heads * group, draw(st.sampled_from(["none", "past", "padded"]))

    def normal(*shape):
        return random.standard_normal(shape).astype(dtype)

    query = normal(batch, heads, q_len, head_dim)
    key, value = (normal(batch, kv_heads, kv_len, dim) for dim in (head_dim, value_dim))
    attributes = {}
    if draw(st.booleans()):
        query, key, value = (
            x.swapaxes(1, 2).reshape(batch, x.shape[2], -1) for x in (query, key, value)
        )
        attributes |= {"q_num_heads": heads, "kv_num_heads": kv_heads}
    past_key = past_value = key_lengths = None
    if cache == "past":
        past_key = normal(batch, kv_heads, past_len, head_dim)
        past_value = normal(batch, kv_heads, past_len, value_dim)
        kv_len += past_len
    elif cache == "padded":
        key_lengths = random.integers(0, kv_len + 1, batch)
    if draw(st.booleans()):
        attributes["is_causal"] = 1
    windows = st.one_of(st.none(), st.integers(-1, kv_len))
    for side in ("left_window_size", "right_window_size"):
        if (size := draw(windows)) is not None:
            attributes[side] = size
    windowed = max(attributes.get(f"{side}_window_size", -1) for side in ("left", "right")) >= 0
    if draw(st.booleans()):
        attributes["scale"] = draw(st.floats(0, 2, width=32, allow_subnormal=False))
    if draw(st.booleans()):
        attributes["softcap"] = draw(st.sampled_from([0.0, 0.5, 2.0, 30.0]))
    modes = MODES[1:] if attributes.get("softcap") else MODES
    attributes["qk_matmul_output_mode"] = draw(st.sampled_from(modes))
    if draw(st.booleans()):
        precision = st.sampled_from([TensorProto.FLOAT, TensorProto.DOUBLE])
        attributes["softmax_precision"] = draw(precision)
    mask, kind = None, draw(st.sampled_from(["none", "bool", "float"]))
    if kind != "none":
        whole = "is_causal" in attributes and not windowed
        rank = draw(st.integers(2 if whole else 1, 4))
        axes = [draw(st.sampled_from([1, n])) for n in (batch, heads, q_len)]
        axes = [*axes[:2], q_len if whole else axes[2], draw(st.integers(1, kv_len))][4 - rank :]
        mask = random.random(axes) < draw(st.sampled_from([0.2, 0.7, 1.0]))
        if kind == "float":
            mask = np.where(mask, normal(*axes), dtype(-np.inf))
    return [query, key, value, mask, past_key, past_value, key_lengths], attributes


def as_onnx_says(inputs, attributes, dtype):
    """Return the evaluator's outputs with everything in one precision, including its softmax."""
    attributes = attributes | {"softmax_precision": helper.np_dtype_to_tensor_dtype(dtype)}
    inputs = [x if x is None or x.dtype.kind in "bi" else x.astype(dtype) for x in inputs]
    given = [name if x is not None else "" for name, x in zip(INPUTS, inputs, strict=True)]
    node = helper.make_node("Attention", given, OUTPUTS, **attributes)
    feeds = {name: x for name, x in zip(given, inputs, strict=True) if name}
    return ReferenceEvaluator(node).run(None, feeds)


@hypothesis.given(node=nodes())
@hypothesis.settings(
    derandomize=True,
    deadline=None,
    max_examples=200,
    suppress_health_check=[
        hypothesis.HealthCheck.function_scoped_fixture,
        hypothesis.HealthCheck.too_slow,
    ],
)
def test_drawn_node(target, node):
    inputs, attributes = node
    calls = []

    def attend(*arrays, return_weights=False, **options):
        calls.append((arrays, options))
        return regard.scaled_dot_product_attention(
            *arrays, return_weights=return_weights, **options
        )

    output, *present, scores = attention(attend, *inputs, **attributes)
    exact = as_onnx_says(inputs, attributes, np.dtype(np.float64))
    plain = as_onnx_says(inputs, attributes, np.dtype(np.float32))
    ((arrays, options),) = calls
    least = floor(*arrays, **options)
    assert output.dtype == scores.dtype == inputs[0].dtype
    assert_as_close("Y", output, exact=exact[0], plain=plain[0], least=least.output)
    if attributes["qk_matmul_output_mode"] == WEIGHTS:
        least = least.weights
    else:
        least = floor_of_scores(*arrays, **options)
    assert_as_close("qk_matmul_output", scores, exact=exact[3], plain=plain[3], least=least)
    for ours, theirs in zip(present, exact[1:3], strict=True):
        assert ours.dtype == output.dtype
        assert_same_bits(ours.astype(np.float64), theirs)
