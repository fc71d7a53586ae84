"""The results of a model, their distance from the right results, and models in float64."""

from contextlib import contextmanager

from zoo import result_of, torch


def outcome(model, implementation, inputs):
    """Return the result at real tokens, and the gradients of all parameters."""
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


def errors(outcome, wanted):
    """Return the largest errors of the result and the gradients, in units of the largest
    numbers."""
    result, gradients = outcome
    wanted_result, wanted_gradients = wanted
    known = [name for name, gradient in gradients.items() if gradient is not None]
    assert known == [name for name, gradient in wanted_gradients.items() if gradient is not None]
    pairs = [(gradients[name], wanted_gradients[name]) for name in known]
    greatest = max(x.abs().max().item() for _, x in pairs)
    return (
        ((result - wanted_result).abs().max() / wanted_result.abs().max()).item(),
        max((x - y).abs().max().item() for x, y in pairs) / greatest,
    )


def assert_close(actual, wanted):
    """Check that float64 numbers are equal up to rounding."""
    assert actual.isfinite().all()
    assert (actual - wanted).abs().max() <= 1e-10 * max(1, wanted.abs().max())


def assert_alike(actual, wanted):
    """Check that outcomes in float64 are equal up to rounding, each gradient in its own units."""
    assert max(errors(actual, wanted)) <= 1e-10
    assert_close(actual[0], wanted[0])
    for name, gradient in actual[1].items():
        if gradient is not None:
            assert_close(gradient, wanted[1][name])


def assert_as_eager(model, inputs, calls):
    """Check that regard's outcome is that of eager attention, which is returned."""
    with in_float64():
        wanted = outcome(model, "eager", inputs)
        assert not calls
        assert_alike(outcome(model, "regard", inputs), wanted)
    assert calls
    return wanted


@contextmanager
def in_float64():
    """Replace float32, or no type, by float64 in every request to PyTorch.

    Many models use float32 for a softmax, a norm or their rotary angles, whatever type their
    parameters have. A difference in the last bit of a float64 would then become a difference in the
    last bit of a float32.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Widened():
            yield
    finally:
        torch.set_default_dtype(before)


class _Widened(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        args = [torch.float64 if x is torch.float32 else x for x in args]
        kwargs = {n: torch.float64 if x is torch.float32 else x for n, x in (kwargs or {}).items()}
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        return function(*args, **kwargs)
