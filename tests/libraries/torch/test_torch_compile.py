"""Test the operators as compilers see them."""

import numpy as np
import pytest

from cases import Case, build
from option_cases import MIXES
from problem import drawn
from torch_problems import arguments_of, leaves_of, scaled_dot_product_attention, torch

import regard.torch  # isort: skip
from torch.utils.checkpoint import checkpoint  # isort: skip
from regard.torch._operators import attention, attention_backward, attention_jvp  # isort: skip
from regard.torch import _options  # isort: skip

SHAPES = (2, 4, 5, 8), (2, 2, 9, 8), (1, 2, 9, 6)
CASES = [
    Case("plain", (2, 4, 5, 8), (2, 4, 9, 8), (2, 4, 9, 8)),
    Case("numbers of heads", *SHAPES, scale=(0.1, 0.2, 0.3, 0.4), softcap=(1.0, 2.0, 3.0, 4.0)),
    Case("end", *SHAPES, is_causal=True, query_offset="end"),
    Case("dropout", *SHAPES),
    *MIXES[::9],
]
each_case = pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=pytest.mark.slow if i > 4 else ()) for i, c in enumerate(CASES)],
    ids=lambda case: case.name,
)


def value_and_gradients(function, arguments, leaves):
    output, lse = function(**arguments)
    loss = (output**2).sum() + (lse * lse.cos()).sum()
    return output, lse, *torch.autograd.grad(loss, tuple(leaves.values()))


@each_case
def test_compiled_calls_give_the_same_bits(case):
    torch._dynamo.reset()
    problem = build(case, np.dtype(np.float32), dropout=0.4 if case.name == "dropout" else 0.0)
    function = scaled_dot_product_attention
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    leaves = leaves_of(problem)
    arguments = arguments_of(problem, leaves) | {"return_lse": True}
    ours = value_and_gradients(compiled, arguments, leaves)
    eager = value_and_gradients(function, arguments, leaves)
    for one, other in zip(ours, eager, strict=True):
        assert one.stride() == other.stride()
        assert torch.equal(one, other)
    with torch.no_grad():
        assert torch.equal(compiled(**arguments)[0], function(**arguments)[0])


def test_sizes_and_offsets_of_one_compiled_function():
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")

    def decode(query, key, offset):
        return scaled_dot_product_attention(
            query, key, key, is_causal=True, query_offset=offset, window=(offset, 0)
        )

    compiled = torch.compile(decode, fullgraph=True, dynamic=True, backend=counter)
    for length in (5, 6, 9, 30, 31):
        query, key = torch.ones(1, 2, 2, 8), torch.rand(1, 2, length, 8)
        assert torch.equal(compiled(query, key, length - 2), decode(query, key, length - 2))
    assert counter.frame_count <= 2


def attend_twice(x):
    """Attend with dropout, and again within a checkpointed region."""
    found = scaled_dot_product_attention(x.sin(), x.cos(), x * 2, dropout_p=0.4)
    return checkpoint(attend_to_sines, found.exp(), use_reentrant=False)


def attend_to_sines(x):
    return scaled_dot_product_attention(x, x.sin(), x, dropout_p=0.3).cos()


def attend_replaced(x):
    return torch.nn.functional.scaled_dot_product_attention(x.sin(), x, x * 2, dropout_p=0.4).cos()


def attend_packed(x):
    packed = x[0].transpose(0, 1)
    starts = torch.tensor([0, 3, len(packed)])
    return regard.torch.scaled_dot_product_attention_ragged(
        packed.sin(), packed.cos(), packed * 2, starts, starts, dropout_p=0.4
    ).cos()


each_backend = pytest.mark.parametrize(
    "backend", ["aot_eager_decomp_partition", pytest.param("inductor", marks=pytest.mark.slow)]
)


@pytest.mark.parametrize("function", [attend_twice, attend_replaced, attend_packed])
@each_backend
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"activation_memory_budget": 0.5},
        {"activation_memory_budget": 0.0},
        {"aggressive_recomputation": True},
    ],
    ids=str,
)
def test_both_directions_drop_the_same_weights(config, backend, function, tmp_path, monkeypatch):
    """A compiler that computes parts of the forward pass again gets the same seeds again.

    A function that is not compiled draws the same seeds.
    """
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # compile anew
    torch._dynamo.reset()
    x = torch.randn(1, 2, 7, 8, dtype=torch.float64, requires_grad=True)
    with torch._functorch.config.patch(config), regard.torch.replacing_sdpa():
        compiled = torch.compile(function, fullgraph=True, backend=backend)
        for seed in range(3):
            results, states = [], []
            for run in (function, compiled):
                torch.manual_seed(seed)
                output = run(x)
                torch.rand(3)  # the backward pass starts from another state
                results.append((output, *torch.autograd.grad(output.sum(), x)))
                states.append(torch.get_rng_state())
            torch.testing.assert_close(*results, rtol=1e-11, atol=1e-11)
            assert torch.equal(*states)


DIMENSIONS = {
    "equal heads": ((2, 4, 5, 8), (2, 4, 9, 8), {}),
    "groups": ((2, 4, 5, 8), (2, 2, 9, 8), {"enable_gqa": True}),
    "dropout": ((2, 4, 5, 8), (2, 4, 9, 8), {"dropout_p": 0.3, "dropout_seed": 5}),
    "end": ((2, 4, 5, 8), (2, 4, 9, 8), {"is_causal": True, "query_offset": "end"}),
}


@pytest.mark.parametrize(("of_query", "of_key", "options"), DIMENSIONS.values(), ids=DIMENSIONS)
def test_export_with_dynamic_batch_heads_and_lengths(of_query, of_key, options):
    """The three tensors share dimensions, each of which is one symbol."""

    class Module(torch.nn.Module):
        def forward(self, query, key, value):
            return scaled_dot_product_attention(query, key, value, **options)

    batch, heads, kv_heads, q_len, kv_len = (
        torch.export.Dim(name, min=2, max=64) for name in ("b", "h", "g", "q", "k")
    )
    of_keys = {0: batch, 1: heads, 2: kv_len}
    if options.get("enable_gqa"):
        heads, of_keys = 2 * kv_heads, {0: batch, 1: kv_heads, 2: kv_len}
    shapes = {0: batch, 1: heads, 2: q_len}, of_keys, of_keys
    tensors = torch.rand(of_query), torch.rand(of_key), torch.rand(*of_key[:-1], 6)
    program = torch.export.export(Module(), tensors, dynamic_shapes=shapes)
    more = [torch.rand(x.shape[0] + 1, x.shape[1] * 3, x.shape[2] + 2, x.shape[3]) for x in tensors]
    for each in (tensors, more):
        assert torch.equal(program.module()(*each), Module()(*each))


@pytest.mark.slow
@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1)])
def test_opcheck(order):
    query = torch.from_numpy(drawn([(2, 4, 5)[i] for i in order] + [8], np.float64))
    query = query.permute(*order, 3)
    key, value = (torch.from_numpy(drawn((2, 2, 9, n), np.float64, n)) for n in (8, 6))
    inputs = {"query": query, "key": key, "value": value}
    shapes = {"float_mask": (4, 1, 9), "alibi_slopes": 4, "distance_bias": (4, 5), "sinks": 4}
    inputs |= {name: torch.from_numpy(drawn(s, np.float64)) for name, s in shapes.items()}
    shown = regard.masks.Blocks.from_dense(drawn((4, 5, 9), np.float64) < 0.5)
    options = {"window": (3, 1), "key_lengths": torch.tensor([7, 4]), "query_offset": 2}
    options |= {"mask": shown, "scale": torch.rand(4, dtype=torch.float64)}
    found = _options.packed(_options.checked(inputs | options))
    results = attention(*found)
    grads = [torch.ones_like(x) for x in results]
    torch.library.opcheck(attention_backward, (*grads, *results, *found, [*inputs]))
    for tensor in (query, key, value, *grads):
        tensor.requires_grad_()
    torch.library.opcheck(attention, found)
    torch.library.opcheck(attention_backward, (*grads, *results, *found, [*inputs][:3]))
    tangents = torch.ones_like(query), None, torch.ones_like(value)
    torch.library.opcheck(attention_jvp, (*tangents, *found))
    for tensor in inputs.values():
        tensor.requires_grad_()
    torch.library.opcheck(attention, found)
