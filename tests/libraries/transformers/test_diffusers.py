"""diffusers models, which call PyTorch's own function, run with regard in its place."""

import contextlib
import warnings

import numpy as np
import pytest

import regard
from outcomes import assert_close
from zoo import torch

from torch_modules import keep_weights  # isort: skip

REASON = "diffusers is not installed: pip install diffusers"
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    diffusers = pytest.importorskip("diffusers", reason=REASON)


def numbers(*shape):
    return torch.randn(shape, dtype=torch.float64)


def flux():
    """Make a model with text and image in one sequence, through the dispatch of backends."""
    model = diffusers.FluxTransformer2DModel(
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=[4, 4, 8],
    )
    inputs = {
        "hidden_states": numbers(2, 16, 4),
        "encoder_hidden_states": numbers(2, 7, 32),
        "pooled_projections": numbers(2, 32),
        "timestep": torch.tensor([0.3, 0.7], dtype=torch.float64),
        "img_ids": torch.zeros(16, 3),
        "txt_ids": torch.zeros(7, 3),
    }
    return model, inputs


def test_model():
    torch.manual_seed(0)
    model, inputs = flux()
    model, outcomes = model.double().eval(), []
    for context in (contextlib.nullcontext, regard.torch.replacing_sdpa):
        model.zero_grad(set_to_none=True)
        with context() as calls:
            sample = model(**inputs).sample
        sample.square().sum().backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        outcomes.append([sample.detach(), *gradients])
    assert calls.by_regard > 1
    assert not calls.by_pytorch
    for wanted, actual in zip(*outcomes, strict=True):
        assert_close(actual, wanted)


def test_recording(monkeypatch):
    torch.manual_seed(0)
    model, inputs = flux()
    model = model.double().eval()
    wanted = keep_weights(monkeypatch)
    with torch.no_grad():
        model(**inputs)
    monkeypatch.undo()
    recording = regard.torch.record(model, **inputs)
    assert len(recording) == len(wanted) > 1
    assert all("attn" in name for name in recording.names)
    for layer, weights in zip(recording, wanted, strict=True):
        arrays = layer.query, layer.key, layer.key, layer.mask
        _, own = regard.scaled_dot_product_attention(*arrays, **layer.options, return_weights=True)
        assert np.abs(own - weights).max() <= 1e-10
