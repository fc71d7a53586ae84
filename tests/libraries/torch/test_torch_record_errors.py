"""Test wrong arguments of recordings, and modules that cannot be recorded."""

import pytest

torch = pytest.importorskip("torch", reason='PyTorch is not installed: pip install ".[torch]"')

import regard.torch  # noqa: E402
from torch_modules import (  # noqa: E402
    by_another_name,
)

nn = torch.nn


class Plain(nn.Module):
    def forward(self, x):
        return by_another_name(x, x, x)


class Explicit(nn.Module):
    def forward(self, x):
        return torch.softmax(x @ x.mT, dim=-1) @ x


class Trying(nn.Module):
    def forward(self, x):
        try:
            return by_another_name(x.int(), x.int(), x.int())
        except RuntimeError:
            return by_another_name(x, x, x)


class ByRegard(nn.Module):
    def forward(self, x):
        return regard.torch.scaled_dot_product_attention(x, x, x)


class Packed(nn.Module):
    def forward(self, x):
        starts = torch.tensor([0, 2, 5])
        packed = x[0].transpose(0, 1)
        return regard.torch.scaled_dot_product_attention_ragged(*[packed] * 3, starts, starts)


class Vmapped(nn.Module):
    def forward(self, x):
        return torch.func.vmap(lambda y: regard.torch.scaled_dot_product_attention(y, y, y))(x)


X = torch.ones(1, 2, 5, 8)
ERRORS = [
    (
        lambda: regard.torch.record(by_another_name, X),
        TypeError,
        "module must be a torch.nn.Module",
    ),
    (lambda: regard.torch.record(Explicit(), X), ValueError, "nothing was recorded: Explicit"),
    (lambda: regard.torch.record(Plain(), X, layers=1), ValueError, "less than 1, the number of"),
    (lambda: regard.torch.record(Plain(), X, layers=-1), ValueError, "layers must be at least 0"),
    (lambda: regard.torch.record(Plain(), X, layers="a"), ValueError, "got 'a'; there are Plain"),
    (lambda: regard.torch.record(Plain(), X, layers=""), ValueError, "must name layers, got ''"),
    (lambda: regard.torch.record(Plain(), X, layers=[]), ValueError, "at least one layer"),
    (lambda: regard.torch.record(Plain(), X, layers=slice(2)), TypeError, "pass range"),
    (lambda: regard.torch.record(Plain(), X, layers=1.5), TypeError, "a number, a name"),
    (lambda: regard.torch.record(Plain(), X, layers=[True]), TypeError, "layers must be an int"),
    (lambda: regard.torch.record(Plain(), X, dtype="int8"), TypeError, "got 'int8'"),
    (lambda: regard.torch.record(Plain(), X, dtype=torch.int8), TypeError, "got torch.int8"),
    (lambda: regard.torch.record(Plain(), X, max_bytes="2 GB"), TypeError, "max_bytes must be an"),
    (lambda: regard.torch.record(Plain(), X, max_bytes=-1), ValueError, "max_bytes must be at"),
    (lambda: regard.torch.record(Plain(), X, tokens=[1, 2]), ValueError, r"the layers have 5 keys"),
    (lambda: regard.torch.record(Plain(), X, tokens=3), ValueError, "tokens must have an axis"),
    (lambda: regard.torch.record(Plain(), X, tokens=[1.5] * 5), TypeError, "integers or of texts"),
    (lambda: regard.torch.record(Plain(), X, return_output=1), TypeError, "return_output must be"),
    (lambda: regard.torch.record(Plain()), TypeError, "missing 1 required positional argument"),
    (lambda: regard.torch.record(Plain(), X.to("meta")), ValueError, "nothing was recorded"),
    (
        lambda: regard.torch.record(ByRegard(), X.to("meta"), max_bytes=None),
        NotImplementedError,
        "meta device",
    ),
    (
        lambda: regard.torch.record(Vmapped(), X),
        NotImplementedError,
        "tensors without their own memory",
    ),
    (
        lambda: regard.torch.record(Packed(), X),
        NotImplementedError,
        "Packed calls attention with packed sequences or nested tensors",
    ),
    (
        lambda: regard.torch.record(Trying(), X),
        ValueError,
        "PyTorch computed some calls: query must be a tensor of float32.*got torch.int32",
    ),
]


@pytest.mark.parametrize("number", range(len(ERRORS)))
def test_errors(number):
    call, error, message = ERRORS[number]
    with pytest.raises(error, match=message):
        call()
    assert not regard.torch._recorder.OBSERVERS
