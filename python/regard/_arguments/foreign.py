"""Read the arrays of other libraries in place, and refuse arrays that would be misread.

An object is read by NumPy's own protocol, `__array__`, if it has one, because a library can then
check properties that DLPack cannot express: a tensor may be a placeholder, or a view that negates
its memory. Other objects are read by DLPack. Neither protocol copies arrays on the CPU.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.option_table import ARRAY_OPTIONS

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Types that NumPy reads without a protocol, so that they need no inspection.
_PLAIN = frozenset((np.ndarray, list, tuple, bool, int, float, complex, str, type(None)))
# DLPack's numbers for kinds of memory.
CUDA, CUDA_MANAGED = 2, 13
# The kinds that the CPU reads: host, and pinned for CUDA or ROCm.
_HOST = frozenset((1, 3, 11))
_FRONTS = {"torch": "regard.torch", "jax": "regard.jax", "jaxlib": "regard.jax"}


def readable(name: str, value: Any) -> Any:
    """Return the array of a foreign object, and any other value unchanged.

    Raises TypeError if the array is not in the CPU's memory, would lose information, or cannot be
    read by NumPy. Other exceptions of the object, such as OSError, propagate.
    """
    return _read(name, value) if _is_foreign(value) else value


def with_arrays(options: Any) -> Any:
    """Return the options of a call with the arrays of other libraries as NumPy arrays."""
    if _PLAIN.issuperset(map(type, options.values())):
        return options
    return {
        name: _read(name, value) if name in ARRAY_OPTIONS and _is_foreign(value) else value
        for name, value in options.items()
    }


def _is_foreign(value: Any) -> bool:
    """Return whether NumPy would have to ask an object for its array."""
    return type(value) not in _PLAIN and not isinstance(value, np.ndarray | np.generic)


def _read(name: str, value: Any) -> NDArray[Any]:
    if has_uncomputed_chunks(value):
        raise TypeError(
            f"{name} must be an array in memory, got a {_kind(value)} of chunks that are not "
            "computed: call regard.dask, which keeps chunks separate, or pass "
            f"{name.rpartition(': ')[2]}.compute()"
        )
    if _has_gradient(value):
        raise TypeError(
            f"{name} must not need a gradient, which would be lost here: call regard.torch, which "
            f"computes gradients, or pass {name}.detach()"
        )
    _check_device(name, value)
    try:
        if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
            return np.from_dlpack(value)
        return np.asarray(value)
    except Exception as error:
        # PyTorch and JAX raise RuntimeErrors for arrays that NumPy cannot represent.
        is_refusal = isinstance(error, TypeError | BufferError) or (
            _library(value) in _FRONTS and isinstance(error, RuntimeError)
        )
        if not is_refusal:
            error.add_note(f"raised while {name} was read")
            raise
        advice = _advice(name.rpartition(": ")[2], value)
        reason = str(error).partition("\n")[0].rstrip(".")
        raise TypeError(
            f"{name} must be an array that NumPy can read, got a {_kind(value)}: {reason}{advice}"
        ) from error


def _advice(name: str, value: Any) -> str:
    """Return how to pass an array that NumPy cannot read, to any function."""
    dtype = str(getattr(value, "dtype", ""))
    if dtype == "torch.bfloat16":
        return (
            f"; pass {name}.float(), or {name}.view(torch.int16).numpy().view(ml_dtypes.bfloat16), "
            "which copies nothing"
        )
    if dtype.startswith("torch.float8"):
        if name in ("key_pages", "value_pages"):
            view = f"view(torch.uint8).numpy().view({dtype.replace('torch', 'ml_dtypes')})"
            return f"; pass {name}.{view}, which copies nothing"
        return f"; pass {name}.float()"
    if dtype.startswith("torch.q"):
        return f"; pass {name}.dequantize()"
    is_dense = str(getattr(value, "layout", "torch.strided")) == "torch.strided"
    front = _FRONTS.get(_library(value)) if is_dense else None
    return f"; {front} accepts such arrays" if front else ""


def _library(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def _kind(value: Any) -> str:
    return f"{_library(value)} {type(value).__name__}"


def has_uncomputed_chunks(value: Any) -> bool:
    """Return whether an object is or contains a Dask collection, judged by its graph."""
    graph = getattr(value, "__dask_graph__", None)
    return graph is not None and not isinstance(value, type) and graph() is not None


def _has_gradient(value: Any) -> bool:
    """Return whether an object is a PyTorch tensor that records gradients or carries a tangent."""
    if getattr(value, "requires_grad", False) is True:
        return True
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return False
    return torch.autograd.forward_ad.unpack_dual(value).tangent is not None


def _check_device(name: str, value: Any) -> None:
    """Raise TypeError for an array in memory that the CPU does not read."""
    device = dlpack_device(value)
    is_elsewhere = device is not None and device[0] not in _HOST
    if is_elsewhere or (device is None and hasattr(value, "__cuda_array_interface__")):
        where = getattr(value, "device", None)
        raise TypeError(
            f"{name} must be in host memory, got a {_kind(value)}"
            + (f" on {where}" if where is not None and not callable(where) else "")
            + ": copy it to the host, or pass query, key and value on the GPU too, so "
            "that regard.cuda computes the call"
        )


def dlpack_device(array: Any) -> tuple[int, int] | None:
    """Return the kind and number of an array's device, or None if it does not report them."""
    ask = getattr(array, "__dlpack_device__", None)
    if ask is None:
        return None
    try:
        kind, number = ask()
    except (ValueError, BufferError, RuntimeError):  # DLPack has no number for the device
        return None
    return int(kind), int(number)


def is_on_cuda(array: Any) -> bool:
    """Return whether an object is an array in the memory of a CUDA device."""
    device = dlpack_device(array)
    if device is not None and device[0] in (CUDA, CUDA_MANAGED):
        return True
    return hasattr(array, "__cuda_array_interface__")
