"""Test forward mode of the first order, which is fused, against the oracle and for its memory."""

import tracemalloc

import numpy as np
import pytest

import regard
from problem import drawn
from torch_problems import scaled_dot_product_attention, torch

from torch.autograd import forward_ad  # isort: skip
from torch.utils._python_dispatch import TorchDispatchMode  # isort: skip


LENGTH, DIM = 1200, 8


class NoScores(TorchDispatchMode):
    """Refuses tensors with as many elements as there are scores."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **kwargs or {})
        for each in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(each, torch.Tensor):
                assert each.numel() < LENGTH**2, function
        return result


def recorded_dual_numbers(function, tensor):
    with forward_ad.dual_level():
        function(forward_ad.make_dual(tensor.requires_grad_(), tensor.cos()))


def functional(function, tensor):
    torch.func.jvp(function, (tensor,), (tensor.cos(),))


def mapped(function, tensor):
    tangents = torch.stack([tensor.cos(), tensor.sin()])
    torch.vmap(lambda tangent: torch.func.jvp(function, (tensor,), (tangent,))[1])(tangents)


def check_memory(derive, function, tensor):
    derive(function, tensor.clone())  # PyTorch compiles its formulas in the first call
    with NoScores():
        tracemalloc.start()
        try:
            derive(function, tensor)
            assert tracemalloc.get_traced_memory()[1] < 2 * LENGTH**2
        finally:
            tracemalloc.stop()


OPTIONS = {
    "plain": {},
    "many": {
        "is_causal": True,
        "window": (500, 3),
        "softcap": 3.0,
        "alibi_slopes": [0.1],
        "sinks": [0.5],
        "key_lengths": 1100,
        "attn_mask": regard.masks.documents(np.arange(LENGTH) // 400),
    },
    "dropout": {"dropout_p": 0.2, "dropout_seed": 3},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("derive", [recorded_dual_numbers, functional, mapped])
def test_no_scores_are_stored(derive, name):
    tensor = torch.linspace(-1, 1, LENGTH * DIM).reshape(1, LENGTH, DIM)
    check_memory(derive, lambda x: scaled_dot_product_attention(x, x, x, **OPTIONS[name]), tensor)


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("options", [{}, {"precision": "bfloat16"}], ids=["", "bfloat16"])
def test_gradients_without_tangents_in_a_dual_level(is_packed, options):
    query = torch.from_numpy(drawn((6, 2, 4), np.float32)).requires_grad_()
    starts = torch.tensor([0, 2, 6])

    def gradient():
        if is_packed:
            output = regard.torch.scaled_dot_product_attention_ragged(
                query, query, query, starts, starts, **options
            )
        else:
            output = scaled_dot_product_attention(query, query, query, **options)
        return torch.autograd.grad(output.sin().sum(), query)[0]

    wanted = gradient()
    with forward_ad.dual_level():
        assert torch.equal(gradient(), wanted)
