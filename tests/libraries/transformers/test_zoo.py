"""Models have the same results with regard's attention as with their own eager attention."""

import pytest

from outcomes import assert_alike, assert_close, errors, in_float64, outcome, widened
from zoo import build, inputs_of, regard, torch, types

EPS = torch.finfo(torch.float32).eps


@pytest.mark.parametrize("model_type", types())
def test_float64(model_type, calls):
    """`"sdpa"` models, whose calls of PyTorch's function regard replaces, have them too."""
    model = build(model_type)
    inputs = inputs_of(model_type, model.config)
    with in_float64():
        wanted = outcome(model, "eager", inputs)
        assert not calls
        assert_alike(outcome(model, "regard", inputs), wanted)
        assert calls
        calls.clear()
        if model._supports_sdpa:
            with regard.torch.replacing_sdpa() as replaced:
                assert_alike(outcome(model, "sdpa", inputs), wanted)
            assert replaced.by_regard
            assert not replaced.by_pytorch
            assert not calls


@pytest.mark.parametrize("model_type", types())
def test_float32(model_type):
    """The error is at most twice the error of eager attention, plus a few roundings."""
    wide, model = build(model_type), build(model_type, torch.float32)
    inputs = inputs_of(model_type, model.config, torch.float32)
    with in_float64():
        wanted = outcome(wide, "eager", widened(inputs))
    of_eager, of_regard = (
        errors(outcome(model, implementation, inputs), wanted)
        for implementation in ("eager", "regard")
    )
    for actual, limit in zip(of_regard, of_eager, strict=True):
        assert limit < 1e-3
        assert actual <= 2 * limit + 8 * EPS


@pytest.mark.parametrize("model_type", types("decoder", "encoder", "encoder-decoder"))
@pytest.mark.parametrize("padding", ["right", None])
def test_other_padding(model_type, padding):
    model = build(model_type)
    inputs = inputs_of(model_type, model.config, padding=padding)
    with in_float64():
        wanted, actual = (outcome(model, name, inputs)[0] for name in ("eager", "regard"))
    assert_close(actual, wanted)
