"""Bad input raises an error that names the argument, before and behind the dispatcher."""

import re

import numpy as np
import pytest

from torch_problems import scaled_dot_product_attention, torch

SHAPES = {"query": (2, 4, 5, 8), "key": (2, 4, 9, 8), "value": (2, 4, 9, 6)}


def tensors(**others):
    return {name: torch.zeros(shape) for name, shape in SHAPES.items()} | others


ERRORS = {
    "array": ({"query": np.zeros((4, 5, 8), np.float32)}, TypeError, "query must be a tensor"),
    "none": ({"value": None}, TypeError, "value must be a tensor, got NoneType"),
    "integers": ({"key": torch.zeros(2, 4, 9, 8, dtype=torch.int64)}, TypeError, "key .*int64"),
    "complex": ({"query": torch.zeros(5, 8, dtype=torch.complex64)}, TypeError, "query .*complex"),
    "float8": ({"query": torch.zeros(5, 8).to(torch.float8_e5m2)}, TypeError, "query .*float8"),
    "types": (
        {"key": torch.zeros(2, 4, 9, 8).half()},
        TypeError,
        "key must have the type of query",
    ),
    "devices": ({"value": torch.zeros(9, 6, device="meta")}, ValueError, "value .*device.*meta"),
    "sparse": ({"key": torch.zeros(9, 8).to_sparse()}, TypeError, "key must be a dense tensor"),
    "one axis": ({"query": torch.zeros(8)}, ValueError, "query must have at least 2 axes"),
    "heads": (
        {"key": torch.zeros(2, 2, 9, 8), "value": torch.zeros(2, 2, 9, 6)},
        ValueError,
        "equal numbers of heads, or enable_gqa=True",
    ),
    "groups": (
        {
            "key": torch.zeros(2, 3, 9, 8),
            "value": torch.zeros(2, 3, 9, 6),
            "enable_gqa": True,
        },
        ValueError,
        "heads",
    ),
    "head_dim": ({"key": torch.zeros(2, 4, 9, 7)}, ValueError, "key"),
    "lengths": ({"value": torch.zeros(2, 4, 8, 6)}, ValueError, "value"),
    "batch": ({"query": torch.zeros(3, 4, 5, 8)}, ValueError, "batch|broadcast"),
    "mask array": ({"attn_mask": np.ones((5, 9), bool)}, TypeError, "attn_mask .*ndarray"),
    "mask integers": ({"attn_mask": torch.ones(5, 9).int()}, TypeError, "attn_mask .*int32"),
    "mask pair": ({"attn_mask": (torch.ones(5, 9),) * 2}, TypeError, "attn_mask .*float32 and"),
    "mask triple": ({"attn_mask": (torch.ones(9) > 0,) * 3}, TypeError, "attn_mask"),
    "mask shape": ({"attn_mask": torch.ones(5, 8)}, ValueError, "mask"),
    "mask device": ({"attn_mask": torch.ones(5, 9, device="meta")}, ValueError, "attn_mask .*meta"),
    "window": ({"window": 4}, TypeError, "window"),
    "window of three": ({"window": (1, 2, 3)}, ValueError, "window"),
    "window of floats": ({"window": (1.5, 2)}, TypeError, "window"),
    "negative window": ({"window": (-1, 2)}, ValueError, "window"),
    "offset": ({"query_offset": "start"}, (TypeError, ValueError), "query_offset"),
    "no offset": ({"query_offset": None}, TypeError, "query_offset"),
    "offset shape": ({"query_offset": torch.tensor([1, 2, 3])}, ValueError, "query_offset"),
    "offset of floats": ({"query_offset": torch.tensor([1.0, 2.0])}, TypeError, "query_offset"),
    "lengths option": ({"key_lengths": torch.tensor([9, 10])}, ValueError, "key_lengths"),
    "lengths device": (
        {"key_lengths": torch.zeros(2, dtype=torch.int64, device="meta")},
        ValueError,
        "key_lengths",
    ),
    "padding": ({"left_padding": -1}, ValueError, "left_padding"),
    "slopes": ({"alibi_slopes": torch.zeros(3)}, ValueError, "alibi_slopes"),
    "slopes of strings": ({"alibi_slopes": ["a"] * 4}, TypeError, "alibi_slopes"),
    "sinks": ({"sinks": torch.zeros(2, 4)}, ValueError, "sinks"),
    "softcap": ({"softcap": -1.0}, ValueError, "softcap"),
    "dropout": ({"dropout_p": 1.5}, ValueError, "dropout_p"),
    "seed": ({"dropout_p": 0.5, "dropout_seed": -1}, ValueError, "dropout_seed"),
    "large seed": ({"dropout_p": 0.5, "dropout_seed": 2**64}, ValueError, "dropout_seed"),
    "float seed": ({"dropout_p": 0.5, "dropout_seed": 0.5}, TypeError, "dropout_seed"),
    "seeds": (
        {"dropout_p": 0.5, "dropout_seed": torch.tensor([1, 2])},
        TypeError,
        "dropout_seed",
    ),
    "origin": (
        {"dropout_p": 0.5, "dropout_origin": 3},
        (TypeError, ValueError),
        "dropout_origin",
    ),
    "threads": ({"threads": 0}, ValueError, "threads"),
}
each_error = pytest.mark.parametrize(("given", "error", "match"), ERRORS.values(), ids=ERRORS)


@each_error
def test_errors(given, error, match):
    with pytest.raises(error, match=match):
        scaled_dot_product_attention(**tensors(**given))


@each_error
def test_errors_where_a_gradient_is_wanted(given, error, match):
    given = {"dropout_seed": 0} | tensors(**given)
    for name in SHAPES:
        tensor = given[name]
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and not tensor.is_sparse:
            tensor.requires_grad_()
    with pytest.raises(error, match=match):
        scaled_dot_product_attention(**given)


def test_errors_leave_the_next_call_alone():
    given = tensors()
    for _ in range(3):
        with pytest.raises(ValueError, match="alibi_slopes"):
            scaled_dot_product_attention(**given, alibi_slopes=torch.zeros(3))
        assert scaled_dot_product_attention(**given).shape == (2, 4, 5, 6)


def test_bfloat16_without_ml_dtypes(run_python):
    done = run_python(
        """
        import sys
        sys.modules["ml_dtypes"] = None
        import torch, regard.torch
        x = torch.ones(2, 3, 8)
        regard.torch.scaled_dot_product_attention(x, x, x)
        regard.torch.scaled_dot_product_attention(*[x.bfloat16()] * 3)
        """
    )
    assert re.search(r"ImportError: .*bfloat16 needs the package ml_dtypes: pip", done.stderr)


def test_without_pytorch(run_python):
    done = run_python(
        """
        import sys
        sys.modules["torch"] = None
        import regard
        import regard.torch
        """
    )
    assert "ImportError: regard.torch needs the package torch: pip install 'regard[torch]'" in (
        done.stderr
    )


def test_regard_does_not_import_pytorch(output_of):
    assert output_of("import sys, regard; print('torch' in sys.modules)") == "False"
