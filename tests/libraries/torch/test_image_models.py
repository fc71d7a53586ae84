"""Models of torchvision, timm and diffusers, with random weights, compute the same results with
regard."""

import contextlib
import warnings

import pytest

torch = pytest.importorskip("torch", reason='PyTorch is not installed: pip install ".[torch]"')

import regard.torch  # noqa: E402


def library(name):
    """Import a library, or skip the test if it is not installed, or not for this PyTorch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return pytest.importorskip(name, reason=f"pip install {name}")
        except RuntimeError:
            pytest.skip(f"{name} is not for this PyTorch")


def numbers(*shape):
    return torch.randn(shape, dtype=torch.float64)


def vision_transformer():
    model = library("torchvision").models.VisionTransformer(32, 8, 2, 4, 32, 64)
    return model, {"x": numbers(1, 3, 32, 32)}


def flux():
    """Make a model with text and image in one sequence, through the dispatch of backends."""
    model = library("diffusers").FluxTransformer2DModel(
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
        "return_dict": False,
    }
    return model, inputs


# Names in timm, and the options that make the models small.
SMALL = {
    "beit_base_patch16_224": {"depth": 2, "embed_dim": 64, "num_heads": 4},
    "davit_tiny": {"depths": (1, 1, 1, 1)},
    "eva02_tiny_patch14_224": {"depth": 2},
    "hiera_tiny_224": {"stages": (1, 1, 1, 1)},
    "pvt_v2_b0": {},
    "swin_tiny_patch4_window7_224": {"depths": (1, 1, 1, 1)},
    "swinv2_tiny_window8_256": {"depths": (1, 1, 1, 1)},
    "vit_relpos_small_patch16_224": {"depth": 2},
    "vit_tiny_patch16_224": {"depth": 2},
}
# They do not call PyTorch's function, unless TIMM_FUSED_ATTN=2 is set.
WITH_ITS_OWN = {"swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256"}


def of_timm(name):
    model = library("timm").create_model(name, pretrained=False, **SMALL[name])
    size = model.default_cfg["input_size"][-1]
    return model, {"x": numbers(1, 3, size, size)}


@pytest.mark.slow
@pytest.mark.parametrize("name", [vision_transformer, flux, *SMALL])
def test_outputs_and_gradients(name):
    torch.manual_seed(0)
    model, inputs = of_timm(name) if name in SMALL else name()
    model, outcomes = model.double().eval(), []
    for context in (contextlib.nullcontext, regard.torch.replacing_sdpa):
        model.zero_grad(set_to_none=True)
        with context() as calls:
            output = model(**inputs)
        output = output[0] if isinstance(output, tuple) else output
        output.sin().sum().backward()
        outcomes.append([output.detach(), *(each.grad for each in model.parameters())])
    assert (calls.by_regard > 0) is (name not in WITH_ITS_OWN)
    assert not calls.by_pytorch
    for wanted, actual in zip(*outcomes, strict=True):
        assert (wanted is None) == (actual is None)
        if wanted is not None:
            assert (actual - wanted).abs().max() <= 1e-10 * max(1, wanted.abs().max())
