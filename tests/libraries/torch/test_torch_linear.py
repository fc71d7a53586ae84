"""`regard.torch.linear_attention` and its gradients are those of the calls over arrays."""

import numpy as np
import pytest

from torch_problems import torch

import regard.torch  # isort: skip

ARGUMENTS = ("query", "key", "value", "decay", "beta", "state")
OPERATOR = torch.ops.regard.linear_attention.default
RULES = [(), ("decay",), ("beta",), ("decay", "beta"), ("columns", "beta", "state")]


def problem(given, dtype=torch.float64, length=70):
    """Return the arguments, whose tokens are before their heads in memory."""
    random = torch.Generator().manual_seed(len(given))

    def draw(heads, *dims):
        drawn = torch.randn((2, length, heads, *dims), generator=random, dtype=torch.float64)
        return drawn.to(dtype).transpose(1, 2)

    found = {"query": draw(4, 8), "key": draw(2, 8), "value": draw(2, 5)}
    found["key"] = torch.nn.functional.normalize(found["key"], dim=-1)
    if "decay" in given or "columns" in given:
        found["decay"] = -draw(2, *[8] * ("columns" in given)).abs() / 4
    if "beta" in given:
        found["beta"] = draw(2).sigmoid()
    if "state" in given:
        found["state"] = torch.randn(2, 2, 8, 5, generator=random, dtype=torch.float64)
    return found


@pytest.mark.parametrize("given", RULES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_results_and_gradients(given, dtype):
    call = {name: x.requires_grad_() for name, x in problem(given, dtype).items()}
    arrays = {name: x.detach().numpy() for name, x in call.items()}
    results = regard.torch.linear_attention(**call, scale=0.3, return_state=True)
    wanted = regard.linear_attention(**arrays, scale=0.3, return_state=True)
    upstream = [x.detach().cos() for x in results]
    torch.autograd.backward(results, upstream)
    grad_output, grad_state = (x.numpy() for x in upstream)
    gradients = regard.linear_attention_backward(
        grad_output, **arrays, scale=0.3, grad_state=grad_state
    )
    pairs = [*zip(results, wanted, strict=True)]
    pairs += [(leaf.grad, getattr(gradients, name)) for name, leaf in call.items()]
    for actual, expected in pairs:
        assert actual.dtype == torch.from_numpy(expected).dtype
        np.testing.assert_array_equal(actual.detach().numpy(), expected)
    with torch.no_grad():
        assert torch.equal(regard.torch.linear_attention(**call, scale=0.3), results[0])

    def loss(leaves):
        results = regard.torch.linear_attention(**leaves, scale=0.3, return_state=True)
        return sum((a * b).sum() for a, b in zip(results, upstream, strict=True))

    transformed = torch.func.grad(loss)({name: x.detach() for name, x in call.items()})
    assert all(torch.equal(transformed[name], leaf.grad) for name, leaf in call.items())


@pytest.mark.slow
@pytest.mark.parametrize("given", RULES[::2])
def test_the_operator_keeps_what_it_promises(given):
    """Its schema, shapes without elements, and gradients in a compiled graph."""
    call = {name: x.requires_grad_() for name, x in problem(given, length=5).items()}
    arguments = [*(call.get(name) for name in ARGUMENTS), None, None, None]
    torch.library.opcheck(OPERATOR, arguments)


@pytest.mark.parametrize("form", ["batch", "packed", "one head", "one key head"])
def test_shapes_without_elements(form):
    call = problem(("decay", "state"), torch.float16, length=5)
    starts = None
    if form == "packed":
        call = {name: each.transpose(1, 2).flatten(0, 1) for name, each in call.items()}
        call["state"], starts = None, torch.tensor([0, 3, 3, 10])
    elif form != "batch":
        call = {name: each[0, 0] for name, each in call.items()}
    if form == "one key head":
        call |= {"query": call["query"].expand(2, 3, -1, -1), "decay": call["decay"][None]}
    arguments = [*(call.get(name) for name in ARGUMENTS), starts, None, None]
    torch.library.opcheck(OPERATOR, arguments, test_utils="test_faketensor")


def test_second_derivatives_raise():
    call = {name: x.requires_grad_() for name, x in problem(("beta",), length=3).items()}
    output = regard.torch.linear_attention(**call)
    (first,) = torch.autograd.grad(output.square().sum(), call["query"], create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivative of linear attention"):
        first.sum().backward()


def test_forward_mode_raises():
    call = problem((), length=3)
    query, others = call.pop("query"), tuple(call.values())
    with pytest.raises(NotImplementedError, match="forward mode of linear attention"):
        torch.func.jvp(lambda x: regard.torch.linear_attention(x, *others), (query,), (query,))
