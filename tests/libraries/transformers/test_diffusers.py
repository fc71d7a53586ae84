"""diffusers models, which call PyTorch's own function, run with regard in its place."""

import contextlib
import warnings

import numpy as np
import pytest

import regard
from explicit_weights import keep_weights
from outcomes import assert_close
from zoo import torch

REASON = "diffusers is not installed: pip install diffusers"
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    diffusers = pytest.importorskip("diffusers", reason=REASON)


def numbers(*shape):
    return torch.randn(shape, dtype=torch.float64)


def unet():
    """Make a model with self-attention and attention to a text, through the older processors."""
    model = diffusers.UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(8, 16),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=12,
        attention_head_dim=4,
        norm_num_groups=4,
    )
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[1, 3:] = False
    inputs = {
        "sample": numbers(2, 4, 8, 8),
        "timestep": torch.tensor(3),
        "encoder_hidden_states": numbers(2, 5, 12),
        "encoder_attention_mask": mask,
    }
    return model, inputs


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


@pytest.mark.parametrize("make", [unet, flux])
def test_model(make):
    torch.manual_seed(0)
    model, inputs = make()
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


@pytest.mark.parametrize("make", [unet, flux])
def test_recording(make, monkeypatch):
    torch.manual_seed(0)
    model, inputs = make()
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
