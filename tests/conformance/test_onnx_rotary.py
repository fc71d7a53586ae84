"""All of ONNX's own node tests of `RotaryEmbedding`."""

import pytest

from onnx_adapter import rotary_embedding
from onnx_cases import assert_passes, node_cases

CASES = node_cases("RotaryEmbedding")


def test_no_case_is_missing():
    """onnx 1.23 has 8 cases."""
    assert len(CASES) == len({case.name for case in CASES}) >= 8


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_node(case):
    assert_passes(case, rotary_embedding(*case.inputs, **case.attributes))
