"""The results of a model, and their distance from the right results."""

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
    pairs = [(gradients[name], wanted_gradients[name]) for name in known]
    greatest = max(x.abs().max().item() for _, x in pairs)
    return (
        ((result - wanted_result).abs().max() / wanted_result.abs().max()).item(),
        max((x - y).abs().max().item() for x, y in pairs) / greatest,
    )
