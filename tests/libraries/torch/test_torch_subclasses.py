"""Tensors whose elements are not simply in memory are computed correctly, or refused by name."""

import numpy as np
import pytest

from problem import drawn
from torch_problems import scaled_dot_product_attention, torch

from torch._subclasses.fake_tensor import FakeTensorMode  # isort: skip
from torch.testing._internal.two_tensor import TwoTensor  # isort: skip
from regard.torch import scaled_dot_product_attention_ragged  # isort: skip


def elements():
    return torch.from_numpy(drawn((3, 5, 8), np.float32))


class Mine(torch.Tensor):
    """A class that adds no semantics."""


class Logged(torch.Tensor):
    """A class that intercepts every PyTorch function called with it."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return super().__torch_function__(function, types, args, kwargs)


def negated(dtype):
    """Return a view that negates its elements when they are read."""
    return torch._neg_view(-elements().to(dtype))


def made_in_inference_mode():
    with torch.inference_mode():
        return elements()


COMPUTED = {
    "subclass": lambda: elements().as_subclass(Mine),
    "with functions": lambda: elements().as_subclass(Logged),
    "two tensors": lambda: TwoTensor(elements(), elements()),
    "negated": lambda: negated(torch.float32),
    "negated, float16": lambda: negated(torch.float16),
    "negated, bfloat16": lambda: negated(torch.bfloat16),
    "parameter": lambda: torch.nn.Parameter(elements()),
    "buffer": lambda: torch.nn.Buffer(elements()),
    "in inference mode": made_in_inference_mode,
    "expanded": lambda: elements()[:1].expand(3, 5, 8),
    "reversed": lambda: elements().flip(0).flip(0),
}
each_computed = pytest.mark.parametrize("make", COMPUTED.values(), ids=COMPUTED)
CALLS = {
    "dense": lambda *three: scaled_dot_product_attention(*three, is_causal=True),
    "packed": lambda *three: scaled_dot_product_attention_ragged(
        *three, [0, 1, 3], [0, 1, 3], is_causal=True
    ),
}
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


def plain(tensor):
    """Return the elements that PyTorch's own operators read."""
    tensor = getattr(tensor, "a", tensor)
    return torch.Tensor.__add__(tensor.detach(), 0).as_subclass(torch.Tensor)


@each_call
@each_computed
def test_computed(make, call):
    tensor = make()
    read = plain(tensor)
    assert type(read) is torch.Tensor
    wanted = call(read, read, read)
    for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
        with mode():
            output = call(tensor, tensor, tensor)
        assert torch.equal(plain(output), wanted)


@each_call
@pytest.mark.parametrize(
    "name", [n for n in COMPUTED if n not in ("in inference mode", "expanded")]
)
def test_gradients(name, call):
    leaf = COMPUTED[name]().detach().requires_grad_()
    call(leaf, leaf, leaf).sum().backward()
    read = plain(leaf).requires_grad_()
    call(read, read, read).sum().backward()
    assert torch.equal(plain(leaf.grad), read.grad)


@each_call
def test_a_fake_tensor_has_a_shape_alone(call):
    mode = FakeTensorMode()
    tensor = mode.from_tensor(elements())
    with mode:
        output = call(tensor, tensor, tensor)
    assert type(output) is type(tensor)
    assert output.shape == (3, 5, 8)
    outside = scaled_dot_product_attention(tensor, tensor, tensor)
    assert type(outside) is type(tensor)
