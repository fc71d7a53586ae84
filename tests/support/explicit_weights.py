"""PyTorch's attention function as a formula that keeps the weights."""

import math

import pytest

torch = pytest.importorskip("torch", reason='PyTorch is not installed: pip install ".[torch]"')


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
