"""Find the address and the signature of a C score function from one of several libraries."""

from __future__ import annotations

import ctypes
import re
import sys
from _ctypes import CFuncPtr
from ctypes import (
    c_char_p,
    c_void_p,
    c_wchar_p,
    py_object,
    sizeof,
)
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard._arguments.arrays import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    DType = np.dtype[Any]

_LARGEST_ADDRESS = 2 ** (8 * sizeof(c_void_p)) - 1
PARAMETERS = {
    "scores": "{real}*",
    "queries": "int64_t",
    "keys": "int64_t",
    "stride": "int64_t",
    "query_positions": "const int64_t*",
    "first_key": "int64_t",
    "head": "int64_t",
    "entry": "int64_t",
    "user_data": "void*",
}
_SIGNED_CODES = frozenset("bhilq")  # of ctypes
_NEEDS_GIL = 4  # the ctypes flag of PyDLL functions
_LONG, _WORD = f"int{8 * sizeof(ctypes.c_long)}", f"int{8 * sizeof(c_void_p)}"
# Spellings of types in the signatures of Cython, cffi and SciPy, without const and a final _t.
_C_NAMES = {
    "float": "float32",
    "npy_float": "float32",
    "double": "float64",
    "npy_double": "float64",
    "long": _LONG,
    "npy_long": _LONG,
    "long long": "int64",
    "longlong": "int64",
    "PY_LONG_LONG": "int64",
    "npy_longlong": "int64",
    **dict.fromkeys(("intptr", "intp", "npy_intp", "ptrdiff", "ssize", "Py_ssize"), _WORD),
    **{f"npy_{name}": name for name in ("float32", "float64", "int64")},
}


class _Type(NamedTuple):
    """The type of an argument: its NumPy name, with * for pointers, and its name in the source."""

    kind: str
    text: str


class _Function(NamedTuple):
    """A function as its object describes it. An address has no types; a result of None is void."""

    address: int
    arguments: tuple[_Type, ...] | None = None
    result: _Type | None = None
    user_data: Any = None


def _c_signature(dtype: DType | None) -> str:
    """Return the needed signature in C, for a message."""
    real = "float" if dtype is None or dtype.itemsize == 4 else "double"
    arguments = ", ".join(f"{kind} {name}" for name, kind in PARAMETERS.items())
    either = ", or with double* scores for float64" if dtype is None else ""
    return f"void ({arguments.format(real=real)}){either}"


def checked_type(name: str, found: _Function, wanted: DType | None) -> DType:
    """Return the dtype of a function's scores, or raise TypeError if its signature is wrong."""
    arguments = found.arguments
    if arguments is None:
        if wanted is None:
            raise TypeError(
                f"dtype must be float32 or float64 if the signature of {name} is unknown, got None"
            )
        return wanted
    rest = f"; its signature must be {_c_signature(wanted)}"
    if len(arguments) != len(PARAMETERS):
        raise TypeError(f"{name} must take {len(PARAMETERS)} arguments, got {len(arguments)}{rest}")
    if found.result is not None and found.result.kind != "void":
        raise TypeError(f"{name} must return void, got {found.result.text}{rest}")
    if wanted is None and arguments[0].kind == "void*":
        raise TypeError(f"dtype must be float32 or float64 if {name} takes void* scores, got None")
    reals = ["float32*", "float64*"] if wanted is None else [f"{wanted}*", "void*"]
    accepted = {
        "{real}*": reals,
        "int64_t": ["int64"],
        "const int64_t*": ["int64*", "const int64*", "void*", "const void*"],
    }
    for i, (parameter, needed) in enumerate(PARAMETERS.items()):
        kind, text = arguments[i]
        # The user data may be a pointer to anything, since all pointers are passed alike.
        if kind.endswith("*") if needed == "void*" else kind in accepted[needed]:
            continue
        if i == 0:
            names = {"float32*": "float*", "float64*": "double*"}
            needed = " or ".join(names[each] for each in reals if each in names)
        raise TypeError(
            f"{name} must take {needed} {parameter} as argument {i + 1}, got {text}{rest}"
        )
    return np.dtype(arguments[0].kind[:-1]) if wanted is None else wanted


def function_of(name: str, value: Any, dtype: DType | None) -> _Function:
    """Return the address of a C function, and its signature if known.

    Raises TypeError or ValueError if there is no such function.
    """
    found = _found_function(name, value, dtype)
    if not 0 < found.address <= _LARGEST_ADDRESS:
        came = "0, which is NULL" if found.address == 0 else str(found.address)
        raise ValueError(f"{name} must have an address from 1 to {_LARGEST_ADDRESS:#x}, got {came}")
    return found


def _found_function(name: str, value: Any, dtype: DType | None) -> _Function:
    if _is_low_level_callable(value):
        inner = function_of(name, value.function, dtype)
        # The user may have corrected the signature of the function.
        result, arguments = _parsed(name, value.signature)
        data = inner.user_data if value.user_data is None else value.user_data
        return _Function(inner.address, arguments, result, data)
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return _Function(int(value))
    if isinstance(value, c_void_p):
        return _Function(value.value or 0)
    if isinstance(value, CFuncPtr):
        return _ctypes_function(name, value)
    if _is_cffi(value):
        return _cffi_function(name, value)
    if _is_capsule(value):
        result, arguments = _parsed(name, _capsule_name(value))
        return _Function(_capsule_address(value), arguments, result, _capsule_context(value))
    if type(value).__module__.partition(".")[0] == "numba" and hasattr(value, "address"):
        signature = getattr(value, "_sig", None)
        if signature is None:
            return _Function(value.address or 0)
        types = [_Type(str(each), str(each)) for each in signature.args]
        text = str(signature.return_type)
        result = _Type("void" if text == "none" else text, text)
        return _Function(value.address or 0, tuple(types), result)
    raise _not_a_function(name, value, dtype)


def _is_low_level_callable(value: Any) -> bool:
    """Return whether an object is a `scipy.LowLevelCallable`."""
    names = ("function", "user_data", "signature")
    return isinstance(value, tuple) and all(hasattr(value, name) for name in names)


def _not_a_function(name: str, value: Any, dtype: DType | None) -> TypeError:
    """Return the error for an object that is not a C function, with advice."""
    of_type = "float32" if dtype is None else str(dtype)
    compiled = f'@numba.cfunc(regard.ScoreFunction.numba_signature("{of_type}"))'
    kind = type(value).__name__
    if type(value).__module__.partition(".")[0] == "numba":
        return TypeError(
            f"{name} must be a C function, got a Numba {kind}, which is called from Python only: "
            f"compile it with {compiled} instead"
        )
    if callable(value):
        return TypeError(
            f"{name} must be a C function, got a Python {kind}, which would be called for each "
            "tile of scores, by threads that do not hold the GIL: compile it with "
            f'{compiled}, or pass regard.ScoreFunction.c_type("{of_type}")({name}), which is slow, '
            "since each call waits for the GIL"
        )
    return TypeError(
        f"{name} must be a C function of Numba, ctypes, cffi, Cython or SciPy, or its address, "
        f"got {shown(value)}"
    )


def _ctypes_function(name: str, value: CFuncPtr) -> _Function:
    kind = type(value)
    if kind._flags_ & _NEEDS_GIL:
        raise TypeError(
            f"{name} must not need the GIL, got a ctypes function of PYFUNCTYPE or a PyDLL; use "
            "CFUNCTYPE or a CDLL for functions that do not call Python"
        )
    address = _pointed(value)
    if value.argtypes is None:
        return _Function(address)
    arguments = tuple(map(_ctypes_type, value.argtypes))
    # By default, a CDLL function is declared to return c_int.
    is_unsaid = value.restype is ctypes.c_int and not hasattr(kind, "_argtypes_")
    if value.restype is None or is_unsaid:
        return _Function(address, arguments)
    return _Function(address, arguments, _ctypes_type(value.restype))


def _ctypes_type(kind: Any) -> _Type:
    """Return the type of an argument in ``argtypes``."""
    text = getattr(kind, "__name__", None) or shown(kind)
    if hasattr(kind, "_dtype_"):  # numpy.ctypeslib.ndpointer
        return _Type(f"{kind._dtype_ or 'void'}*", text)
    if isinstance(kind, type) and issubclass(kind, ctypes._Pointer):
        return _Type(f"{_ctypes_type(kind._type_).kind}*", text)
    if isinstance(kind, type) and issubclass(kind, ctypes._SimpleCData):
        code = getattr(kind, "_type_", "")
        if code in _SIGNED_CODES:
            return _Type(f"int{8 * sizeof(kind)}", text)
        return _Type({"f": "float32", "d": "float64", "P": "void*"}.get(code, text), text)
    return _Type(text, text)


def _is_cffi(value: Any) -> bool:
    backend = sys.modules.get("_cffi_backend")
    return backend is not None and isinstance(value, backend.FFI.CData)


def _cffi_address(value: Any) -> int:
    return int(sys.modules["_cffi_backend"].FFI().cast("uintptr_t", value))


def _cffi_function(name: str, value: Any) -> _Function:
    kind = sys.modules["_cffi_backend"].typeof(value)
    if kind.kind == "function":
        arguments = tuple(_c_type(each.cname) for each in kind.args)
        return _Function(_cffi_address(value), arguments, _c_type(kind.result.cname))
    if kind.cname == "void *":
        return _Function(_cffi_address(value))
    raise TypeError(f"{name} must be a cffi function pointer or void *, got {shown(value)}")


def _is_capsule(value: Any) -> bool:
    return (type(value).__module__, type(value).__name__) == ("builtins", "PyCapsule")


def _of_python(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    """Return a private object for a C API function; objects in `ctypes.pythonapi` are shared."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_get_name = _of_python("PyCapsule_GetName", c_char_p, py_object)
_get_pointer = _of_python("PyCapsule_GetPointer", c_void_p, py_object, c_char_p)
_get_context = _of_python("PyCapsule_GetContext", c_void_p, py_object)


def _capsule_name(value: Any) -> str | None:
    name: bytes | None = _get_name(value)
    return None if name is None else name.decode(errors="replace")


def _capsule_address(value: Any) -> int:
    address: int = _get_pointer(value, _get_name(value))
    return address


def _capsule_context(value: Any) -> int | None:
    """Return the context of a PyCapsule. SciPy passes it as the user data."""
    context: int | None = _get_context(value)
    return context


def _parsed(name: str, text: str | None) -> tuple[_Type, tuple[_Type, ...]]:
    """Return the result and the arguments of a signature such as "void (float *, int64_t)"."""
    match = re.fullmatch(r"\s*(.*?)\s*\((.*)\)\s*", text or "")
    if match is None:
        raise TypeError(
            f"{name} must be a PyCapsule with a signature as its name, as in Cython's "
            f"__pyx_capi__, got one with the name {text!r}; the signature must be "
            f"{_c_signature(None)}"
        )
    result, arguments = match.groups()
    parts = arguments.split(",") if arguments.strip() else []
    return _c_type(result), tuple(map(_c_type, parts))


def _c_type(text: str) -> _Type:
    """Return a type as C, Cython and cffi write it: "int64_t const *", "__pyx_t_5numpy_int64_t"."""
    base, *stars = text.split("*")
    words = base.split()
    plain = [word for word in words if word not in ("const", "volatile", "signed")]
    if "long" in plain and "unsigned" not in plain:
        plain = [word for word in plain if word != "int"]
    joined = re.sub(r"^__pyx_t_\d+numpy_", "", " ".join(plain)).removesuffix("_t")
    const = "const " if "const" in words and stars else ""
    return _Type(f"{const}{_C_NAMES.get(joined, joined)}{'*' * len(stars)}", text.strip())


def _pointed(value: Any) -> int:
    """Return the address that a ctypes pointer or function holds."""
    return ctypes.cast(value, c_void_p).value or 0


def data_address(value: Any) -> int:
    """Return the address of user data, or raise TypeError or ValueError."""
    if value is None:
        return 0
    address = _found_address(value)
    if not 0 < address <= _LARGEST_ADDRESS:
        came = "0; pass None for NULL" if address == 0 else str(address)
        raise ValueError(
            f"user_data must have an address from 1 to {_LARGEST_ADDRESS:#x}, got {came}"
        )
    return address


def _found_address(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return _array_address(value)
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, ctypes._Pointer | CFuncPtr | c_void_p | c_char_p | c_wchar_p):
        return _pointed(value)
    is_number = isinstance(value, ctypes._SimpleCData) and not isinstance(value, py_object)
    if is_number or isinstance(value, ctypes.Array | ctypes.Structure | ctypes.Union):
        return ctypes.addressof(value)
    if _is_capsule(value):
        return _capsule_address(value)
    if _is_cffi(value):
        kind = sys.modules["_cffi_backend"].typeof(value).kind
        if kind in ("pointer", "array", "function"):
            return _cffi_address(value)
    raise TypeError(
        "user_data must be None, an address, a NumPy array, a PyCapsule, or a pointer or an array "
        f"of ctypes or cffi, got {shown(value)}"
    )


def _array_address(array: np.ndarray[Any, Any]) -> int:
    if array.dtype.hasobject or not array.dtype.isnative:
        raise TypeError(
            "user_data must be an array of numbers in the machine's byte order, got an array of "
            f"{array.dtype}"
        )
    if not (array.flags.c_contiguous and array.flags.aligned):
        raise ValueError(
            f"user_data must be C-contiguous and aligned, got an array of shape {array.shape} and "
            f"strides {array.strides}; pass a copy"
        )
    return int(array.ctypes.data)
