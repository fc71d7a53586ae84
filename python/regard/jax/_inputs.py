"""Check the arguments of a call when it is traced, and give its arrays equal numbers of axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from regard._arguments.arrays import as_array, stand_in
from regard._arguments.masks import Masks, as_mask, is_sparse, parts_of
from regard._arguments.option_table import ARRAY_OPTIONS, OPTIONS
from regard._attention.check import check_call
from regard.jax._computation import SPARSE_NAMES, Result, TracedCall, sparse_arrays

if TYPE_CHECKING:
    from collections.abc import Mapping

    from regard._attention.check import CheckedCall

    Arrays = dict[str, Any]

_STORED = ("float16", "bfloat16", "float32", "float64")
_MOST_INT32 = 2**31 - 1
_MOST_UINT32 = 2**32 - 1


def prepare(
    arrays: Arrays, masks: Any, options: Mapping[str, Any], return_lse: bool
) -> tuple[TracedCall, Arrays, bool]:
    """Return a call, its arrays by name, and whether its results lack a heads axis.

    Shapes, types and all known values are checked as in the NumPy call, with zeros in place of
    unknown values.
    """
    arrays = {name: _floats(name, array) for name, array in arrays.items()}
    given_masks = {} if masks is None else _masks(masks)
    numbers, known = _divided(options)
    found = _checked(arrays, given_masks, numbers, known)
    batch, heads, _, q_len, _, _, value_dim = found.sizes
    rows = (*batch, heads, q_len)
    axes = len(batch) + 3
    wanted = dict.fromkeys((*arrays, *given_masks), axes)
    if is_sparse(given_masks.get("bool_mask")):
        parts, known["mask_numbers"] = sparse_arrays(given_masks.pop("bool_mask"))
        wanted |= dict(zip(SPARSE_NAMES, (axes - 1, 2, 3), strict=True))
        given_masks |= parts
    call = TracedCall(
        axes,
        tuple(known.items()),
        Result((*rows, value_dim), jnp.dtype(found.result_type)),
        Result(rows, jnp.dtype(found.arithmetic)),
        return_lse,
    )
    for name in numbers:
        own = OPTIONS[name].axes
        wanted[name] = len(own) + (len(batch) - 1 if "batch" in own else 0)
    everything = arrays | given_masks | numbers
    missing = {name: (1,) * (wanted[name] - x.ndim) for name, x in everything.items()}
    inputs = {
        n: x.reshape(missing[n] + x.shape) if missing[n] else x for n, x in everything.items()
    }
    return call, inputs, not found.has_heads


def _array(name: str, value: Any) -> Any:
    """Return a JAX array on the CPU, traced or not, or a NumPy array of a JAX type."""
    if isinstance(value, np.ndarray | np.generic):
        return _of_numpy(name, as_array(name, value))
    if not isinstance(value, jax.Array):
        raise TypeError(
            f"{name} must be a JAX or NumPy array, got {type(value).__name__}"
            + ("; pass jax.numpy.asarray of it" if isinstance(value, list | tuple) else "")
        )
    if not isinstance(value, jax.core.Tracer):
        check_devices(name, value)
    return value


def check_devices(name: str, array: Any) -> None:
    """Raise TypeError unless an array is on the CPU."""
    platforms = {device.platform for device in array.devices()}
    if platforms != {"cpu"}:
        raise TypeError(
            f"{name} must be on the CPU, got an array on {', '.join(sorted(platforms))}: pass "
            f'jax.device_put({name}, jax.devices("cpu")[0])'
        )


def _of_numpy(name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Convert an array to the type that JAX would use, such as float32 for float64."""
    try:
        dtype = jax.dtypes.canonicalize_dtype(array.dtype.newbyteorder("="))
    except TypeError:
        raise TypeError(
            f"{name} must be an array of a type that JAX supports, got {array.dtype}"
        ) from None
    made = array.astype(dtype, copy=False)
    if array.dtype.kind in "iu" and not np.array_equal(made, array):
        raise ValueError(f"{name} must fit in 32 bits unless jax_enable_x64 is set, got {array}")
    return made


def _floats(name: str, value: Any) -> Any:
    array = _array(name, value)
    if jnp.dtype(array.dtype).name not in _STORED:
        raise TypeError(
            f"{name} must be an array of float16, bfloat16, float32 or float64, got {array.dtype}"
        )
    return array


def _masks(mask: Any) -> Arrays:
    """Return a mask, or both masks of a pair, by kind."""
    parts = [part if is_sparse(part) else _array("mask", part) for part in parts_of(mask)]
    for part in parts:
        if not is_sparse(part) and jnp.dtype(part.dtype).name not in (*_STORED, "bool"):
            as_mask(np.zeros((), part.dtype))  # raises the error that names the supported types
    masks = Masks.of_parts(parts)
    named = {"bool_mask": masks.shown, "float_mask": masks.bias}
    return {name: array for name, array in named.items() if array is not None}


def _divided(options: Mapping[str, Any]) -> tuple[Arrays, dict[str, Any]]:
    """Separate the options that are arrays from the options that are part of the program."""
    numbers: Arrays = {}
    known: dict[str, Any] = {}
    for name, value in options.items():
        if _is_constant(name, value):
            known[name] = _known(name, value)
        elif value is None or isinstance(value, str):
            known[name] = value if value is None else str(value)
        elif isinstance(value, bool | np.bool_):
            known[name] = value  # the check of the call rejects it
        else:
            made = _numbers(name, value)
            (known if isinstance(made, int) else numbers)[name] = made
    return numbers, {name: value for name, value in known.items() if value is not None}


def _is_constant(name: str, value: Any) -> bool:
    """Return whether an option is part of the program. Numbers per head are, unless traced."""
    if OPTIONS[name].type == "number_or_numbers":
        return not isinstance(value, jax.core.Tracer) or value.ndim == 0
    return name not in ARRAY_OPTIONS and name != "dropout_seed"


def _known(name: str, value: Any) -> Any:
    """Return an option that is a constant of the program, or raise TypeError."""
    parts = value if isinstance(value, list | tuple) else (value,)
    if any(isinstance(part, jax.core.Tracer) for part in parts):
        advice = ": multiply query by it" if name == "scale" else ""
        raise TypeError(
            f"{name} must be known when a program is traced, got a traced array{advice}"
        )
    return _constant(value)


def _constant(value: Any) -> Any:
    """Return numbers as Python numbers or nested tuples of them, whose text a program contains."""
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        array = np.asarray(value)
        is_narrow = jnp.issubdtype(array.dtype, jnp.floating)
        value = (array.astype(np.float64) if is_narrow else array).tolist()
    if isinstance(value, list | tuple | range):
        return tuple(map(_constant, value))
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    return value


def _numbers(name: str, value: Any) -> Any:
    """Return an option as an array, or as an int if JAX has no type for it."""
    if isinstance(value, int):
        # If a number is passed as an array, JAX does not recompile when it changes.
        if name == "dropout_seed" and 0 <= value <= _MOST_UINT32:
            return np.asarray(value, np.uint32)
        if name != "dropout_seed" and abs(value) <= _MOST_INT32:
            return np.asarray(value, np.int32)
        return value
    given = as_array(name, value) if isinstance(value, list | tuple | float) else value
    array = _array(name, given)
    is_integer = jnp.issubdtype(array.dtype, jnp.integer)
    if name == "dropout_seed" and (not is_integer or array.ndim):
        raise TypeError(
            "dropout_seed must be an integer, such as jax.random.bits(key, (), 'uint32'), got an "
            f"array of {array.dtype} with shape {array.shape}"
        )
    return array


def _checked(arrays: Arrays, masks: Arrays, numbers: Arrays, known: dict[str, Any]) -> CheckedCall:
    """Check the NumPy call, or raise its errors."""
    shown = {name: stand_in(array.shape, array.dtype) for name, array in arrays.items()}
    parts = [
        mask
        if is_sparse(mask)
        else stand_in(mask.shape, np.bool_ if name == "bool_mask" else np.float32)
        for name, mask in masks.items()
    ]
    options = known | {name: _value(name, array) for name, array in numbers.items()}
    if "dropout_seed" in numbers:
        options["dropout_seed"] = int(options["dropout_seed"])
    return check_call(**shown, mask=Masks.of_parts(parts).argument, options=options)


def _value(name: str, array: Any) -> Any:
    """Return the values of an array, or valid values if it is traced."""
    if isinstance(array, jax.core.Tracer):
        made = np.ones if OPTIONS[name].type == "number_or_numbers" else np.zeros
        return made(array.shape, array.dtype)
    return np.asarray(array)
