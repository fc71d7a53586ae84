"""All of ONNX's own node tests of `Attention`, through regard and through the oracle."""

import pytest

import reference
import regard
from onnx_adapter import attention
from onnx_cases import assert_passes, node_cases

CASES = node_cases("Attention")


def oracle(*arrays, return_weights=False, **options):
    """Call the reference like regard, which tests the adapter without the kernels."""
    result = reference.attention(*arrays, **options)
    return (result.output, result.weights) if return_weights else result.output


def test_no_case_is_missing():
    """onnx 1.23 has 93 cases; a smaller suite proves less."""
    assert len(CASES) == len({case.name for case in CASES}) >= 93


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_node(case, target):
    attend = regard.scaled_dot_product_attention
    assert_passes(case, attention(attend, *case.inputs, **case.attributes))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_mapping(case):
    assert_passes(case, attention(oracle, *case.inputs, **case.attributes))
