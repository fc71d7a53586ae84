"""`torch.vmap` gives each sample the result of a call with only that sample."""

import numpy as np
import pytest

from torch_problems import scaled_dot_product_attention, torch

SAMPLES = 3
# The shapes of each argument in four calls.
KINDS = ("batch", "heads", "two axes", "ranks")
SHAPES = {
    "query": ((2, 4, 5, 8), (4, 5, 8), (5, 8), (5, 8)),
    "key": ((2, 2, 9, 8), (2, 9, 8), (9, 8), (3, 1, 9, 8)),
    "value": ((1, 2, 9, 6), (2, 9, 8), (9, 6), (2, 1, 1, 9, 6)),
    "float_mask": ((4, 1, 9), (), (5, 9), (3, 1, 1, 9)),
    "bool_mask": ((2, 1, 1, 9), (9,), (5, 1), (9,)),
    "alibi_slopes": ((4,), (4,), (1,), (3, 1)),
    "distance_bias": ((4, 5), (1, 5), (3,), (3, 1, 7)),
    "sinks": ((4,), (4,), (1,), (1,)),
    "scale": ((2, 4), (4,), (1,), (2, 1, 1)),
    "softcap": ((4,), (1,), (), (3, 1)),
    "key_lengths": ((2,), (), (), (3,)),
    "left_padding": ((2,), (), (), (2, 1)),
    "query_offset": ((2,), (), (), (3,)),
}
NAMES = tuple(SHAPES)
DIFFERENTIATED = (0, 1, 2, 3, 5, 6, 7)
SUBSETS = [*((name,) for name in NAMES), NAMES, NAMES[:3], NAMES[3:]]
# Every subset with two of the kinds, and dropout in some of the calls.
EACH = [
    (KINDS[number % 4], subset, number % 3 == 0)
    for number in range(2 * len(SUBSETS))
    for subset in [SUBSETS[number // 2]]
]
DROPOUT = {"dropout_p": 0.4, "dropout_seed": 2**64 - 5}


def drawn(name, shape, random):
    if name == "bool_mask":
        return torch.from_numpy(np.asarray(random.random(shape) < 0.7))
    if name == "softcap":
        return torch.from_numpy(np.asarray(1 + random.random(shape)))
    low = {"key_lengths": 5, "left_padding": 0, "query_offset": -1}.get(name)
    if low is not None:
        return torch.from_numpy(np.asarray(random.integers(low, low + 4, shape)))
    return torch.from_numpy(np.asarray(random.standard_normal(shape)))


def problem(kind, mapped):
    """Return the arguments, and which axis of each is mapped."""
    random = np.random.default_rng([len(kind), *map(len, mapped)])
    tensors, dims = [], []
    for name, shapes in SHAPES.items():
        shape = shapes[KINDS.index(kind)]
        dim = int(random.integers(len(shape) + 1)) if name in mapped else None
        if dim is not None:
            shape = (*shape[:dim], SAMPLES, *shape[dim:])
        tensors.append(drawn(name, shape, random))
        dims.append(dim)
    return tuple(tensors), tuple(dims)


def attention(options):
    def function(query, key, value, float_mask, bool_mask, *others):
        return scaled_dot_product_attention(
            *(query, key, value, (bool_mask, float_mask)),
            enable_gqa=True,
            is_causal=True,
            window=(7, 2),
            return_lse=True,
            **dict(zip(NAMES[5:], others, strict=True)),
            **options,
        )

    return function


def each_alone(function, tensors, dims):
    results = []
    for i in range(SAMPLES):
        sample = [
            x if dim is None else x.select(dim, i) for x, dim in zip(tensors, dims, strict=True)
        ]
        results.append(function(*sample))
    return [torch.stack(each) for each in zip(*results, strict=True)]


def loss(function):
    def of_results(*tensors):
        output, lse = function(*tensors)
        return (output**2).sum() + torch.where(lse == -torch.inf, 0, lse).sin().sum()

    return of_results


each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.mark.parametrize(
    ("kind", "mapped", "drops"),
    EACH,
    ids=lambda x: "+".join(x)[:60] if isinstance(x, tuple) else str(x),
)
def test_results_and_gradients_of_each_sample(kind, mapped, drops):
    tensors, dims = problem(kind, mapped)
    function = attention(DROPOUT if drops else {})
    for each in (function, torch.func.grad(loss(function), DIFFERENTIATED)):
        actual = torch.vmap(each, dims)(*tensors)
        for ours, alone in zip(actual, each_alone(each, tensors, dims), strict=True):
            assert torch.equal(ours, alone)


@each_kind
def test_second_derivatives_of_each_sample(kind):
    tensors, dims = problem(kind, NAMES)
    three = (0, 1, 2)
    gradients = torch.func.grad(loss(attention({})), three)

    def along_itself(*tensors):
        def of_three(*inputs):
            return gradients(*inputs, *tensors[3:])

        reverse = torch.func.vjp(of_three, *tensors[:3])[1](tensors[:3])
        return *reverse, *torch.func.jvp(of_three, tensors[:3], tensors[:3])[1]

    actual = torch.vmap(along_itself, dims)(*tensors)
    for ours, alone in zip(actual, each_alone(along_itself, tensors, dims), strict=True):
        assert torch.equal(ours, alone)


def test_drawn_dropout_asks_for_its_randomness():
    query = torch.ones(SAMPLES, 2, 64, 4)

    def dropped(query):
        return scaled_dot_product_attention(query, query, query, dropout_p=0.5)

    with pytest.raises(RuntimeError, match="randomness"):
        torch.vmap(dropped)(query)
    same = torch.vmap(dropped, randomness="same")(query)
    different = torch.vmap(dropped, randomness="different")(query)
    assert torch.equal(same[0], same[1])
    assert not torch.equal(different[0], different[1])
