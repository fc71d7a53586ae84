"""The computations that XLA runs: the NumPy calls, with the axes that `jax.vmap` adds."""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.masks import Masks
from regard._arguments.option_table import ARRAY_OPTIONS, DIFFERENTIABLE, OPTIONS
from regard._attention.dense import scaled_dot_product_attention
from regard._gradients.backward import AttentionGradients, scaled_dot_product_attention_backward
from regard._gradients.jvp import scaled_dot_product_attention_jvp
from regard.jax import _sparse
from regard.jax._second_order import double_backward

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]
    Arrays = dict[str, Any]
    Options = dict[str, Any]

_ROLES = ("query", "key", "value")
# The two kinds of masks have separate names, since a call may have both.
DIFFERENTIABLE_INPUTS = (*_ROLES, "float_mask", *DIFFERENTIABLE)
# The array options without a batch axis.
_OF_ALL_ENTRIES = {
    "dropout_seed",
    *(name for name in ARRAY_OPTIONS if "batch" not in OPTIONS[name].axes),
}


@dataclass(frozen=True)
class Computation:
    """A function of named arrays, with everything that is known when a program is traced."""

    function: str
    """One of the names in `_FUNCTIONS`."""
    names: tuple[str, ...]
    axes: int
    """The number of axes of query, key and value, without the axes that `jax.vmap` adds."""
    options: tuple[tuple[str, Any], ...]

    def as_text(self) -> str:
        """Serialize to a text that `of_text` reads."""
        return json.dumps(astuple(self))

    @staticmethod
    @lru_cache(maxsize=256)
    def of_text(text: str) -> Computation:
        """Read a text that `as_text` returned."""
        return Computation(*json.loads(text))

    def __call__(self, arrays: Sequence[Array], results: Sequence[Array]) -> None:
        """Fill the results of all mapped calls, with one call if their entries are independent."""
        given = dict(zip(self.names, arrays, strict=True))
        added = given["query"].ndim - self.axes
        mapped = np.broadcast_shapes(*(array.shape[:added] for array in arrays))
        given = {
            name: np.broadcast_to(array, mapped + array.shape[added:])
            for name, array in given.items()
        }
        # These options cannot differ between batch entries, and dropout counts the entries.
        is_apart = not _OF_ALL_ENTRIES & (given.keys() | dict(self.options).keys())
        if not mapped or is_apart:
            self._compute(given, results)
            return
        for index in np.ndindex(*mapped):
            entry = {name: array[index] for name, array in given.items()}
            self._compute(entry, [result[index] for result in results])

    def _compute(self, given: Arrays, results: Sequence[Array]) -> None:
        options = dict(self.options)
        for name in ARRAY_OPTIONS:
            if name in given:
                options[name] = given.pop(name)
        if "dropout_seed" in given:
            options["dropout_seed"] = int(given.pop("dropout_seed"))
        shown, numbers = given.pop("bool_mask", None), options.pop("sparse_mask", None)
        if numbers is not None:
            shown = _sparse.sparse_of([given.pop(name) for name in _sparse.NAMES], numbers)
        options["mask"] = Masks(shown, given.pop("float_mask", None)).argument
        _FUNCTIONS[self.function](given, options, results)


def _attend(given: Arrays, options: Options, results: Sequence[Array]) -> None:
    """Fill the output, and lse if it is among the results."""
    if len(results) == 1:
        scaled_dot_product_attention(**given, **options, out=results[0])
    else:
        options |= {"return_lse": True, "out": results[0]}
        _, results[1][...] = scaled_dot_product_attention(**given, **options)


def _attend_with_residual(given: Arrays, options: Options, results: Sequence[Array]) -> None:
    """Fill the output and a finite lse, because `jax.debug_infs` refuses any infinity."""
    _attend(given, options, results)
    lse = results[1]
    lse[np.isneginf(lse)] = np.finfo(lse.dtype).min


def _of_residual(lse: Array) -> Array:
    """Return the lse of a residual, which is -inf in fully masked rows."""
    return np.where(lse == np.finfo(lse.dtype).min, -np.inf, lse).astype(lse.dtype, copy=False)


def _backward(given: Arrays, options: Options, results: Sequence[Array]) -> None:
    """Fill the gradients of the inputs that the option `with_respect_to` names."""
    given["lse"] = _of_residual(given["lse"])
    names = [name.removeprefix("float_") for name in options.pop("with_respect_to")]
    out = AttentionGradients(**dict(zip(names, results, strict=True)))
    scaled_dot_product_attention_backward(**given, **options, with_respect_to=names, out=out)


def _double_backward(given: Arrays, options: Options, results: Sequence[Array]) -> None:
    """Fill the gradients of the gradients of query, key and value.

    They are taken with respect to the gradient of the output, query, key, value, and the gradient
    of lse if there is one. The last is the derivative of lse along the gradients' gradients.
    """
    filled = double_backward(given, options)
    if "grad_lse" in given:
        arguments = {role: given[role] for role in _ROLES} | options | {"return_lse": True}
        arguments |= {f"tangent_{role}": given[f"grad_grad_{role}"] for role in _ROLES}
        *_, of_lse = scaled_dot_product_attention_jvp(**arguments)
        filled.append(of_lse)
    with np.errstate(over="ignore"):  # of 16 bits
        for result, computed in zip(results, filled, strict=True):
            result[...] = computed


_FUNCTIONS = {
    "attend": _attend,
    "attend_with_residual": _attend_with_residual,
    "backward": _backward,
    "double_backward": _double_backward,
}
