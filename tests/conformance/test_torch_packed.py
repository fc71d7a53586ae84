"""PyTorch's packed sequences and nested tensors: its own call, and its checks by differences."""

import numpy as np
import pytest

from gradient_cases import drawn
from torch_problems import scaled_dot_product_attention, torch

from regard.torch import scaled_dot_product_attention_ragged  # isort: skip

theirs = torch.nn.functional.scaled_dot_product_attention
# PyTorch warns that nested tensors are a prototype.
pytestmark = pytest.mark.filterwarnings("ignore:.*nested tensor:UserWarning")
EPS = torch.finfo(torch.float64).eps
LENGTHS = {
    "one length": ([6, 6], [6, 6]),
    "lengths": ([3, 70, 1, 300], [3, 70, 1, 300]),
    "other keys": ([3, 70, 1], [150, 2, 33]),
}
each_lengths = pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)


def nested(lengths, heads, dim, seed):
    parts = [torch.from_numpy(drawn((n, heads, dim), np.float64, seed + n)) for n in lengths]
    return torch.nested.nested_tensor(parts, layout=torch.jagged)


def leaves_of(lengths, kv_heads=4):
    """Return query, key and value, where key and value have the same offsets."""
    query, key = nested(lengths[0], 4, 16, 0), nested(lengths[1], kv_heads, 16, 1)
    values = nested(lengths[1], kv_heads, 16, 2).values()
    value = torch.nested.nested_tensor_from_jagged(values, key.offsets())
    return [x.requires_grad_() for x in (query, key, value)]


def outcome(function, leaves, **options):
    """Return the values of the output and the gradients."""
    output = function(*(x.transpose(1, 2) for x in leaves), **options)
    values = output.transpose(1, 2).values()
    gradients = torch.autograd.grad(values.sin().sum(), leaves)
    return [values.detach(), *(gradient.values() for gradient in gradients)]


def assert_close(found, wanted):
    for i, (one, other) in enumerate(zip(found, wanted, strict=True)):
        atol = (64 if i == 0 else 512) * EPS * max(1.0, float(other.abs().max()))
        torch.testing.assert_close(one, other, rtol=0, atol=atol)


@each_lengths
@pytest.mark.parametrize("scale", [None, 0.7])
def test_nested_tensors_are_as_in_pytorchs_call(lengths, scale):
    leaves = leaves_of(lengths)
    ours = outcome(scaled_dot_product_attention, leaves, scale=scale)
    assert_close(ours, outcome(theirs, leaves, scale=scale))


STARTS = [0, 2, 2, 5], [0, 3, 4, 6]
DROPOUT = {"dropout_p": 0.4, "dropout_seed": 2**40 + 1}
# Options, and the shapes of the inputs with gradients other than query, key and value.
CHECKED = {
    "scale of heads": ({"scale": [0.3, -0.7, 0.0, 1.0]}, {}),
    "float mask of keys": ({"is_causal": True}, {"attn_mask": (3,)}),
    "slopes of each": ({"query_offset": 1}, {"alibi_slopes": (3, 4)}),
    "all": (
        {"is_causal": True, "query_offset": 1, "softcap": 1.5, **DROPOUT},
        {"attn_mask": (5, 4, 3), "alibi_slopes": (4,), "distance_bias": (4, 5), "sinks": (4,)},
    ),
}


@pytest.mark.parametrize(("options", "shapes"), CHECKED.values(), ids=CHECKED)
def test_gradients_are_those_of_differences(options, shapes):
    of_inputs = (5, 4, 3), (6, 2, 3), (6, 2, 2)
    tensors = [
        torch.from_numpy(drawn(shape, np.float64, i)).requires_grad_()
        for i, shape in enumerate((*of_inputs, *shapes.values()))
    ]

    def function(query, key, value, *others):
        given = dict(zip(shapes, others, strict=True))
        output, lse = scaled_dot_product_attention_ragged(
            query, key, value, *STARTS, enable_gqa=True, return_lse=True, **options, **given
        )
        return output, torch.where(lse == -torch.inf, 0, lse)

    assert torch.autograd.gradcheck(function, tensors, check_batched_grad=True)
