"""Convert the options of a call for the operators, and for the calls on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.compiler import is_compiling

from regard._arguments.masks import Masks
from regard._arguments.numbers import MOST, count, flag, offsets, real_number
from regard._arguments.option_table import OPTIONS, Subject
from regard.torch._memory import NO_TENSORS, as_array, as_optional_array
from regard.torch._operators import (
    INPUTS,
    NUMBER_OR_TENSOR,
    OPTION_NAMES,
    SPARSE_NUMBERS,
    Layout,
    dense,
    tensor_name,
)
from regard.torch._score_function import addresses_of, score_function_of
from regard.torch._sparse import shown_fields, shown_of

_MAX_SEED = 2**64 - 1
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)

_TYPES = {name: OPTIONS[name].type for name in OPTION_NAMES}
# The arguments of a call without options. An offset defaults to a number; None means "end".
_DEFAULTS = dict.fromkeys(dense.Call._fields)
_DEFAULTS |= {
    name: list(OPTIONS[name].default) if option_type == "origin" else OPTIONS[name].default
    for name, option_type in _TYPES.items()
    if name in _DEFAULTS
}
_DEFAULTS |= {SPARSE_NUMBERS: [], "score_function": []}
_DROPOUT = frozenset(n for n in OPTION_NAMES if OPTIONS[n].subject is Subject.DROPOUT)
# Options that may be tensors without a gradient, and advice if a gradient is needed.
WITHOUT_GRADIENT = {
    "scale": "multiply query by it instead, or pass it as .detach()",
    "softcap": "pass it as .detach()",
}


def call_with(
    layout: Layout,
    tensors: tuple[Tensor, ...],
    masks: tuple[Any, Tensor | None],
    options: dict[str, Any],
) -> Any:
    """Return the arguments of the operators from the arguments of the public function.

    `tensors` are query, key and value, followed by the starts of packed sequences. `masks` are the
    bool or sparse mask and the float mask, and `options` are the options that are not None. An
    argument of the wrong type raises TypeError. The kernels check the values.
    """
    query = tensors[0]
    names = ("query", "key", "value", *layout.starts)
    fields = {**_DEFAULTS, **dict(zip(names, tensors, strict=True)), **shown_fields(masks[0])}
    fields["float_mask"] = masks[1]
    for name, given in options.items():
        option_type = _TYPES[name]
        if option_type in ("numbers", "table"):
            fields[name] = tensor_of(name, given, query.device, torch.float64)
        elif option_type == "integers":
            fields[name], fields[tensor_name(name)] = _number_or_tensor(name, given, query.device)
        elif option_type == "number_or_numbers":
            fields[name], fields[tensor_name(name)] = _real_or_tensor(name, given, query.device)
        elif option_type == "function":
            fields[name] = addresses_of(given)
        elif option_type == "sides":
            fields[f"{name}_left"], fields[f"{name}_right"] = _sides(given)
        elif option_type == "seed":
            fields[name] = _seed_tensor(given)
        elif option_type == "origin":
            fields[name] = _origin(given)
        elif type(given) not in NO_TENSORS and isinstance(given, Tensor):
            raise TypeError(f"{name} must be a number, got a tensor, whose gradient would be lost")
        elif isinstance(given, _SYMBOLIC) or is_compiling():
            fields[name] = given
        else:
            fields[name] = _SCALARS.get(option_type, _unchanged)(name, given)
    return layout.Call(**fields)


def _unchanged(name: str, given: Any) -> Any:
    return given


def keywords_of(call: Any) -> dict[str, Any]:
    """Return the keywords of the calls on NumPy arrays from the arguments of the operators."""
    fields = call._asdict()
    masks = Masks(shown_of(call), as_optional_array(call.float_mask))
    keywords: dict[str, Any] = {} if masks.argument is None else {"mask": masks.argument}
    unused = set() if call.dropout_p else set(_DROPOUT)
    if call.score_function:
        unused.discard("dropout_origin")
    for name, option_type in _TYPES.items():
        if option_type == "sides":
            sides = fields[f"{name}_left"], fields[f"{name}_right"]
            if sides != (None, None):
                keywords[name] = sides
            continue
        given = fields[name]
        if option_type in NUMBER_OR_TENSOR and given is None:
            given = fields[tensor_name(name)]
            if given is None and OPTIONS[name].default is not None:
                given = "end"
        if given is None or given is _DEFAULTS[name] or name in unused:
            continue
        if option_type == "function":
            if not given:
                continue
            given = score_function_of(given)
        elif option_type == "seed":
            given = int(given) % 2**64
        elif type(given) not in NO_TENSORS and isinstance(given, Tensor):
            given = as_array(given)
        elif option_type == "origin":
            given = tuple(given)
        keywords[name] = given
    return keywords


def numpy_options(options: dict[str, Any]) -> dict[str, Any]:
    """Replace the tensors among the options with arrays."""
    arrays: dict[str, Any] = {}
    for name, option in options.items():
        if not isinstance(option, Tensor):
            arrays[name] = option
        elif name == "dropout_seed":
            arrays[name] = int(_seed_tensor(option)) % 2**64
        elif option.is_cpu:
            arrays[name] = as_array(option)
        else:
            raise ValueError(f"{name} must be on the device of query, cpu, got {option.device}")
    return arrays


def _number_or_tensor(
    name: str, given: Any, device: torch.device
) -> tuple[int | None, Tensor | None]:
    """Return an integer option as a number or as a tensor with one number per batch entry.

    If both are None, the option is "end".
    """
    if isinstance(given, str) and name == "query_offset":
        offsets(given, 0)
        return None, None
    if isinstance(given, (int, torch.SymInt)) and not isinstance(given, bool):
        return _integer(name, given), None
    return None, tensor_of(name, given, device)


def _real_or_tensor(
    name: str, given: Any, device: torch.device
) -> tuple[float | None, Tensor | None]:
    """Return a real option as a number or as a tensor with one number per head."""
    if isinstance(given, (Tensor, np.ndarray, list, tuple)):
        return None, tensor_of(name, given, device, torch.float64)
    if isinstance(given, _SYMBOLIC) or is_compiling():
        return given, None
    return real_number(name, given), None


def check_without_gradient(name: str, tensor: Tensor) -> None:
    """Raise TypeError if a tensor requires a gradient that regard does not compute."""
    if name not in INPUTS and tensor.requires_grad and torch.is_grad_enabled():
        raise TypeError(
            f"{name} must be a number or a tensor that requires no gradient, got a tensor, whose "
            f"gradient would be lost; {WITHOUT_GRADIENT.get(name, 'pass it as .detach()')}"
        )


def _integer(name: str, given: Any) -> Any:
    """Return a 64-bit or symbolic integer, or raise TypeError or ValueError."""
    if isinstance(given, torch.SymInt) or is_compiling():
        return given
    if isinstance(given, Tensor):
        raise TypeError(f"{name} must be an int, got a tensor")
    number = count(name, given, minimum=-MOST - 1)
    if number > MOST or number < -MOST - 1:
        raise ValueError(f"{name} must fit in 64 bits, got {number}")
    return number


def tensor_of(
    name: str, given: Any, device: torch.device, dtype: torch.dtype | None = None
) -> Tensor:
    """Return an option as a tensor. `dtype` applies to lists."""
    if not isinstance(given, Tensor):
        is_array = isinstance(given, (np.ndarray, np.generic))
        if _has_bools(given):
            raise TypeError(f"{name} must be numbers, got bools")
        try:
            if is_array:  # the caller may change the array before the backward pass
                given = np.array(given, given.dtype.newbyteorder("="))
            given = torch.as_tensor(given, dtype=None if is_array else dtype, device=device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"{name} must be a tensor or numbers, got {given!r}: {error}") from None
    if given.device != device:
        raise ValueError(f"{name} must be on the device of query, {device}, got {given.device}")
    return given


def _is_sequence(given: Any) -> bool:
    """Return whether this is a Python sequence, or an array with one axis."""
    is_array = isinstance(given, np.ndarray) and given.ndim == 1
    return is_array or isinstance(given, (tuple, list, range))


def _has_bools(given: Any) -> bool:
    """Return whether there is a bool among numbers, which PyTorch would convert."""
    if isinstance(given, (np.ndarray, np.generic)):
        return given.dtype == np.bool_
    if isinstance(given, (tuple, list)):
        return any(map(_has_bools, given))
    return isinstance(given, bool)


def _sides(window: Any) -> tuple[int | None, int | None]:
    """Return how far a window extends to each side, or raise TypeError or ValueError."""
    if not _is_sequence(window):
        raise TypeError(f"window must be a pair (left, right) of integers or None, got {window!r}")
    if len(window) != 2:
        raise ValueError(f"window must be a pair (left, right), got {len(window)} elements")
    left, right = (None if side is None else _integer("window", side) for side in window)
    return left, right


def _origin(given: Any) -> list[int]:
    """Return the dropout origin as a list, or raise TypeError or ValueError."""
    if not _is_sequence(given) or len(given) != 3:
        raise TypeError(
            f"dropout_origin must be three integers (entry, head, position), got {given!r}"
        )
    return [_integer("dropout_origin", number) for number in given]


def _seed_tensor(seed: Any) -> Tensor:
    """Return a seed as an int64 tensor with the same 64 bits."""
    if isinstance(seed, Tensor):
        if seed.ndim or seed.dtype.is_floating_point or seed.dtype == torch.bool:
            raise TypeError(
                "dropout_seed must be an integer or an integer tensor without axes, got a tensor "
                f"of {seed.dtype} and shape {tuple(seed.shape)}"
            )
        if seed.device.type == "meta":
            raise ValueError("dropout_seed must contain a number, got a tensor on the meta device")
        return seed
    if isinstance(seed, np.ndarray) and not seed.ndim and seed.dtype.kind in "iu":
        seed = seed[()]
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer, torch.SymInt)):
        raise TypeError(f"dropout_seed must be an integer, got {type(seed).__name__}")
    if not 0 <= seed <= _MAX_SEED:
        raise ValueError(f"dropout_seed must be from 0 to 2**64 - 1, got {seed}")
    seed = seed if isinstance(seed, torch.SymInt) else int(seed)
    signed = seed if seed < 2**63 else seed - 2**64
    return torch.full((), signed, dtype=torch.int64, device="cpu")


# Checks of the options that the operators accept as numbers and flags.
_SCALARS: dict[str, Callable[[str, Any], Any]] = {
    "flag": flag,
    "number": real_number,
    "integer": _integer,
}
