"""Hold a C function that changes attention scores, as one of several libraries compiles it."""

from __future__ import annotations

import ctypes
import re
import sys
from _ctypes import CFuncPtr
from ctypes import (
    POINTER,
    c_char_p,
    c_double,
    c_float,
    c_int64,
    c_void_p,
    c_wchar_p,
    py_object,
    sizeof,
)
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from regard._arguments.arrays import shown, single_or_double
from regard._runtime.public import public

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import DTypeLike

    DType = np.dtype[Any]

_LARGEST_ADDRESS = 2 ** (8 * sizeof(c_void_p)) - 1
_PARAMETERS = {
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
_NEEDS_GIL = 4  # ctypes' flag of the functions of a PyDLL
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
    """The type of an argument: its name in NumPy, with * for pointers, and the one that came."""

    kind: str
    text: str


class _Function(NamedTuple):
    """What an object says of its function. An address has no types; a result of None is void."""

    address: int
    arguments: tuple[_Type, ...] | None = None
    result: _Type | None = None
    user_data: Any = None


@public
class ScoreFunction:
    """A C function that changes attention scores in place, and its derivative.

    The function is called for one tile of scores at a time::

        void function(float* scores, int64_t queries, int64_t keys, int64_t stride,
                      const int64_t* query_positions, int64_t first_key,
                      int64_t head, int64_t entry, void* user_data)

    The score of query `q` and key `k` of the tile is ``scores[q * stride + k]``, for
    ``0 <= q < queries`` and ``0 <= k < keys``. Query `q` is at position ``query_positions[q]``, and
    key `k` is at position ``first_key + k``; the positions of keys count the keys of the batch
    entry. `head` is the query head, and `entry` is the number of the batch entry. In float64,
    `scores` is ``double*``.

    Parameters
    ----------
    function : C function
        One of

        - a function that was compiled by ``numba.cfunc``
        - a ctypes function: an instance of a ``CFUNCTYPE`` prototype such as `c_type` returns, or a
          function of a ``CDLL``
        - a cffi function pointer: an ``ffi.callback``, a function of ``ffi.dlopen``, or
          ``ffi.addressof(lib, "name")``
        - a PyCapsule in the ``__pyx_capi__`` of a Cython module, for a function that is declared as
          ``cdef api`` and ``noexcept nogil``
        - a ``scipy.LowLevelCallable``
        - an address, as an int, a ``ctypes.c_void_p`` or a cffi ``void *``

        Its signature is checked if it is known. The signature of an address is unknown, and so is
        the signature of a ``CDLL`` function without ``argtypes``.
    derivative : C function, optional
        A function with the same signature. It receives the scores to which `function` was not yet
        applied, and replaces each score with the derivative of `function` at this score. Only
        gradients and tangents need it.
    user_data : None, int, numpy.ndarray or pointer, optional
        The last argument of both functions: an address, or memory whose address is passed. It may
        be a C-contiguous NumPy array, a ctypes or cffi pointer, a ctypes array, structure or
        number, or a PyCapsule. If it is None, the functions receive the ``user_data`` of a
        ``LowLevelCallable``, or NULL.
    dtype : {"float32", "float64"}, optional
        The type of the scores. It is needed only if the signature of `function` is unknown.

    Attributes
    ----------
    dtype : numpy.dtype
        The type of the scores, float32 or float64.
    address : int
        The address of the function.
    derivative_address : int
        The address of the derivative, or 0.
    user_data_address : int
        The address that both functions receive, or 0.

    Raises
    ------
    TypeError
        If an argument has another kind, a signature is wrong, or the signature is unknown and
        `dtype` is missing.
    ValueError
        If an address is 0 or out of range, an array is not C-contiguous and aligned, or `function`
        and `derivative` are ``LowLevelCallable`` objects with different ``user_data``.

    Notes
    -----
    Several threads call the functions at the same time, without the GIL. Each pass over the keys
    passes each score exactly once, in tiles of any shape. It may include scores of keys that a mask
    hides; their results are ignored. A result may therefore depend only on its own score, its
    positions, the head, the entry and the user data.

    A plain Python function is refused. ``c_type(dtype)(python_function)`` is accepted, because
    ctypes acquires the GIL for each call. This is slow, and meant for learning. If the function
    raises an exception, Python prints the exception, and the other scores of the tile do not
    change.

    A `ScoreFunction` is immutable. It keeps its functions and its user data alive, except those
    that were given as addresses. The attributes ``ctypes`` and ``cffi`` of a Numba function contain
    only its address. The contents of the user data may change between calls.

    An example with Numba. The conversion to int32 lets the compiler use vector instructions, since
    few CPUs convert vectors of int64 to float32::

        @numba.cfunc(regard.ScoreFunction.numba_signature("float32"))
        def recent(scores, queries, keys, stride, query_positions, first_key, head, entry, data):
            for q in range(queries):
                to_first = query_positions[q] - first_key
                for k in range(keys):
                    distance = np.float32(np.int32(to_first - k))
                    scores[q * stride + k] -= np.float32(0.5) * abs(distance)

        score_function = regard.ScoreFunction(recent)

    Examples
    --------
    >>> import ctypes
    >>> import numpy as np
    >>> import regard
    >>> @regard.ScoreFunction.c_type("float32")
    ... def tempered(scores, queries, keys, stride, positions, first_key, head, entry, user_data):
    ...     temperature = ctypes.cast(user_data, ctypes.POINTER(ctypes.c_float))[head]
    ...     for q in range(queries):
    ...         for k in range(keys):
    ...             scores[q * stride + k] /= temperature
    >>> temperatures = np.array([1.0, 0.5], np.float32)
    >>> score_function = regard.ScoreFunction(tempered, user_data=temperatures)
    >>> score_function.dtype
    dtype('float32')
    >>> score_function.user_data_address == temperatures.ctypes.data
    True
    >>> score_function.derivative_address
    0
    """

    __slots__ = ("_address", "_alive", "_derivative_address", "_dtype", "_user_data_address")

    def __init__(
        self,
        function: Any,
        derivative: Any = None,
        user_data: Any = None,
        *,
        dtype: DTypeLike | None = None,
    ) -> None:
        wanted = None if dtype is None else single_or_double("dtype", dtype)
        main = _function("function", function, wanted)
        self._dtype = _checked_type("function", main, wanted)
        self._address, self._derivative_address = main.address, 0
        data = main.user_data if user_data is None else user_data
        self._user_data_address = _data_address(data)
        if derivative is not None:
            other = _function("derivative", derivative, self._dtype)
            _checked_type("derivative", other, self._dtype)
            self._derivative_address = other.address
            if user_data is None and other.user_data is not None:
                _check_same_data(self._user_data_address, _data_address(other.user_data))
        self._alive = (function, derivative, data)

    @property
    def dtype(self) -> DType:
        """The type of the scores, float32 or float64."""
        return self._dtype

    @property
    def address(self) -> int:
        """The address of the function."""
        return self._address

    @property
    def derivative_address(self) -> int:
        """The address of the derivative, or 0."""
        return self._derivative_address

    @property
    def user_data_address(self) -> int:
        """The address that both functions receive as their last argument, or 0."""
        return self._user_data_address

    @staticmethod
    def c_type(dtype: DTypeLike = "float32") -> type[Any]:
        """Return the type of the function in ctypes.

        Parameters
        ----------
        dtype : {"float32", "float64"}
            The type of the scores.

        Returns
        -------
        type
            A ``ctypes.CFUNCTYPE`` prototype. Called with an address, it returns a function that
            Python can call, for example to test a C function with a tile of scores. Called with a
            Python function, it returns a C function that calls the Python function.

        Raises
        ------
        TypeError
            If `dtype` is another type.

        Examples
        --------
        >>> import numpy as np
        >>> import regard
        >>> @regard.ScoreFunction.c_type("float32")
        ... def recent(scores, queries, keys, stride, query_positions, first_key, *others):
        ...     for q in range(queries):
        ...         for k in range(keys):
        ...             scores[q * stride + k] -= abs(query_positions[q] - (first_key + k))
        >>> scores, query_positions = np.zeros((2, 3), np.float32), np.array([4, 5], np.int64)
        >>> recent(
        ...     np.ctypeslib.as_ctypes(scores.reshape(-1)), 2, 3, 3,
        ...     np.ctypeslib.as_ctypes(query_positions), 3, 0, 0, None,
        ... )
        >>> scores
        array([[-1.,  0., -1.],
               [-2., -1.,  0.]], dtype=float32)
        """
        real = c_float if single_or_double("dtype", dtype).itemsize == 4 else c_double
        types: dict[str, Any] = {
            "{real}*": POINTER(real),
            "const int64_t*": POINTER(c_int64),
            "void*": c_void_p,
        }
        return ctypes.CFUNCTYPE(None, *(types.get(each, c_int64) for each in _PARAMETERS.values()))

    @staticmethod
    def numba_signature(dtype: DTypeLike = "float32") -> str:
        """Return the signature of the function for ``numba.cfunc``.

        Parameters
        ----------
        dtype : {"float32", "float64"}
            The type of the scores.

        Returns
        -------
        str
            The signature. The user data are a ``voidptr``, which ``numba.carray`` makes an array:
            ``numba.carray(user_data, shape, dtype)``. A signature in which the last argument is
            another pointer is accepted too.

        Raises
        ------
        TypeError
            If `dtype` is another type.

        Examples
        --------
        >>> import regard
        >>> signature = regard.ScoreFunction.numba_signature("float64")
        >>> signature.startswith("void(CPointer(float64), int64, int64, int64, CPointer(int64), ")
        True
        """
        real = f"CPointer({single_or_double('dtype', dtype)})"
        types = {"{real}*": real, "const int64_t*": "CPointer(int64)", "void*": "voidptr"}
        return f"void({', '.join(types.get(each, 'int64') for each in _PARAMETERS.values())})"

    def __repr__(self) -> str:
        """Show the addresses that are not 0, and the dtype."""
        addresses = {"derivative": self._derivative_address, "user_data": self._user_data_address}
        options = "".join(f"{name}={it:#x}, " for name, it in addresses.items() if it)
        return f"ScoreFunction({self._address:#x}, {options}dtype='{self._dtype}')"

    def __copy__(self) -> ScoreFunction:
        """Return the same object, which is immutable."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> ScoreFunction:
        """Return the same object, which is immutable."""
        return self

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled."""
        raise TypeError(
            "a ScoreFunction cannot be pickled: it holds addresses, which mean nothing in another "
            "process; create it there, from a function that is compiled there"
        )


def _c_signature(dtype: DType | None) -> str:
    """Return the needed signature in C, for a message."""
    real = "float" if dtype is None or dtype.itemsize == 4 else "double"
    arguments = ", ".join(f"{kind} {name}" for name, kind in _PARAMETERS.items())
    either = ", or with double* scores for float64" if dtype is None else ""
    return f"void ({arguments.format(real=real)}){either}"


def _checked_type(name: str, found: _Function, wanted: DType | None) -> DType:
    """Return the dtype of a function's scores, or raise TypeError if its signature is wrong."""
    arguments = found.arguments
    if arguments is None:
        if wanted is None:
            raise TypeError(
                f"dtype must be float32 or float64 if the signature of {name} is unknown, got None"
            )
        return wanted
    rest = f"; its signature must be {_c_signature(wanted)}"
    if len(arguments) != len(_PARAMETERS):
        raise TypeError(
            f"{name} must take {len(_PARAMETERS)} arguments, got {len(arguments)}{rest}"
        )
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
    for i, (parameter, needed) in enumerate(_PARAMETERS.items()):
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


def _function(name: str, value: Any, dtype: DType | None) -> _Function:
    """Return the address of a C function and what is known of its signature.

    Raises TypeError or ValueError if there is no such function.
    """
    found = _found_function(name, value, dtype)
    if not 0 < found.address <= _LARGEST_ADDRESS:
        came = "0, which is NULL" if found.address == 0 else str(found.address)
        raise ValueError(f"{name} must have an address from 1 to {_LARGEST_ADDRESS:#x}, got {came}")
    return found


def _found_function(name: str, value: Any, dtype: DType | None) -> _Function:
    if _is_low_level_callable(value):
        inner = _function(name, value.function, dtype)
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
    """Return the error for an object that is not a C function, with what to do."""
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
    # A function of a CDLL returns c_int until somebody says otherwise.
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
    """Return a function of Python's C API. Those of `ctypes.pythonapi` belong to everybody."""
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


def _data_address(value: Any) -> int:
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


def _check_same_data(function: int, derivative: int) -> None:
    if function != derivative:
        raise ValueError(
            "function and derivative must have the same user_data, got the addresses "
            f"{function:#x} and {derivative:#x}"
        )
