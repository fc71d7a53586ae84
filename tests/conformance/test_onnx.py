"""All of ONNX's own node tests of `Attention` and `RotaryEmbedding`: the models and data that onnx
generates for implementers of its operators."""

import functools
import importlib
import warnings
from typing import NamedTuple

import numpy as np
import pytest
from onnx import helper
from onnx.backend.test.case import node as onnx_nodes
from onnx.backend.test.runner import Runner

import reference
import regard
from onnx_adapter import attention, rotary_embedding


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
        for module in ("attention", "rotaryembedding"):
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
    asked = [(r, w) for r, w in zip(results, case.outputs, strict=False) if w is not None]
    results, wanted = zip(*asked, strict=True)
    assert all(type(result) is np.ndarray for result in results)
    Runner.assert_similar_outputs(wanted, results, case.rtol, case.atol)


ATTENTION, ROTARY = node_cases("Attention"), node_cases("RotaryEmbedding")


def by_reference(*arrays, return_weights=False, **options):
    """Call the reference like regard, which tests the adapter without the kernels."""
    result = reference.attention(*arrays, **options)
    return (result.output, result.weights) if return_weights else result.output


def test_no_case_is_missing():
    """onnx 1.23 has 93 and 8 cases; a smaller suite proves less."""
    assert len({case.name for case in ATTENTION}) >= 93
    assert len({case.name for case in ROTARY}) >= 8


@pytest.mark.parametrize("case", ATTENTION, ids=lambda case: case.name)
def test_attention(case, target):
    for attend in (regard.scaled_dot_product_attention, by_reference):
        assert_passes(case, attention(attend, *case.inputs, **case.attributes))


@pytest.mark.parametrize("case", ROTARY, ids=lambda case: case.name)
def test_rotary_embedding(case):
    assert_passes(case, rotary_embedding(*case.inputs, **case.attributes))
