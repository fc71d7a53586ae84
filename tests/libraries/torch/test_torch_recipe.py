"""The mode that the guide shows reaches what the guide says, with results and gradients."""

import pytest

from torch_recipe import run_recipe, torch

nn, F = torch.nn, torch.nn.functional
from torch.nn.functional import scaled_dot_product_attention as by_another_name  # noqa: E402

EPS = torch.finfo(torch.float64).eps
SIZE, HEADS = 16, 4


class Alone(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.project = nn.Linear(SIZE, SIZE)

    def forward(self, x):
        x = self.project(x)
        return self.function(x, x, x, is_causal=True)


class MultiHead(nn.Module):
    """Attention of a sequence to itself, or to its first elements."""

    def __init__(self, keys=None, *, options=None, **words):
        super().__init__()
        self.attention = nn.MultiheadAttention(SIZE, HEADS, **words)
        self.keys, self.options = keys, options or {}

    def forward(self, x):
        other = x if self.keys is None else x[:, : self.keys]
        return self.attention(x, other, other, **{"need_weights": False} | self.options)[0]


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(SIZE, HEADS, 32, dropout=0, batch_first=True)

    def forward(self, x):
        return self.layer(x, x[:, :3])


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Transformer(SIZE, HEADS, 1, 1, 32, dropout=0, batch_first=True)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return self.model(x, x, tgt_mask=mask, tgt_is_causal=True)


PADDING = torch.arange(7)[None] >= torch.tensor([[7], [5], [2]])
CAUSAL = torch.ones(7, 7, dtype=torch.bool).triu(1)
# How often each reaches regard.
MODULES = {
    "function": (lambda: Alone(F.scaled_dot_product_attention), 1),
    "another name": (lambda: Alone(by_another_name), 1),
    "multi-head": (lambda: MultiHead(batch_first=True), 1),
    "length first": (lambda: MultiHead(), 1),
    "cross": (lambda: MultiHead(4, batch_first=True), 1),
    "padding": (lambda: MultiHead(batch_first=True, options={"key_padding_mask": PADDING}), 1),
    "causal": (
        lambda: MultiHead(batch_first=True, options={"attn_mask": CAUSAL, "is_causal": True}),
        1,
    ),
    "more keys": (lambda: MultiHead(batch_first=True, add_bias_kv=True, add_zero_attn=True), 1),
    "weights": (lambda: MultiHead(batch_first=True, options={"need_weights": True}), 0),
    "encoder": (lambda: nn.TransformerEncoderLayer(SIZE, HEADS, 32, 0.0, batch_first=True), 1),
    "decoder": (Decoder, 2),
    "transformer": (Whole, 3),
}


def result_and_gradients(module, x):
    x = x.clone().requires_grad_()
    output = module(x)
    gradients = torch.autograd.grad(output.sin().sum(), [x, *module.parameters()])
    return output, *gradients


@pytest.fixture
def recipe(monkeypatch):
    return run_recipe(monkeypatch)


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("name", MODULES)
def test_modules(name, is_training, recipe):
    mode, calls = recipe
    make, count = MODULES[name]
    torch.manual_seed(3)
    module = make().double().train(is_training)
    x = torch.randn(3, 7, SIZE, dtype=torch.float64)
    wanted = result_and_gradients(module, x)
    assert not calls
    with mode():
        actual = result_and_gradients(module, x)
    assert len(calls) == count
    for one, other in zip(actual, wanted, strict=True):
        limit = 2**10 * EPS * max(1, other.abs().max())
        assert (one - other).abs().max() <= limit
    with mode(), torch.no_grad():
        assert torch.equal(module(x), actual[0])
    assert len(calls) == 2 * count


def test_a_mode_that_is_entered_again_and_left(recipe):
    """One mode within another, as where a pipeline enters one for each of its models."""
    mode, calls = recipe
    x = torch.randn(2, 5, SIZE)
    layer = nn.TransformerEncoderLayer(SIZE, HEADS, 32, batch_first=True)
    with mode(), mode():
        layer(x)
    assert len(calls) == 1
    layer(x)
    assert len(calls) == 1


def test_compiled(recipe):
    mode, calls = recipe
    torch._dynamo.reset()
    layer = nn.TransformerEncoderLayer(SIZE, HEADS, 32, dropout=0, batch_first=True)
    graphs = []

    def backend(graph, inputs):
        graphs.append(str(graph.graph))
        return graph

    x = torch.randn(2, 5, SIZE)
    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    with mode():
        torch.testing.assert_close(compiled(x), layer(x))
    assert calls
    assert any("regard.attention" in graph for graph in graphs)
    assert not any("scaled_dot_product" in graph for graph in graphs)
