"""The options of a call as arguments of the operators, and as keywords of the NumPy calls.

An operator has query, key and value, the tensors `TENSORS` or None, a list of integers, a list of
real numbers, and a list of their names: of the integers, then of the real numbers, followed by
words of the form ``name=value``. The integers of one option have the same name.

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
_NUMBERS_OR_TENSORS = ("integers", "number_or_numbers", "seed")
# The tensors that a call may have.
TENSORS: tuple[str, ...] = (*INPUTS, "bool_mask", *_SPARSE, *STARTS)
TENSORS += tuple(name for name, kind in _TYPES.items() if kind in _NUMBERS_OR_TENSORS)
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
    found: dict[str, Any] = {}
    for name, given in call.items():
        kind = _TYPES.get(name, "seed")
        is_numbers = isinstance(given, (Tensor, np.ndarray, list, tuple))
        if kind in ("numbers", "table") or (kind == "number_or_numbers" and is_numbers):
            found[name] = tensor_of(name, given, device, torch.float64)
        elif kind == "integers" and isinstance(given, str):
            offsets(given, 0)  # raises TypeError unless it is "end"
            found[name] = given
        elif kind == "integers" and not _is_integer(given):
            found[name] = tensor_of(name, given, device)
        elif kind == "function":
            found[name] = _checked_function(given)
        elif kind == "sides":
            found[name] = _sides(given)
        elif kind == "origin":
            found[name] = _origin(given)
        elif kind == "seed":  # a tensor, as all arguments that are not options
            found[name] = given
        elif isinstance(given, Tensor):
            raise TypeError(f"{name} must be a number, got a tensor, whose gradient would be lost")
        elif kind == "choice" or is_compiling() or isinstance(given, _SYMBOLIC):
            found[name] = given
        elif kind in ("number", "number_or_numbers"):
            found[name] = real_number(name, given)
        elif kind == "flag":
            found[name] = flag(name, given)
        else:
            found[name] = _integer(name, given)
    return found


def packed(found: dict[str, Any]) -> tuple[Any, ...]:
    """Return the arguments of the operators for a checked call."""
    tensors: dict[str, Tensor] = {}
    integers: list[tuple[str, Any]] = []
    reals: list[tuple[str, Any]] = []
    words: list[str] = []
    for name, given in found.items():
        if name == "mask":
            rows, block = given._rows, given._block or (0, 0)
            arrays = rows.starts, rows.spans, rows.bits
            tensors.update(zip(_SPARSE, map(_shared, arrays), strict=True))
            layout = rows.row_queries, rows.first_query, rows.first_key, *block
            integers += [("mask_numbers", number) for number in (*rows.shape[-2:], *layout)]
        elif name == "score_function" and not isinstance(given, tuple):
            integers += [(name, number) for number in _kept(given)]
        elif name == "window":
            sides = zip(("left", "right"), given, strict=True)
            integers += [(f"window_{side}", each) for side, each in sides if each is not None]
        elif isinstance(given, Tensor):
            tensors[name] = given
        elif isinstance(given, tuple):
            integers += [(name, number) for number in given]
        elif isinstance(given, (float, torch.SymFloat)):
            reals.append((name, given))
        elif isinstance(given, (int, torch.SymInt)):
            integers.append((name, int(given) if isinstance(given, bool) else given))
        else:
            words.append(f"{name}={given}")
    names = [*(name for name, _ in (*integers, *reals)), *words]
    numbers = [number for _, number in integers], [number for _, number in reals]
    return *map(tensors.get, TENSORS), names, *numbers


def unpacked(*given: Any) -> dict[str, Any]:
    """Return a checked call from the arguments that `packed` returns.

    The parts of sparse masks and score functions keep their own names, because tensors of a
    compiler have no elements.
    """
    *tensors, names, integers, reals = given
    values = (*integers, *reals)
    each: dict[str, tuple[Any, ...]] = {}
    for name, value in zip(names, values, strict=False):
        each[name] = (*each.get(name, ()), value)
    found = {name: numbers[0] if len(numbers) == 1 else numbers for name, numbers in each.items()}
    found |= dict(word.split("=", 1) for word in names[len(values) :])
    found |= {n: x for n, x in zip(TENSORS, tensors, strict=True) if x is not None}
    sides = found.pop("window_left", None), found.pop("window_right", None)
    if sides != (None, None):
        found["window"] = sides
    if "is_causal" in found:
        found["is_causal"] = bool(found["is_causal"])
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
