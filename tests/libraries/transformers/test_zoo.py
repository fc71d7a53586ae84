"""Models have the same results with regard's attention as with their own eager attention."""

import pytest

from in_float64 import in_float64
from outcomes import errors, outcome, widened
from zoo import build, inputs_of, torch, types

EPS = torch.finfo(torch.float32).eps


@pytest.mark.parametrize("model_type", types())
def test_float64(model_type, calls):
    model = build(model_type)
    inputs = inputs_of(model_type, model.config)
    with in_float64():
        wanted, wanted_gradients = outcome(model, "eager", inputs)
        assert not calls
        actual, gradients = outcome(model, "regard", inputs)
    assert calls
    assert_near(actual, wanted)
    assert sum(gradient is not None for gradient in gradients.values()) > 10
    for name, gradient in gradients.items():
        assert (gradient is None) == (wanted_gradients[name] is None), name
        if gradient is not None:
            assert_near(gradient, wanted_gradients[name], name)


def assert_near(actual, wanted, name=""):
    assert actual.isfinite().all()
    error = (actual - wanted).abs().max().item()
    assert error <= 1e-10 * max(1, wanted.abs().max().item()), f"{name} is off by {error}"


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
    assert_near(actual, wanted)
