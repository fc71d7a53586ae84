"""The states of PyTorch modules are loaded into layers, whatever the tensors' types."""

import pytest

import regard
from reference import assert_same_bits

torch = pytest.importorskip("torch")

LAYERS = {
    "MultiHeadAttention": lambda: regard.MultiHeadAttention(8, 2, qkv_bias=True, rng=0),
    "SelfAttention": lambda: regard.SelfAttention(8, 4, qkv_bias=True, rng=0),
}
each_layer = pytest.mark.parametrize("name", LAYERS)


def state_of(layer, convert):
    """Return the layer's state as tensors of other numbers."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: convert(torch.randn(array.shape, generator=generator))
        for name, array in layer.state_dict().items()
    }


READ = {
    "float32": lambda x: x,
    "float16": torch.Tensor.half,
    "float64": torch.Tensor.double,
    "bfloat16": torch.Tensor.bfloat16,
    "parameters": torch.nn.Parameter,
    "gradients": lambda x: 2 * torch.nn.Parameter(x),
    "bfloat16 parameters": lambda x: torch.nn.Parameter(x.bfloat16()),
}


@each_layer
@pytest.mark.parametrize("convert", READ.values(), ids=READ)
def test_tensors_are_loaded(name, convert):
    layer = LAYERS[name]()
    state = state_of(layer, convert)
    layer.load_state_dict(state)
    for entry, array in layer.state_dict().items():
        assert_same_bits(array, state[entry].detach().float().numpy())
