"""ONNX's node tests: the models and data that onnx generates for implementers of its operators."""

import functools
import importlib
import warnings
from typing import NamedTuple

import numpy as np
from onnx import helper
from onnx.backend.test.case import node as onnx_nodes
from onnx.backend.test.runner import Runner


class NodeCase(NamedTuple):
    name: str
    inputs: list  # None for an optional input that is left out
    attributes: dict
    outputs: list  # likewise
    rtol: float
    atol: float


@functools.cache
def node_cases(operator):
    """Return the plain cases of an operator; the expanded cases are the same data for another
    graph."""
    found = []
    for case in _collected():
        (node, *others) = case.model.graph.node
        if node.op_type != operator or others or "_expanded" in case.name:
            continue
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        ((inputs, outputs),) = case.data_sets
        inputs, outputs = _in_their_slots(node.input, inputs), _in_their_slots(node.output, outputs)
        found.append(NodeCase(case.name, inputs, attributes, outputs, case.rtol, case.atol))
    return found


@functools.cache
def _collected():
    """Return all cases, which onnx generates when it imports their modules. Its own
    `collect_testcases` imports the modules of all operators, which takes five seconds in each test
    process."""
    with warnings.catch_warnings(action="ignore"):  # from how some cases are made
        for module in ("attention", "rotaryembedding"):
            importlib.import_module(f"{onnx_nodes.__name__}.{module}")
    return onnx_nodes._NodeTestCases


def _in_their_slots(names, arrays):
    """Put arrays in their slots. An optional input or output that is left out has an empty name and
    no array."""
    arrays = iter(arrays)
    return [next(arrays) if name else None for name in names]


def assert_passes(case, results):
    """Check results as onnx's own runner judges a backend: shapes, dtypes, and the case's
    tolerances."""
    asked = [(r, w) for r, w in zip(results, case.outputs, strict=False) if w is not None]
    results, wanted = zip(*asked, strict=True)
    for result in results:
        assert type(result) is np.ndarray
    Runner.assert_similar_outputs(wanted, results, case.rtol, case.atol)
