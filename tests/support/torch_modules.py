"""PyTorch modules with attention, and their inputs."""

import torch
import torch.nested._internal.ops as of_nested_tensors
from torch import nn

by_another_name = torch.nn.functional.scaled_dot_product_attention
SIZE, HEADS = 16, 4
PADDING = torch.arange(7)[None] >= torch.tensor([[7], [5], [2]])


class Calls(nn.Module):
    """Attention by calls of a function: self-attention, then attention with grouped heads."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.project = nn.Linear(SIZE, SIZE)

    def forward(self, x):
        x = self.project(x)[:, None]
        x = self.function(x, x, x, is_causal=True)
        return self.function(x, x[..., :4, :], x[..., :4, :], scale=0.3)


class MultiHead(nn.Module):
    def __init__(self, keys=None, *, options=None, **words):
        super().__init__()
        self.attention = nn.MultiheadAttention(SIZE, HEADS, **words)
        self.keys, self.options = keys, options or {}

    def forward(self, x):
        other = x if self.keys is None else x[:, : self.keys]
        return self.attention(x, other, other, **self.options)[0]


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


class PaddedEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(SIZE, HEADS, 32, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x):
        return self.encoder(x, src_key_padding_mask=PADDING)


def drawn(make):
    torch.manual_seed(3)
    return make().double()


def x_of(*shape):
    return torch.randn(*shape or (3, 7, SIZE), dtype=torch.float64)


def state_of_replacing():
    """Return all that a block of `replacing_sdpa` changes in the process."""
    return (
        torch.backends.mha.get_fastpath_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch._C._dispatch_has_kernel_for_dispatch_key(
            "aten::scaled_dot_product_attention", "AutogradCPU"
        ),
        of_nested_tensors.jagged_scaled_dot_product_attention,
    )
