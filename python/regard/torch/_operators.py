"""Regard's PyTorch operators: their schemas and named arguments.

All operators have the arguments of a call, which are derived from the table of options. The order
is differentiable tensors, other tensors, numbers. An option that may be one number or a tensor of
numbers has two arguments, of which at most one is given. A sparse mask is three tensors and a list
of integers (see `_sparse`), and a score function is a list of addresses (see `_score_function`).

A layout is the arrangement of sequences in tensors: on separate axes, or packed one after another.
Its operators have the same arguments, and the starts of packed sequences in addition.
"""

from __future__ import annotations

from collections import namedtuple
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

import regard
from regard._arguments.option_table import OPTIONS
from regard._arguments.options import GradientOptions, names_of
from regard.torch._memory import dense_shape, packed_shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

OPTION_NAMES = names_of(GradientOptions)
_BY_TYPE: dict[str, tuple[tuple[str, str], ...]] = {
    "flag": (("bool", "{}"),),
    "number": (("float?", "{}"),),
    "number_or_numbers": (("float?", "{}"),),
    "integer": (("int?", "{}"),),
    "integers": (("SymInt?", "{}"),),
    "sides": (("SymInt?", "{}_left"), ("SymInt?", "{}_right")),
    "origin": (("SymInt[]", "{}"),),
    "choice": (("str?", "{}"),),
    "function": (("int[]", "{}"),),
}

# The types of options that may be one number or a tensor of numbers.
NUMBER_OR_TENSOR = ("integers", "number_or_numbers")
# The arguments of a sparse mask.
SPARSE_TENSORS = ("mask_starts", "mask_spans", "mask_bits")
SPARSE_NUMBERS = "mask_numbers"


def tensor_name(option: str) -> str:
    """Return the name of the tensor argument of an option that may also be one number."""
    return f"{option}_tensor"


def _schema_of(options: list[str], kinds: dict[str, tuple[tuple[str, str], ...]]) -> dict[str, str]:
    return {
        form.format(name): kind
        for name in options
        for kind, form in kinds.get(OPTIONS[name].type, ())
    }


def _named(name: str, fields: Iterable[str]) -> Any:
    """Create a named tuple whose fields are unknown to type checkers."""
    made: Any = namedtuple(name, fields)  # type: ignore[misc]
    return made


_DIFFERENTIABLE = [name for name in OPTION_NAMES if OPTIONS[name].is_differentiable]
_OTHERS = [name for name in OPTION_NAMES if name not in _DIFFERENTIABLE]
_INPUTS = {
    **dict.fromkeys(("query", "key", "value"), "Tensor"),
    **dict.fromkeys(("float_mask", *_DIFFERENTIABLE), "Tensor?"),
}
_MASK_TENSORS = ("bool_mask", *SPARSE_TENSORS)
_TENSORS = dict.fromkeys(_MASK_TENSORS, "Tensor?") | _schema_of(
    _OTHERS,
    {
        **dict.fromkeys(NUMBER_OR_TENSOR, (("Tensor?", tensor_name("{}")),)),
        "seed": (("Tensor?", "{}"),),
    },
)
_NUMBERS = {SPARSE_NUMBERS: "SymInt[]"} | _schema_of(_OTHERS, _BY_TYPE)

# The differentiable inputs.
INPUTS = tuple(_INPUTS)


class Operator(NamedTuple):
    """A PyTorch operator."""

    run: Any
    arguments: Any
    """A named tuple class of its arguments, with the arguments of the call in the middle."""
    tensors: tuple[str, ...]
    """The names of the leading arguments, which are tensors or None."""

    @property
    def name(self) -> str:
        """The operator's name without the library prefix."""
        return str(self.arguments.__name__)

    def __call__(self, *given: Any) -> Any:
        return self.run(*given)


library = torch.library.Library("regard", "FRAGMENT")

_OUTPUTS = {"output": "Tensor", "lse": "Tensor"}
_GRADIENTS_OF_OUTPUTS = {"grad_output": "Tensor", "grad_lse": "Tensor?"}


class Layout:
    """The operators for one layout of the sequences.

    Attributes
    ----------
    name : str
        The end of the names of its operators, and of the functions in `regard`.
    starts : tuple of str
        The arguments that specify where packed sequences start.
    attend : callable
        The call on NumPy arrays.
    output_shape : callable
        Computes the shape of the output from the shapes of query, key and value.
    Call : type
        A named tuple class of the arguments of a call.
    attention, attention_backward : Operator
        The call and its gradients. Empty tensors represent unwanted gradients.
    """

    def __init__(
        self, name: str, starts: tuple[str, ...], output_shape: Callable[..., tuple[int, ...]]
    ) -> None:
        self.name, self.starts, self.output_shape = name, starts, output_shape
        self.attend = getattr(regard, f"scaled_dot_product_attention{name}")
        self._tensors = _INPUTS | dict.fromkeys(starts, "Tensor") | _TENSORS
        self.Call = _named("Call", (*self._tensors, *_NUMBERS))
        self._fields_of_call = attrgetter(*self.Call._fields)
        self.attention = self.operator("attention", {}, tuple(_OUTPUTS))
        self.attention_backward = self.operator(
            "attention_backward",
            _GRADIENTS_OF_OUTPUTS | _OUTPUTS,
            tuple(f"grad_{each}" for each in INPUTS),
            {"wanted": "bool[]"},
        )

    @property
    def backward(self) -> Callable[..., Any]:
        """The gradients of the call on NumPy arrays."""
        backward: Callable[..., Any] = getattr(
            regard, f"scaled_dot_product_attention{self.name}_backward"
        )
        return backward

    def operator(
        self,
        name: str,
        before: dict[str, str],
        results: tuple[str, ...],
        after: dict[str, str] | None = None,
    ) -> Operator:
        """Define an operator with the arguments of a call, and others before and after them."""
        verb, *rest = name.split("_", 1)
        name = "_".join([verb + self.name, *rest])
        tensors = before | self._tensors
        arguments = tensors | _NUMBERS | (after or {})
        given = ", ".join(f"{kind} {argument}" for argument, kind in arguments.items())
        returned = ", ".join(f"Tensor {result}" for result in results)
        library.define(f"{name}({given}) -> ({returned})")
        run = getattr(torch.ops.regard, name).default
        return Operator(run, _named(name, arguments), tuple(tensors))

    def call_of(self, arguments: Any) -> Any:
        """Extract the arguments of the call from the arguments of an operator."""
        return self.Call._make(self._fields_of_call(arguments))

    def starts_of(self, call: Any) -> tuple[Any, ...]:
        """Return the starts of packed sequences, if there are any."""
        return tuple(getattr(call, name) for name in self.starts)

    def shape_of(self, call: Any) -> tuple[int, ...]:
        """Return the shape of the output of a call."""
        return self.output_shape(call.query.shape, call.key.shape, call.value.shape)


dense = Layout("", (), dense_shape)
ragged = Layout("_ragged", ("query_starts", "key_starts"), packed_shape)

# Packed sequences have derivatives of the first order in reverse mode only.
attention_jvp = dense.operator(
    "attention_jvp",
    dict.fromkeys(("tangent_query", "tangent_key", "tangent_value"), "Tensor?"),
    ("output", "tangent_output", "lse", "tangent_lse"),
)
attention_double_backward = dense.operator(
    "attention_double_backward",
    dict.fromkeys(("grad_grad_query", "grad_grad_key", "grad_grad_value"), "Tensor?")
    | _GRADIENTS_OF_OUTPUTS
    | _OUTPUTS,
    ("grad_grad_output", "grad_grad_lse", "grad_query", "grad_key", "grad_value"),
)
