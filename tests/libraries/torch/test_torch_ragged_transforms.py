"""Test packed sequences under compilers, `torch.vmap` and `torch.func`."""

import numpy as np
import pytest

from gradient_cases import drawn
from packed_tensors import (
    HEADS,
    KEYS,
    LONGEST,
    OPTIONS,
    QUERIES,
    VALUE_DIM,
    packed,
    tensor,
    tensors,
)
from torch_problems import torch

from torch._dynamo.testing import CompileCounterWithBackend  # isort: skip
from regard.torch import _operators, _options, scaled_dot_product_attention_ragged  # isort: skip

# PyTorch's forward mode compiles its decompositions with functions that PyTorch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is:DeprecationWarning")


@pytest.mark.parametrize(
    ("name", "dynamic"),
    [
        ("plain", True),
        pytest.param("plain", None, marks=pytest.mark.slow),
        pytest.param("all", True, marks=pytest.mark.slow),
    ],
)
def test_compiled(name, dynamic):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")

    def function(query, key, value, query_starts, key_starts, **options):
        return scaled_dot_product_attention_ragged(
            query, key, value, query_starts, key_starts, enable_gqa=True, return_lse=True, **options
        )

    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend=counter)
    for starts in ((QUERIES, KEYS), (KEYS, QUERIES), ([0, 2, 5, 6, 9], [0, 1, 8, 8, 12])):
        query, key, value = (
            torch.from_numpy(drawn((n, h, d), np.float32, d)).requires_grad_()
            for n, h, d in zip(
                (starts[0][-1], starts[1][-1], starts[1][-1]), (4, 2, 2), (8, 8, 6), strict=True
            )
        )
        given = query, key, value, *map(torch.tensor, starts)
        results = [each(*given, **OPTIONS[name]) for each in (compiled, function)]
        for one, other in zip(*results, strict=True):
            assert torch.equal(one, other)
            assert one.stride() == other.stride()
        gradients = [torch.autograd.grad(x[0].sin().sum(), given[:3]) for x in results]
        assert all(map(torch.equal, *gradients))
        with torch.no_grad():
            assert torch.equal(compiled(*given, **OPTIONS[name])[0], results[1][0])
    assert counter.frame_count <= 4


def test_exported():
    class Module(torch.nn.Module):
        def forward(self, query, key, value, query_starts, key_starts):
            return scaled_dot_product_attention_ragged(
                query, key, value, query_starts, key_starts, is_causal=True, enable_gqa=True
            )

    given = *tensors(), torch.tensor(QUERIES), torch.tensor(KEYS)
    rows, keys, number = (
        torch.export.Dim(name, min=2, max=999) for name in ("rows", "keys", "number")
    )
    shapes = {0: rows}, {0: keys}, {0: keys}, {0: number}, {0: number}
    program = torch.export.export(Module(), given, dynamic_shapes=shapes)
    assert "regard.attention.default" in str(program.graph)
    assert torch.equal(program.module()(*given), Module()(*given))
    others = (torch.ones(7, 4, 8), torch.ones(9, 2, 8), torch.ones(9, 2, 6))
    given = *others, torch.tensor([0, 3, 7]), torch.tensor([0, 9, 9])
    assert torch.equal(program.module()(*given), Module()(*given))


def test_shapes_on_the_device_meta():
    inputs = [x.to("meta") for x in tensors()]
    starts = [torch.tensor(x, device="meta") for x in (QUERIES, KEYS)]
    output, lse = scaled_dot_product_attention_ragged(
        *inputs, *starts, enable_gqa=True, return_lse=True
    )
    assert output.is_meta
    assert (output.shape, lse.shape) == ((11, 4, 6), (11, 4))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "all"])
def test_opcheck(name):
    query, key, value = (x.double().requires_grad_() for x in tensors())
    starts = torch.tensor(QUERIES), torch.tensor(KEYS)
    mask = tensor(QUERIES[-1], 1, LONGEST).requires_grad_() if name == "all" else None
    options = {
        n: x.clone().requires_grad_()
        if isinstance(x, torch.Tensor) and x.is_floating_point()
        else x
        for n, x in OPTIONS[name].items()
    }
    given = {"query": query, "key": key, "value": value}
    given |= {"query_starts": starts[0], "key_starts": starts[1]} | options
    if "dropout_seed" in given:
        given["dropout_seed"] = _options.seed_tensor(given["dropout_seed"])
    found = _options.checked(given if mask is None else given | {"float_mask": mask})
    call = _options.packed(found)
    torch.library.opcheck(_operators.attention, call)
    detached = [x.detach() if isinstance(x, torch.Tensor) else x for x in call]
    results = _operators.attention(*detached)
    grads = [torch.ones_like(x) for x in results]
    wanted = [x for x in _options.INPUTS if x in found]
    torch.library.opcheck(_operators.attention_backward, (*grads, *results, *detached, wanted))


@pytest.mark.parametrize("name", ["plain", "dropout", "sinks"])
def test_vmap_is_a_call_for_each_sample(name):
    query, key, value = tensors()
    samples = torch.stack([query, query * 2, -query])
    starts = torch.tensor([QUERIES, [0, 1, 2, 3, 11], [0, 11, 11, 11, 11]])

    def function(query, starts):
        return scaled_dot_product_attention_ragged(
            query, key, value, starts, KEYS, enable_gqa=True, **OPTIONS[name]
        )

    def gradient(query, starts):
        return torch.func.grad(lambda query: function(query, starts).sin().sum())(query)

    for each in (function, gradient):
        wanted = torch.stack([each(*sample) for sample in zip(samples, starts, strict=True)])
        assert torch.equal(torch.vmap(each)(samples, starts), wanted)
        assert torch.equal(torch.vmap(each, (0, None))(samples, starts[0])[0], wanted[0])


def test_vmap_without_samples():
    query, key, value = tensors()

    def function(query, starts):
        return scaled_dot_product_attention_ragged(
            query, key, value, starts, KEYS, enable_gqa=True, softcap=torch.ones(HEADS)
        )

    none = query.new_empty(0, *query.shape), torch.empty(0, len(QUERIES), dtype=torch.int64)
    assert torch.vmap(function)(*none).shape == (0, QUERIES[-1], HEADS, VALUE_DIM)


def test_other_derivatives_are_refused():
    query, key, value = (x.double().requires_grad_() for x in tensors())

    def function(query):
        return packed(query, key, value)[0]

    (first,) = torch.autograd.grad(function(query).sin().sum(), query, create_graph=True)
    with pytest.raises(NotImplementedError, match=r"second derivative .* for packed sequences"):
        torch.autograd.grad(first.sum(), query)
    with pytest.raises(NotImplementedError, match=r"in forward mode .* for packed sequences"):
        torch.func.jvp(function, (query.detach(),), (query.detach(),))
    with pytest.raises(NotImplementedError, match="for packed sequences"):
        torch.func.hessian(lambda x: function(x).sum())(query.detach())
