"""PyTorch modules with attention, their inputs, and the weights of their calls."""

import math

import torch
import torch.nested._internal.ops as of_nested_tensors
from torch import nn

by_another_name = torch.nn.functional.scaled_dot_product_attention
SIZE, HEADS = 16, 4
PADDING = torch.arange(7)[None] >= torch.tensor([[7], [5], [2]])
CAUSAL = torch.ones(7, 7, dtype=torch.bool).triu(1)


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
    """Attention of a sequence to itself, or to its first elements."""

    def __init__(self, keys=None, *, options=None, batch_first=True, **words):
        super().__init__()
        self.attention = nn.MultiheadAttention(SIZE, HEADS, batch_first=batch_first, **words)
        self.keys, self.options = keys, {"need_weights": False} | (options or {})

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


class Encoder(nn.Module):
    def __init__(self, padding=None):
        super().__init__()
        self.encoder = nn.TransformerEncoder(encoder_layer(), 2)
        self.padding = padding

    def forward(self, x):
        return self.encoder(x, src_key_padding_mask=self.padding)


def encoder_layer(**words):
    return nn.TransformerEncoderLayer(SIZE, HEADS, 32, 0.0, batch_first=True, **words)


def masked(**options):
    return lambda: MultiHead(options=options)


# Each module with the names of its layers.
MODULES = {
    "function": (lambda: Calls(by_another_name), ["Calls", "Calls:2"]),
    "multi-head": (MultiHead, ["attention"]),
    "length first": (lambda: MultiHead(batch_first=False), ["attention"]),
    "cross": (lambda: MultiHead(4), ["attention"]),
    "padding": (masked(key_padding_mask=PADDING), ["attention"]),
    "causal": (masked(attn_mask=CAUSAL, is_causal=True), ["attention"]),
    "more keys": (lambda: MultiHead(add_bias_kv=True, add_zero_attn=True), ["attention"]),
    "norm first": (lambda: encoder_layer(norm_first=True), ["self_attn"]),
    "encoder": (Encoder, ["encoder.layers.0.self_attn", "encoder.layers.1.self_attn"]),
    "decoder": (Decoder, ["layer.self_attn", "layer.multihead_attn"]),
    "transformer": (
        Whole,
        [
            "model.encoder.layers.0.self_attn",
            "model.decoder.layers.0.self_attn",
            "model.decoder.layers.0.multihead_attn",
        ],
    ),
}


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


def weights_of(query, key, mask=None, is_causal=False, scale=None):
    """Return attention weights by their formula, 0 for fully masked rows."""
    scores = query @ key.mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        scores = scores.where(torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    if mask is not None:
        if mask.dtype == torch.bool:
            mask = torch.zeros(mask.shape, dtype=scores.dtype).masked_fill(~mask, -math.inf)
        scores = scores + mask
    return torch.softmax(scores, dim=-1).nan_to_num(0.0)


def keep_weights(monkeypatch):
    """Return a list of the weights of all calls of PyTorch's function, which a formula replaces."""
    found = []

    def spy(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **others):
        weights = weights_of(query, key, attn_mask, is_causal, others.get("scale"))
        found.append(weights.detach().numpy())
        return weights @ value

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    return found
