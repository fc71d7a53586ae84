"""What is computed when XLA runs: the NumPy calls, with the axes that `jax.vmap` adds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._attention import scaled_dot_product_attention
from regard._backward import scaled_dot_product_attention_backward
from regard._double_backward import scaled_dot_product_attention_double_backward
from regard._jvp import scaled_dot_product_attention_jvp

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Array = NDArray[Any]
    Arrays = dict[str, Any]
    Options = dict[str, Any]

# The options that may be arrays, and the inputs that have gradients. Of the two kinds of masks each
# has a name of its own, since a call may have both.
ARRAY_OPTIONS = ("query_offset", "key_lengths", "left_padding", "alibi_slopes", "sinks")
DIFFERENTIABLE = ("query", "key", "value", "float_mask", "alibi_slopes", "sinks")
_GRADIENTS = {"float_mask": "mask"}


@dataclass(frozen=True)
class Computation:
    """A function of named arrays, with all that is known of them when a program is traced."""

    function: Callable[..., tuple[Array, ...]]
    names: tuple[str, ...]
    axes: int
    """How many axes query, key and value have before `jax.vmap` adds any."""
    options: tuple[tuple[str, Any], ...]

    def __call__(self, *arrays: Array) -> tuple[Array, ...]:
        """Compute all mapped calls, as one wherever one call can tell them apart."""
        given = dict(zip(self.names, arrays, strict=True))
        added = given["query"].ndim - self.axes
        mapped = np.broadcast_shapes(*(array.shape[:added] for array in arrays))
        given = {
            name: np.broadcast_to(array, mapped + array.shape[added:])
            for name, array in given.items()
        }
        # Sinks are one number for each head in all batch entries, and dropout counts entries.
        if not mapped or not {"sinks", "dropout_seed"} & (given.keys() | dict(self.options).keys()):
            return self._computed(given)
        parts = [
            self._computed({name: array[index] for name, array in given.items()})
            for index in np.ndindex(*mapped)
        ]
        return tuple(
            np.stack(part).reshape(*mapped, *part[0].shape) for part in zip(*parts, strict=True)
        )

    def _computed(self, given: Arrays) -> tuple[Array, ...]:
        options = dict(self.options)
        for name in ARRAY_OPTIONS:
            if name in given:
                options[name] = given.pop(name)
        if "dropout_seed" in given:
            options["dropout_seed"] = int(given.pop("dropout_seed"))
        masks = [given.pop(name) for name in ("bool_mask", "float_mask") if name in given]
        options["mask"] = tuple(masks) if len(masks) == 2 else masks[0] if masks else None
        return self.function(given, options)


def attend(given: Arrays, options: Options) -> tuple[Array, ...]:
    """Return the output, and lse if it is asked for."""
    result = scaled_dot_product_attention(**given, **options)
    return result if isinstance(result, tuple) else (result,)


def backward(given: Arrays, options: Options) -> tuple[Array, ...]:
    """Return the gradients of the inputs that the option `with_respect_to` names."""
    names = tuple(_GRADIENTS.get(name, name) for name in options.pop("with_respect_to"))
    gradients = scaled_dot_product_attention_backward(**given, **options, with_respect_to=names)
    return tuple(getattr(gradients, name) for name in names)


def double_backward(given: Arrays, options: Options) -> tuple[Array, ...]:
    """Return the gradients of the gradients of query, key and value.

    They are those with respect to the gradient of the output, query, key and value, and that of lse
    if there is one. The last is the derivative of lse along the gradients' gradients.
    """
    of_output, *of_inputs = scaled_dot_product_attention_double_backward(**given, **options)
    if "grad_lse" not in given:
        return (of_output, *of_inputs)
    roles = ("query", "key", "value")
    arguments = {role: given[role] for role in roles} | options | {"return_lse": True}
    arguments |= {f"tangent_{role}": given[f"grad_grad_{role}"] for role in roles}
    *_, of_lse = scaled_dot_product_attention_jvp(**arguments)
    return (of_output, *of_inputs, of_lse)
