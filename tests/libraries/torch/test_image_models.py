"""Models of torchvision and timm, with random weights, compute the same results with regard."""

import contextlib
import warnings

import pytest

torch = pytest.importorskip("torch", reason='PyTorch is not installed: pip install ".[torch]"')
REASON = "torchvision and timm are not installed, or not for this PyTorch"
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    try:
        import timm
        import torchvision
    except (ImportError, RuntimeError):
        pytest.skip(REASON, allow_module_level=True)

import regard.torch  # noqa: E402


def vision_transformer():
    return torchvision.models.VisionTransformer(32, 8, 2, 4, 32, 64)


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
    return timm.create_model(name, pretrained=False, **SMALL[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torchvision", *SMALL])
def test_outputs_and_gradients(name):
    torch.manual_seed(0)
    model = (vision_transformer() if name == "torchvision" else of_timm(name)).double().eval()
    size = 32 if name == "torchvision" else model.default_cfg["input_size"][-1]
    images = torch.randn(1, 3, size, size, dtype=torch.float64)
    outcomes = []
    for context in (contextlib.nullcontext, regard.torch.replacing_sdpa):
        model.zero_grad(set_to_none=True)
        with context() as calls:
            output = model(images)
        output.sin().sum().backward()
        outcomes.append([output.detach(), *(each.grad for each in model.parameters())])
    assert (calls.by_regard > 0) is (name not in WITH_ITS_OWN)
    assert not calls.by_pytorch
    for wanted, actual in zip(*outcomes, strict=True):
        assert (wanted is None) == (actual is None)
        if wanted is not None:
            assert (actual - wanted).abs().max() <= 1e-10 * max(1, wanted.abs().max())
