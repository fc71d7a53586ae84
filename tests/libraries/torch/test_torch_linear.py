"""`regard.torch.linear_attention` and its gradients are those of the recurrence in PyTorch."""

import pytest

from torch_problems import torch

import regard.torch  # isort: skip

ARGUMENTS = ("query", "key", "value", "decay", "beta", "state")
OPERATOR = torch.ops.regard.linear_attention.default
RULES = [(), ("decay",), ("beta",), ("decay", "beta"), ("columns", "beta", "state")]


def recurrence(query, key, value, decay=None, beta=None, state=None, scale=None):
    """Return the output and the last state, token by token."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    state = (
        key.new_zeros(*key.shape[:-2], key.shape[-1], value.shape[-1]) if state is None else state
    )
    if decay is not None and decay.ndim < key.ndim:
        decay = decay[..., None]
    outputs = []
    for t in range(query.shape[-2]):
        if decay is not None:
            state = state * decay[..., t, :, None].exp()
        seen = value[..., t, :]
        if beta is not None:
            seen = beta[..., t, None] * (
                seen - torch.einsum("...d,...dv->...v", key[..., t, :], state)
            )
        state = state + key[..., t, :, None] * seen[..., None, :]
        of_heads = state.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
        outputs.append(scale * (query[..., t, None, :] @ of_heads).squeeze(-2))
    return torch.stack(outputs, dim=-2), state


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
@pytest.mark.parametrize("scale", [None, 0.3])
def test_results_and_gradients(given, scale):
    call = problem(given)
    results = []
    for attend in (regard.torch.linear_attention, recurrence):
        leaves = {name: x.detach().requires_grad_() for name, x in call.items()}
        options = {"return_state": True} if attend is not recurrence else {}
        output, state = attend(**leaves, scale=scale, **options)
        (output.sin().sum() + (2 * state).sin().sum()).backward()
        results.append([output, state, *(leaf.grad for leaf in leaves.values())])
    at_once = regard.torch.linear_attention(**call, scale=scale)
    assert torch.equal(at_once, results[0][0])
    for actual, wanted in zip(*results, strict=True):
        assert (actual - wanted).abs().max() < 1e-12 * max(1, wanted.abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("given", RULES[::2])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
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
