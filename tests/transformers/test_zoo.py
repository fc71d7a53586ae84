"""Models with regard's attention compute what they compute with their own, eager one."""

import pytest

from zoo import KIND_OF, build, inputs_of, result_of, torch, types

from in_float64 import in_float64

EPS = torch.finfo(torch.float32).eps


def outcome(model, implementation, inputs):
    """The result where there are tokens, and the gradients of all parameters."""
    model.set_attn_implementation(implementation)
    model.zero_grad(set_to_none=True)
    result = result_of(model(**inputs))
    mask = inputs.get("attention_mask")
    if mask is not None and result.shape[:2] == mask.shape:
        result = result[mask.bool()]
    generator = torch.Generator().manual_seed(2)
    weights = torch.randn(result.shape, generator=generator, dtype=torch.float64)
    (result * weights.to(result.dtype)).sum().backward()
    return result.detach(), {name: p.grad for name, p in model.named_parameters() if p.numel()}


def widened(inputs):
    return {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}


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
    """The error is at most twice that of the eager attention, beyond a few roundings."""
    model = build(model_type, torch.float32)
    inputs = inputs_of(model_type, model.config, torch.float32)
    with in_float64():
        wanted = outcome(build(model_type), "eager", widened(inputs))
    of_eager, of_regard = (
        errors(outcome(model, implementation, inputs), wanted)
        for implementation in ("eager", "regard")
    )
    for actual, limit in zip(of_regard, of_eager, strict=True):
        assert actual <= 2 * limit + 8 * EPS


def errors(outcome, wanted):
    """The greatest errors of the result and the gradients, in units of the greatest numbers."""
    result, gradients = outcome
    wanted_result, wanted_gradients = wanted
    known = [name for name, gradient in gradients.items() if gradient is not None]
    pairs = [(gradients[name], wanted_gradients[name]) for name in known]
    greatest = max(x.abs().max().item() for _, x in pairs)
    return (
        ((result - wanted_result).abs().max() / wanted_result.abs().max()).item(),
        max((x - y).abs().max().item() for x, y in pairs) / greatest,
    )


@pytest.mark.parametrize("model_type", types("decoder", "encoder", "encoder-decoder"))
@pytest.mark.parametrize("padding", ["right", None])
def test_other_padding(model_type, padding):
    model = build(model_type)
    inputs = inputs_of(model_type, model.config, padding=padding)
    with in_float64():
        wanted, actual = (outcome(model, name, inputs)[0] for name in ("eager", "regard"))
    assert_near(actual, wanted)


def test_at_least_sixty_types():
    assert len(KIND_OF) >= 60
