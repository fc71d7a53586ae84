"""Bad input raises an error that names the argument, in a direct call and in a recorded one."""

import re
import warnings

import numpy as np
import pytest

from torch_problems import scaled_dot_product_attention, torch

SHAPES = {"query": (2, 4, 5, 8), "key": (2, 4, 9, 8), "value": (2, 4, 9, 6)}


def tensors(**others):
    return {name: torch.zeros(shape) for name, shape in SHAPES.items()} | others


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyTorch warns that nested tensors are a prototype
    NESTED, JAGGED = (
        torch.nested.nested_tensor([torch.zeros(3, 8), torch.zeros(7, 8)], layout=layout)
        for layout in (torch.strided, torch.jagged)
    )
NOT_NESTED = "must be a dense tensor, got a nested tensor: "
OTHER_LAYOUT = NOT_NESTED + "create it with layout=torch.jagged"
ALL_OR_NONE = NOT_NESTED + "query, key and value must all be nested"
PAD = NOT_NESTED + "pass a dense tensor, such as its torch.nested.to_padded_tensor"
ERRORS = {
    "array": ({"query": np.zeros((4, 5, 8), np.float32)}, TypeError, "query must be a tensor"),
    "none": ({"value": None}, TypeError, "value must be a tensor, got NoneType"),
    "integers": ({"key": torch.zeros(2, 4, 9, 8, dtype=torch.int64)}, TypeError, "key .*int64"),
    "complex": ({"query": torch.zeros(5, 8, dtype=torch.complex64)}, TypeError, "query .*complex"),
    "float8": ({"query": torch.zeros(5, 8).to(torch.float8_e5m2)}, TypeError, "query .*float8"),
    "types": (
        {"key": torch.zeros(2, 4, 9, 8).half()},
        TypeError,
        "key must have the type of query",
    ),
    "devices": ({"value": torch.zeros(9, 6, device="meta")}, ValueError, "value .*device.*meta"),
    "sparse": ({"key": torch.zeros(9, 8).to_sparse()}, TypeError, "key must be a dense tensor"),
    "sparse mask": (
        {"attn_mask": torch.zeros(5, 9).to_sparse()},
        TypeError,
        r"attn_mask must be a dense tensor, got layout torch.sparse_coo: .*to_dense\(\)",
    ),
    "sparse option": (
        {"sinks": torch.zeros(4).to_sparse()},
        TypeError,
        "sinks must be a dense tensor, got layout torch.sparse_coo",
    ),
    "nested": (
        {"query": NESTED, "key": NESTED, "value": NESTED},
        TypeError,
        f"query {OTHER_LAYOUT}",
    ),
    "nested value": ({"value": NESTED}, TypeError, f"value {OTHER_LAYOUT}"),
    "nested mask": ({"attn_mask": NESTED}, TypeError, f"attn_mask {PAD}"),
    "nested option": ({"key_lengths": NESTED}, TypeError, f"key_lengths {PAD}"),
    "jagged query": ({"query": JAGGED}, TypeError, f"query {ALL_OR_NONE}"),
    "jagged key and value": ({"key": JAGGED, "value": JAGGED}, TypeError, f"key {ALL_OR_NONE}"),
    "jagged and nested": (
        {"query": JAGGED, "key": JAGGED, "value": NESTED},
        TypeError,
        f"query {ALL_OR_NONE}",
    ),
    "jagged mask": ({"attn_mask": JAGGED}, TypeError, f"attn_mask {PAD}"),
    "one axis": ({"query": torch.zeros(8)}, ValueError, "query must have at least 2 axes"),
    "heads": (
        {"key": torch.zeros(2, 2, 9, 8), "value": torch.zeros(2, 2, 9, 6)},
        ValueError,
        "equal numbers of heads, or enable_gqa=True",
    ),
    "heads after the length": (
        {
            "query": torch.zeros(2, 7, 3, 8),
            "key": torch.zeros(2, 9, 3, 8),
            "value": torch.zeros(2, 9, 3, 8),
        },
        ValueError,
        r"pass tensor.transpose\(-3, -2\) if the heads come after the length",
    ),
    "groups": (
        {
            "key": torch.zeros(2, 3, 9, 8),
            "value": torch.zeros(2, 3, 9, 6),
            "enable_gqa": True,
        },
        ValueError,
        "heads",
    ),
    "groups of key and value": (
        {"query": torch.zeros(2, 6, 5, 8), "key": torch.zeros(2, 3, 9, 8), "enable_gqa": True},
        ValueError,
        "number of heads of query must be a multiple of the numbers for key and value, got 6, 3 "
        "and 4",
    ),
    "no heads": (
        {"key": torch.zeros(2, 0, 9, 8), "enable_gqa": True},
        ValueError,
        "heads of query must be a multiple of .*, got 4, 0 and 4",
    ),
    "no head_dim": (
        {"query": torch.zeros(2, 4, 5, 0), "key": torch.zeros(2, 4, 9, 0)},
        ValueError,
        r"query and key must have a head_dim of at least 1, got shapes \(2, 4, 5, 0\) and",
    ),
    "no head_dim of key": ({"key": torch.zeros(2, 4, 9, 0)}, ValueError, "head_dim"),
    "no head_dim of query": ({"query": torch.zeros(2, 4, 5, 0)}, ValueError, "head_dim"),
    "head_dim": ({"key": torch.zeros(2, 4, 9, 7)}, ValueError, "key"),
    "lengths": ({"value": torch.zeros(2, 4, 8, 6)}, ValueError, "value"),
    "batch": ({"query": torch.zeros(3, 4, 5, 8)}, ValueError, "batch|broadcast"),
    "mask array": ({"attn_mask": np.ones((5, 9), bool)}, TypeError, "attn_mask .*ndarray"),
    "mask integers": ({"attn_mask": torch.ones(5, 9).int()}, TypeError, "attn_mask .*int32"),
    "mask pair": ({"attn_mask": (torch.ones(5, 9),) * 2}, TypeError, "attn_mask .*float32 and"),
    "mask triple": ({"attn_mask": (torch.ones(9) > 0,) * 3}, TypeError, "attn_mask"),
    "mask shape": ({"attn_mask": torch.ones(5, 8)}, ValueError, "^attn_mask must broadcast"),
    "mask device": ({"attn_mask": torch.ones(5, 9, device="meta")}, ValueError, "attn_mask .*meta"),
    "scale of text": ({"scale": "1"}, TypeError, "scale must be a real number, got str"),
    "scale of bool": ({"scale": True}, TypeError, "scale must be a real number, got bool"),
    "causal number": ({"is_causal": 1}, TypeError, "is_causal must be True or False, got int"),
    "threads of bool": ({"threads": True}, TypeError, "threads must be an int.*, got bool"),
    "sinks of bool": ({"sinks": [True] * 4}, TypeError, "sinks must be .*bool"),
    "window of bool": ({"window": (True, 1)}, TypeError, "window"),
    "window beyond 64 bits": ({"window": (2**70, 1)}, ValueError, "window.* must fit in 64 bits"),
    "offset beyond 64 bits": ({"query_offset": 2**70}, ValueError, "query_offset must fit in 64"),
    "offset of another case": ({"query_offset": "End"}, ValueError, "query_offset .* got 'End'"),
    "origin without axes": (
        {"dropout_p": 0.5, "dropout_seed": 1, "dropout_origin": np.array(1)},
        TypeError,
        "dropout_origin must be three integers",
    ),
    "window": ({"window": 4}, TypeError, "window"),
    "window of three": ({"window": (1, 2, 3)}, ValueError, "window"),
    "window of floats": ({"window": (1.5, 2)}, TypeError, "window"),
    "negative window": ({"window": (-1, 2)}, ValueError, "window"),
    "offset": ({"query_offset": "start"}, (TypeError, ValueError), "query_offset"),
    "no offset": ({"query_offset": None}, TypeError, "query_offset"),
    "offset shape": ({"query_offset": torch.tensor([1, 2, 3])}, ValueError, "query_offset"),
    "offset of floats": ({"query_offset": torch.tensor([1.0, 2.0])}, TypeError, "query_offset"),
    "lengths option": ({"key_lengths": torch.tensor([9, 10])}, ValueError, "key_lengths"),
    "lengths device": (
        {"key_lengths": torch.zeros(2, dtype=torch.int64, device="meta")},
        ValueError,
        "key_lengths",
    ),
    "padding": ({"left_padding": -1}, ValueError, "left_padding"),
    "slopes": ({"alibi_slopes": torch.zeros(3)}, ValueError, "alibi_slopes"),
    "slopes of strings": ({"alibi_slopes": ["a"] * 4}, TypeError, "alibi_slopes"),
    "table of strings": ({"distance_bias": [["a"]]}, TypeError, "distance_bias"),
    "table of even size": ({"distance_bias": torch.zeros(4, 6)}, ValueError, "distance_bias"),
    "table of heads": ({"distance_bias": torch.zeros(3, 5)}, ValueError, "distance_bias"),
    "scale of heads": ({"scale": torch.zeros(3)}, ValueError, "scale"),
    "scale of bools": ({"scale": [True] * 4}, TypeError, "scale must be .*bool"),
    "softcap of heads": ({"softcap": torch.tensor([1.0, 2.0, 0.0, 1.0])}, ValueError, "softcap"),
    "sinks": ({"sinks": torch.zeros(2, 4)}, ValueError, "sinks"),
    "softcap": ({"softcap": -1.0}, ValueError, "softcap"),
    "dropout": ({"dropout_p": 1.5}, ValueError, "dropout_p"),
    "seed": ({"dropout_p": 0.5, "dropout_seed": -1}, ValueError, "dropout_seed"),
    "large seed": ({"dropout_p": 0.5, "dropout_seed": 2**64}, ValueError, "dropout_seed"),
    "float seed": ({"dropout_p": 0.5, "dropout_seed": 0.5}, TypeError, "dropout_seed"),
    "seeds": (
        {"dropout_p": 0.5, "dropout_seed": torch.tensor([1, 2])},
        TypeError,
        "dropout_seed",
    ),
    "origin": (
        {"dropout_p": 0.5, "dropout_origin": 3},
        (TypeError, ValueError),
        "dropout_origin",
    ),
    "threads": ({"threads": 0}, ValueError, "threads"),
}
each_error = pytest.mark.parametrize(("given", "error", "match"), ERRORS.values(), ids=ERRORS)


@each_error
def test_errors(given, error, match):
    with pytest.raises(error, match=match):
        scaled_dot_product_attention(**tensors(**given))


@each_error
def test_errors_where_a_gradient_is_wanted(given, error, match):
    given = {"dropout_seed": 0} | tensors(**given)
    for name in SHAPES:
        tensor = given[name]
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and not tensor.is_sparse:
            tensor.requires_grad_()
    with pytest.raises(error, match=match):
        scaled_dot_product_attention(**given)


def test_errors_leave_the_next_call_alone():
    given = tensors()
    for _ in range(3):
        with pytest.raises(ValueError, match="alibi_slopes"):
            scaled_dot_product_attention(**given, alibi_slopes=torch.zeros(3))
        assert scaled_dot_product_attention(**given).shape == (2, 4, 5, 6)


def test_bfloat16_without_ml_dtypes(run_python):
    done = run_python(
        """
        import sys
        sys.modules["ml_dtypes"] = None
        import torch, regard.torch
        x = torch.ones(2, 3, 8)
        regard.torch.scaled_dot_product_attention(x, x, x)
        regard.torch.scaled_dot_product_attention(*[x.bfloat16()] * 3)
        """
    )
    assert re.search(r"bfloat16 tensors needs the ml_dtypes package: in a clone", done.stderr)


def test_without_pytorch(run_python):
    done = run_python(
        """
        import sys
        sys.modules["torch"] = None
        import regard
        import regard.torch
        """
    )
    told = 'needs the torch package: in a clone of regard, pip install ".[torch]"'
    assert f"ImportError: regard.torch {told}" in done.stderr


def test_regard_does_not_import_pytorch(output_of):
    assert output_of("import sys, regard; print('torch' in sys.modules)") == "False"


@pytest.mark.parametrize(
    ("name", "shape"),
    [("scale", ()), ("scale", (4,)), ("softcap", ()), ("softcap", (4,)), ("dropout_p", ())],
)
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is:DeprecationWarning")
def test_a_number_with_a_gradient_is_refused(name, shape):
    """Its gradient would be lost."""
    number = torch.full(shape, 0.3, requires_grad=True)
    given = tensors(**{name: number})
    given["query"].requires_grad_(True)
    with pytest.raises(TypeError, match=f"{name} must be"):
        scaled_dot_product_attention(**given)
    if name == "dropout_p":
        return
    with pytest.raises(TypeError, match=f"{name} must be a number or a tensor that requires no"):
        torch.func.grad(lambda x: scaled_dot_product_attention(**given | {name: x}).sum())(number)
    number = number.detach()
    output = scaled_dot_product_attention(**given | {name: number})
    with torch.no_grad():
        given[name] = number.clone().requires_grad_()
        assert torch.equal(scaled_dot_product_attention(**given), output)


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


def test_a_seed_on_another_device_is_refused_or_not_made():
    given = tensors(dropout_p=0.5)
    given["query"].requires_grad_(True)
    with pytest.raises(ValueError, match="dropout_seed must contain a number"):
        scaled_dot_product_attention(**given, dropout_seed=torch.tensor(3, device="meta"))
    want = scaled_dot_product_attention(**given, dropout_seed=3)
    with torch.device("meta"):
        got = scaled_dot_product_attention(**given, dropout_seed=3)
    assert torch.equal(got, want)
    most = 2**64 - 1
    got = scaled_dot_product_attention(**given, dropout_seed=np.uint64(most))
    assert torch.equal(got, scaled_dot_product_attention(**given, dropout_seed=most))


@pytest.mark.parametrize("name", ["key_lengths", "alibi_slopes"])
def test_an_option_may_change_after_the_call(name):
    """Gradients belong to the call as it was made."""
    option = {"key_lengths": np.array([7, 3]), "alibi_slopes": np.array([0.1, 0.2, 0.3, 0.4])}[name]
    given = {k: torch.randn(v.shape) for k, v in tensors().items()}
    given["query"].requires_grad_(True)
    gradients = []
    for changes in (False, True):
        own = option.copy()
        output = scaled_dot_product_attention(**given, **{name: own})
        own -= own * changes
        gradients += torch.autograd.grad(output.sum(), given["query"])
    assert torch.equal(*gradients)


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


def test_lists_of_tensors_are_numbers():
    query = torch.ones(2, 4, 5, 8, requires_grad=True)
    sinks = torch.arange(4.0)
    wanted = scaled_dot_product_attention(query, query, query, sinks=sinks.tolist())
    output = scaled_dot_product_attention(query, query, query, sinks=list(sinks))
    assert torch.equal(output, wanted)
