"""The options of a call as arguments of the operators, and as keywords of the NumPy calls.

An operator has one or two arguments for each option, which are None if the call does not have it:
`ARGUMENTS`, of which the first are `TENSORS`. A number for all entries or heads is another argument
than a tensor with a number for each.

A sparse mask is three tensors that share the memory of its arrays, so that a graph may contain
them, and some integers. A score function is its addresses. An operator may run long after the call
that recorded it, and any number of times. Functions that were given to an operator are therefore
kept alive until the process ends. The kernels call only addresses of functions that are kept, and
never an address that a graph brought from another process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.compiler import is_compiling, is_dynamo_compiling, is_exporting

import regard
from regard._arguments.arrays import shown
from regard._arguments.numbers import MOST, count, flag, offsets, real_number, window_sides
from regard._arguments.option_table import OPTIONS
from regard._arguments.options import GradientOptions, names_of
from regard.torch._memory import NO_TENSORS, as_array

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_TYPES = {name: OPTIONS[name].type for name in names_of(GradientOptions)}
ROLES = ("query", "key", "value")
# The differentiable tensors.
INPUTS: tuple[str, ...] = (*ROLES, "float_mask")
INPUTS += tuple(name for name in _TYPES if OPTIONS[name].is_differentiable)
STARTS = ("query_starts", "key_starts")
_SPARSE = ("mask_starts", "mask_spans", "mask_bits")
_SIDES = ("window_left", "window_right")
# The options that are a tensor, or one number for all, and the names of these numbers.
_OF_ALL = {
    name: f"{name}_of_all"
    for name, kind in _TYPES.items()
    if kind in ("integers", "number_or_numbers")
}
# The tensors that a call may have.
TENSORS: tuple[str, ...] = (*INPUTS, "bool_mask", *_SPARSE, *STARTS, *_OF_ALL, "dropout_seed")
_SCHEMAS = {
    "integers": "SymInt?",
    "number_or_numbers": "float?",
    "number": "float?",
    "integer": "SymInt?",
    "flag": "bool?",
    "choice": "str?",
    "origin": "SymInt[]?",
    "function": "int[]?",
}
_OTHERS = {"mask_numbers": "SymInt[]?", "query_offset_is_end": "bool?"}
_OTHERS |= dict.fromkeys(_SIDES, "SymInt?")
_OTHERS |= {
    _OF_ALL.get(name, name): _SCHEMAS[kind] for name, kind in _TYPES.items() if kind in _SCHEMAS
}
ARGUMENTS: tuple[str, ...] = (*TENSORS, *_OTHERS)
"""The names of the arguments of an operator."""
SCHEMA = ", ".join(
    (
        *(f"Tensor{'' if name in ROLES else '?'} {name}" for name in TENSORS),
        *(f"{kind} {name}" for name, kind in _OTHERS.items()),
    )
)
_WITHOUT_GRADIENT = {
    "scale": "multiply query by it instead, or pass it as .detach()",
    "softcap": "pass it as .detach()",
}


def checked(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call with options of the types that operators have, or raise TypeError.

    A call has the tensors by name, a sparse mask as ``mask``, and the options that are not None.
    The kernels check the values.
    """
    device = call["query"].device
    return {
        name: _checked(name, given, device) if name in _TYPES else given
        for name, given in call.items()
    }


def _checked(name: str, given: Any, device: torch.device) -> Any:
    kind = _TYPES[name]
    is_numbers = isinstance(given, (Tensor, np.ndarray, list, tuple))
    if kind in ("numbers", "table") or (kind == "number_or_numbers" and is_numbers):
        return tensor_of(name, given, device, torch.float64)
    if kind == "integers" and isinstance(given, str):
        offsets(given, 0)  # raises TypeError unless it is "end"
        return given
    if kind == "integers" and not _is_integer(given):
        return tensor_of(name, given, device)
    if kind == "function":
        return _checked_function(given)
    if kind == "sides":
        return _sides(given)
    if kind == "origin":
        return _origin(given)
    if kind == "seed":
        return given
    if isinstance(given, Tensor):
        raise TypeError(f"{name} must be a number, got a tensor, whose gradient would be lost")
    if kind == "choice" or is_compiling() or isinstance(given, _SYMBOLIC):
        return given
    if kind in ("number", "number_or_numbers"):
        return real_number(name, given)
    return flag(name, given) if kind == "flag" else _integer(name, given)


def packed(found: dict[str, Any]) -> tuple[Any, ...]:
    """Return the arguments of the operators for a checked call."""
    given = dict(found)
    if "mask" in given:
        mask = given["mask"]
        rows, block = mask._rows, mask._block or (0, 0)
        arrays = rows.starts, rows.spans, rows.bits
        given.update(zip(_SPARSE, map(_shared, arrays), strict=True))
        layout = rows.row_queries, rows.first_query, rows.first_key, *block
        given["mask_numbers"] = (*rows.shape[-2:], *layout)
    if "score_function" in given and not isinstance(given["score_function"], tuple):
        given["score_function"] = _kept(given["score_function"])
    if "window" in given:
        given.update(zip(_SIDES, given["window"], strict=True))
    if isinstance(given.get("query_offset"), str):
        given["query_offset_is_end"] = True
        del given["query_offset"]
    for name, of_all in _OF_ALL.items():
        if name in given and not isinstance(given[name], Tensor):
            given[of_all] = given.pop(name)
    return tuple(given.get(name) for name in ARGUMENTS)


def unpacked(*given: Any) -> dict[str, Any]:
    """Return a checked call from the arguments that `packed` returns.

    The parts of sparse masks and score functions keep their own names, because tensors of a
    compiler have no elements.
    """
    found = {
        name: tuple(each) if isinstance(each, list) else each
        for name, each in zip(ARGUMENTS, given, strict=True)
        if each is not None
    }
    for name, of_all in _OF_ALL.items():
        if of_all in found:
            found[name] = found.pop(of_all)
    if found.pop("query_offset_is_end", False):
        found["query_offset"] = "end"
    left, right = (found.pop(side, None) for side in _SIDES)
    if (left, right) != (None, None):
        found["window"] = left, right
    return found


def numpy_keywords(call: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the NumPy calls for a call with tensors, or arrays in their place."""
    words: dict[str, Any] = {
        name: as_array(each) if type(each) not in NO_TENSORS and isinstance(each, Tensor) else each
        for name, each in call.items()
    }
    if "dropout_seed" in words:
        words["dropout_seed"] = int(words["dropout_seed"]) % 2**64
    if isinstance(words.get("score_function"), tuple):
        words["score_function"] = score_function_of(words["score_function"])
    masks = [words.pop(name) for name in ("mask", "bool_mask") if name in words]
    if "mask_numbers" in words:
        masks = [_sparse_of([words.pop(name) for name in _SPARSE], words.pop("mask_numbers"))]
    if "float_mask" in words:
        masks.append(words.pop("float_mask"))
    if masks:
        words["mask"] = masks[0] if len(masks) == 1 else tuple(masks)
    return words


def check_without_gradient(name: str, tensor: Tensor) -> None:
    """Raise TypeError if a tensor requires a gradient that regard does not compute."""
    if name not in INPUTS and tensor.requires_grad and torch.is_grad_enabled():
        raise TypeError(
            f"{name} must be a number or a tensor that requires no gradient, got a tensor, whose "
            f"gradient would be lost; {_WITHOUT_GRADIENT.get(name, 'pass it as .detach()')}"
        )


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


def _has_bools(given: Any) -> bool:
    """Return whether there is a bool among numbers, which PyTorch would convert."""
    if isinstance(given, (np.ndarray, np.generic)):
        return given.dtype == np.bool_
    if isinstance(given, (tuple, list)):
        return any(map(_has_bools, given))
    return isinstance(given, bool)


def _is_integer(given: Any) -> bool:
    return isinstance(given, (int, torch.SymInt)) and not isinstance(given, bool)


def _integer(name: str, given: Any) -> Any:
    """Return a 64-bit or symbolic integer, or raise TypeError or ValueError."""
    if isinstance(given, torch.SymInt) or is_compiling():
        return given
    if isinstance(given, Tensor):
        raise TypeError(f"{name} must be an int, got a tensor")
    number = count(name, given, minimum=-MOST - 1)
    if number > MOST:
        raise ValueError(f"{name} must fit in 64 bits, got {number}")
    return number


def _sides(window: Any) -> tuple[int | None, ...]:
    """Return how far a window extends to each side, or raise TypeError or ValueError."""
    is_symbolic = isinstance(window, tuple) and any(isinstance(x, _SYMBOLIC) for x in window)
    sides = window if is_symbolic or is_compiling() else window_sides(window)
    return tuple(None if side is None else _integer("window", side) for side in sides)


def _origin(given: Any) -> tuple[int, ...]:
    """Return the dropout origin as a tuple, or raise TypeError or ValueError."""
    is_array = isinstance(given, np.ndarray) and given.ndim == 1
    if not (is_array or isinstance(given, (tuple, list, range))) or len(given) != 3:
        raise TypeError(
            f"dropout_origin must be three integers (entry, head, position), got {given!r}"
        )
    return tuple(_integer("dropout_origin", number) for number in given)


def seed_tensor(seed: Any) -> Tensor:
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
    if not 0 <= seed < 2**64:
        raise ValueError(f"dropout_seed must be from 0 to 2**64 - 1, got {seed}")
    seed = seed if isinstance(seed, torch.SymInt) else int(seed)
    signed = seed if seed < 2**63 else seed - 2**64
    return torch.full((), signed, dtype=torch.int64, device="cpu")


class _Writable:
    """An array as PyTorch reads it without a warning that it must not be written to."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self.__array_interface__ = array.__array_interface__ | {"data": (array.ctypes.data, False)}


def _shared(array: Array) -> Tensor:
    """Return a tensor that shares the memory of an array, which nothing writes to."""
    if is_dynamo_compiling():
        return torch.as_tensor(array)
    return torch.from_numpy(np.asarray(_Writable(array)))


def _sparse_of(arrays: list[Array], numbers: tuple[int, ...]) -> Any:
    """Return the sparse mask of these arrays, whose first axes `torch.vmap` may have extended."""
    q_len, kv_len, row_queries, first_query, first_key, *block = numbers
    shape = (*arrays[0].shape[:-1], q_len, kv_len)
    rows = *arrays, row_queries, first_query, first_key, shape
    mask: Any = object.__new__(regard.masks.Blocks if any(block) else regard.masks.Ranges)
    mask.__setstate__((rows, shape[:-2], tuple(block) if any(block) else None))
    return mask


_KEPT: dict[tuple[int, ...], dict[int, Any]] = {}


def _checked_function(score_function: Any) -> Any:
    """Return a score function that an operator may have, or raise an error."""
    if not isinstance(score_function, regard.ScoreFunction):
        raise TypeError(
            f"score_function must be a regard.ScoreFunction, got {shown(score_function)}"
        )
    if is_exporting():
        raise NotImplementedError(
            "score_function has an address in this process, which an exported program must not "
            "contain: leave it out, or use torch.compile"
        )
    return score_function


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _kept(score_function: Any) -> tuple[int, ...]:
    """Keep a score function, and return the integers that represent it.

    A compiler calls this once, with the object, and recompiles for another object.
    """
    addresses = (
        score_function.address,
        score_function.derivative_address,
        score_function.user_data_address,
    )
    # The operators' integers have a sign.
    key = (*(each - 2**64 if each >= 2**63 else each for each in addresses),)
    key = (*key, score_function.dtype.itemsize)
    _KEPT.setdefault(key, {})[id(score_function)] = score_function
    return key


def score_function_of(addresses: tuple[int, ...]) -> Any:
    """Return the score function that some integers represent, or raise RuntimeError."""
    kept = _KEPT.get(tuple(addresses))
    if kept is None:
        raise RuntimeError(
            "score_function is unknown in this process: the graph was made in another process, "
            "and the addresses of its functions have no meaning here"
        )
    return next(iter(kept.values()))
