"""Numbers and arrays that options of a call on tensors may be, and what happens to them."""

import numpy as np
import pytest

from torch_problems import scaled_dot_product_attention, torch

SHAPES = {"query": (2, 4, 5, 8), "key": (2, 4, 9, 8), "value": (2, 4, 9, 6)}


def tensors(**others):
    return {name: torch.zeros(shape) for name, shape in SHAPES.items()} | others


NUMBERS = [
    torch.tensor([0.5, 0.25, 1.0, 2.0]),
    torch.tensor([0.5, 0.25, 1.0, 2.0], dtype=torch.bfloat16),
    np.array([0.5, 0.25, 1.0, 2.0]),
    [0.5, 0.25, 1.0, 2.0],
    (0.5, 0.25, 1.0, 2.0),
]


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", ["scale", "softcap"])
def test_numbers_of_heads(name, requires_grad):
    given = {k: torch.randn(v.shape) for k, v in tensors().items()}
    given["query"].requires_grad_(requires_grad)
    wanted = torch.cat(
        [
            scaled_dot_product_attention(
                **{k: v[:, head : head + 1] for k, v in given.items()}, **{name: number}
            )
            for head, number in enumerate(NUMBERS[-1])
        ],
        dim=1,
    )
    for numbers in NUMBERS:
        assert torch.equal(scaled_dot_product_attention(**given, **{name: numbers}), wanted)


def test_a_seed_is_made_on_the_cpu():
    given = tensors(dropout_p=0.5)
    given["query"].requires_grad_(True)
    want = scaled_dot_product_attention(**given, dropout_seed=3)
    with torch.device("meta"):
        got = scaled_dot_product_attention(**given, dropout_seed=3)
    assert torch.equal(got, want)
    most = 2**64 - 1
    got = scaled_dot_product_attention(**given, dropout_seed=np.uint64(most))
    assert torch.equal(got, scaled_dot_product_attention(**given, dropout_seed=most))


@pytest.mark.parametrize("requires_grad", [False, True])
def test_numbers_of_numpy_are_numbers(requires_grad):
    query, key, value = (torch.ones(2, 4, 5, 8, requires_grad=requires_grad) for _ in range(3))
    options = {"window": (1, 2), "dropout_p": 0.5, "dropout_seed": 1, "dropout_origin": (1, 0, 2)}
    wanted = scaled_dot_product_attention(query, key, value, **options)
    for same in (
        {"window": np.array([1, 2])},
        {"window": range(1, 3)},
        {"window": (np.array(1), np.int64(2))},
        {"dropout_origin": np.array([1, 0, 2])},
        {"dropout_seed": np.array(1)},
        {"dropout_p": np.float64(0.5)},
    ):
        output = scaled_dot_product_attention(query, key, value, **options | same)
        assert torch.equal(output, wanted), same


@pytest.mark.parametrize("name", ["scale", "softcap", "dropout_p"])
def test_a_gradient_that_would_be_lost_is_refused(name):
    number = torch.tensor(0.3, requires_grad=True)
    given = tensors()
    with pytest.raises(TypeError, match=f"{name} must be"):
        scaled_dot_product_attention(**given, **{name: number})
    if name != "dropout_p":
        output = scaled_dot_product_attention(**given, **{name: 0.3})
        with torch.no_grad():
            assert torch.equal(scaled_dot_product_attention(**given, **{name: number}), output)
