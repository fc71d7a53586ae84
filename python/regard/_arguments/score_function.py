"""Hold a C function that changes attention scores."""

from __future__ import annotations

import ctypes
from _ctypes import CFuncPtr
from ctypes import POINTER, c_double, c_float, c_int64, c_void_p
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from regard._arguments.arrays import shown, single_or_double

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    DType = np.dtype[Any]

_LARGEST_ADDRESS = 2 ** (8 * ctypes.sizeof(c_void_p)) - 1
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
_POINTERS = ("{real}*", "const int64_t*", "void*")
_NEEDS_GIL = 4  # the ctypes flag of PyDLL functions


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ScoreFunction:
    """A C function that changes attention scores in place, and its derivative.

    The function is called for one tile of scores at a time::

        void function(float* scores, int64_t queries, int64_t keys, int64_t stride,
                      const int64_t* query_positions, int64_t first_key,
                      int64_t head, int64_t entry, void* user_data)

    The score of query `q` and key `k` of the tile is ``scores[k * stride + q]``, for
    ``0 <= q < queries`` and ``0 <= k < keys``. Neighboring queries are adjacent in memory, so an
    inner loop over them can use vector instructions. Query `q` is at position
    ``query_positions[q]``, and key `k` is at position ``first_key + k``; the positions of keys
    count the keys of the batch entry. `head` is the query head, and `entry` is the number of the
    batch entry. In float64, `scores` is ``double*``.

    Parameters
    ----------
    function : ctypes function or address
        A ctypes function, whose ``argtypes`` are checked if it has any: an instance of a
        ``CFUNCTYPE`` prototype such as `c_type` returns, or a function of a ``CDLL``. Or an
        address, as an int or a ``ctypes.c_void_p``, together with `dtype`. A function of
        ``numba.cfunc`` has the attribute ``ctypes``, and a cffi function has the address
        ``int(ffi.cast("uintptr_t", function))``.
    derivative : ctypes function or address, optional
        A function with the same signature. It receives the scores to which `function` was not yet
        applied, and replaces each score with the derivative of `function` at this score. Only
        gradients and tangents need it.
    user_data : None, int, numpy.ndarray or ctypes object, optional
        The last argument of both functions: an address, or memory whose address is passed. It may
        be a C-contiguous NumPy array, or a ctypes pointer, array, structure or number. None is
        NULL.
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
        If an argument has the wrong kind, a signature is wrong, or the signature is unknown and
        `dtype` is missing.
    ValueError
        If an address is 0 or out of range, or an array is not C-contiguous and aligned.

    Notes
    -----
    Several threads call the functions at the same time, without the GIL. Each pass over the keys
    passes each score exactly once, in tiles of any shape. It may include scores of keys that a mask
    hides; their results are ignored. A result may therefore depend only on its own score, its
    positions, the head, the entry and the user data.

    A function does not hide keys: -inf is a score like any other, with a weight of 0, and a row
    whose scores are all -inf has an output of NaN. A mask hides keys.

    A plain Python function is refused. ``c_type(dtype)(python_function)`` is accepted, because
    ctypes acquires the GIL for each call. This is slow, and meant for learning. If the function
    raises an exception, Python prints the exception, and the other scores of the tile do not
    change.

    A `ScoreFunction` is immutable. It keeps the given objects alive, but not what an address or the
    attribute ``ctypes`` of a Numba function refers to. The contents of the user data may change
    between calls.

    An example with Numba. The conversion to int32 lets the compiler use vector instructions, since
    few CPUs convert vectors of int64 to float32::

        @numba.cfunc(regard.ScoreFunction.numba_signature("float32"))
        def recent(scores, queries, keys, stride, query_positions, first_key, head, entry, data):
            for k in range(keys):
                for q in range(queries):
                    distance = np.float32(np.int32(query_positions[q] - first_key - k))
                    scores[k * stride + q] -= np.float32(0.5) * abs(distance)

        score_function = regard.ScoreFunction(recent.ctypes)

    Examples
    --------
    >>> import ctypes
    >>> import numpy as np
    >>> import regard
    >>> @regard.ScoreFunction.c_type("float32")
    ... def tempered(scores, queries, keys, stride, positions, first_key, head, entry, user_data):
    ...     temperature = ctypes.cast(user_data, ctypes.POINTER(ctypes.c_float))[head]
    ...     for k in range(keys):
    ...         for q in range(queries):
    ...             scores[k * stride + q] /= temperature
    >>> temperatures = np.array([1.0, 0.5], np.float32)
    >>> score_function = regard.ScoreFunction(tempered, user_data=temperatures)
    >>> score_function.dtype
    dtype('float32')
    >>> score_function.user_data_address == temperatures.ctypes.data
    True
    >>> score_function.derivative_address
    0
    """

    __module__ = "regard"
    dtype: DType
    address: int
    derivative_address: int
    user_data_address: int

    def __init__(
        self,
        function: Any,
        derivative: Any = None,
        user_data: Any = None,
        *,
        dtype: DTypeLike | None = None,
    ) -> None:
        wanted = None if dtype is None else single_or_double("dtype", dtype)
        address, of_scores = _function("function", function, wanted)
        derivative_address = user_data_address = 0
        if derivative is not None:
            derivative_address, _ = _function("derivative", derivative, of_scores)
        if user_data is not None:
            user_data_address = _checked("user_data", _data_address(user_data))
        vars(self).update(
            dtype=of_scores,
            address=address,
            derivative_address=derivative_address,
            user_data_address=user_data_address,
            _alive=(function, derivative, user_data),
        )

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
            If `dtype` is neither float32 nor float64.

        Examples
        --------
        >>> import numpy as np
        >>> import regard
        >>> @regard.ScoreFunction.c_type("float32")
        ... def recent(scores, queries, keys, stride, query_positions, first_key, *others):
        ...     for k in range(keys):
        ...         for q in range(queries):
        ...             scores[k * stride + q] -= abs(query_positions[q] - (first_key + k))
        >>> scores, query_positions = np.zeros((3, 2), np.float32), np.array([4, 5], np.int64)
        >>> recent(
        ...     np.ctypeslib.as_ctypes(scores.reshape(-1)), 2, 3, 2,
        ...     np.ctypeslib.as_ctypes(query_positions), 3, 0, 0, None,
        ... )
        >>> scores
        array([[-1., -2.],
               [ 0., -1.],
               [-1.,  0.]], dtype=float32)
        """
        real = c_float if single_or_double("dtype", dtype).itemsize == 4 else c_double
        pointers = POINTER(real), POINTER(c_int64), c_void_p
        types: dict[str, Any] = dict(zip(_POINTERS, pointers, strict=True))
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
            The signature. The user data are a ``voidptr``, which ``numba.carray`` converts to an
            array: ``numba.carray(user_data, shape, dtype)``. A signature in which the last argument
            is another pointer is accepted too.

        Raises
        ------
        TypeError
            If `dtype` is neither float32 nor float64.

        Examples
        --------
        >>> import regard
        >>> signature = regard.ScoreFunction.numba_signature("float64")
        >>> signature.startswith("void(CPointer(float64), int64, int64, int64, CPointer(int64), ")
        True
        """
        real = f"CPointer({single_or_double('dtype', dtype)})"
        types = dict(zip(_POINTERS, (real, "CPointer(int64)", "voidptr"), strict=True))
        return f"void({', '.join(types.get(each, 'int64') for each in _PARAMETERS.values())})"

    def __repr__(self) -> str:
        addresses = {"derivative": self.derivative_address, "user_data": self.user_data_address}
        options = "".join(f"{name}={it:#x}, " for name, it in addresses.items() if it)
        return f"ScoreFunction({self.address:#x}, {options}dtype='{self.dtype}')"

    def __copy__(self) -> ScoreFunction:
        return self  # it is immutable

    def __deepcopy__(self, memo: dict[int, Any]) -> ScoreFunction:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a ScoreFunction cannot be pickled: it holds addresses, which mean nothing in another "
            "process; create it there, from a function that is compiled there"
        )


def _function(name: str, value: Any, dtype: DType | None) -> tuple[int, DType]:
    """Return the address of a C function and the dtype of its scores, or raise an error."""
    has_types = isinstance(value, CFuncPtr)
    if has_types and type(value)._flags_ & _NEEDS_GIL:
        raise TypeError(
            f"{name} must not need the GIL, got a ctypes function of PYFUNCTYPE or a PyDLL; "
            "use CFUNCTYPE or a CDLL for functions that do not call Python"
        )
    if not (has_types or isinstance(value, c_void_p) or _is_int(value)):
        raise _not_a_function(name, value, dtype)
    address = _checked(name, _pointed(value))
    if has_types and value.argtypes is not None:
        return address, _checked_signature(name, value, dtype)
    if dtype is None:
        raise TypeError(
            f"dtype must be float32 or float64 if the signature of {name} is unknown, got None"
        )
    return address, dtype


def _checked(name: str, address: int) -> int:
    if not 0 < address <= _LARGEST_ADDRESS:
        null = "; pass None for NULL" if name == "user_data" else ", which is NULL"
        came = f"{address}{'' if address else null}"
        raise ValueError(f"{name} must have an address from 1 to {_LARGEST_ADDRESS:#x}, got {came}")
    return address


def _not_a_function(name: str, value: Any, dtype: DType | None) -> TypeError:
    """Return the error for an object that is not a C function, with advice."""
    of_type = "float32" if dtype is None else str(dtype)
    compiled = f'@numba.cfunc(regard.ScoreFunction.numba_signature("{of_type}"))'
    kind, module = type(value).__name__, type(value).__module__.partition(".")[0]
    if module == "numba" and hasattr(value, "ctypes"):
        came = f"a Numba {kind}: pass its .ctypes"
    elif module == "numba":
        came = (
            f"a Numba {kind}, which is called from Python only: compile it with {compiled} and "
            "pass its .ctypes"
        )
    elif module == "_cffi_backend":
        came = f'a cffi object: pass int(ffi.cast("uintptr_t", {name})), and dtype='
    elif callable(value):
        came = (
            f"a Python {kind}, which would be called for each tile of scores, by threads that do "
            f"not hold the GIL: compile it with {compiled} and pass its .ctypes, or pass "
            f'regard.ScoreFunction.c_type("{of_type}")({name}), which is slow, since each call '
            "waits for the GIL"
        )
    else:
        came = shown(value)
    return TypeError(f"{name} must be a C function of ctypes, or the address of one, got {came}")


def _checked_signature(name: str, function: Any, wanted: DType | None) -> DType:
    """Return the dtype of a ctypes function's scores, or raise TypeError."""
    arguments = function.argtypes
    real = "double" if wanted == np.float64 else "float"
    signature = ", ".join(f"{kind} {each}" for each, kind in _PARAMETERS.items())
    either = ", or with double* scores for float64" if wanted is None else ""
    rest = f"; its signature must be void ({signature.format(real=real)}){either}"
    wanted_count, count = len(_PARAMETERS), len(arguments)
    if count != wanted_count:
        raise TypeError(f"{name} must take {wanted_count} arguments, got {count}{rest}")
    # By default, a CDLL function is declared to return c_int.
    is_unsaid = function.restype is ctypes.c_int and not hasattr(type(function), "_argtypes_")
    if function.restype is not None and not is_unsaid:
        raise TypeError(f"{name} must return void, got {_shown_type(function.restype)}{rest}")
    if wanted is None and _kind_of(arguments[0]) == "void*":
        raise TypeError(f"dtype must be float32 or float64 if {name} takes void* scores, got None")
    reals = ["float32*", "float64*"] if wanted is None else [f"{wanted}*", "void*"]
    accepted = {"{real}*": reals, "int64_t": ["int64"], "const int64_t*": ["int64*", "void*"]}
    for i, (parameter, needed) in enumerate(_PARAMETERS.items()):
        kind = _kind_of(arguments[i])
        # The user data may be a pointer to anything, since all pointers are passed alike.
        if kind.endswith("*") if needed == "void*" else kind in accepted[needed]:
            continue
        raise TypeError(
            f"{name} must take {needed.format(real=real)} {parameter} as argument {i + 1}, got "
            f"{_shown_type(arguments[i])}{rest}"
        )
    return wanted or np.dtype(_kind_of(arguments[0])[:-1])


def _kind_of(kind: Any) -> str:
    """Return the NumPy name of a type in ``argtypes``, with * for pointers."""
    if hasattr(kind, "_dtype_"):  # numpy.ctypeslib.ndpointer
        return f"{kind._dtype_ or 'void'}*"
    if kind is c_void_p:
        return "void*"
    if isinstance(kind, type) and issubclass(kind, ctypes._Pointer):
        return f"{_kind_of(kind._type_)}*"
    try:
        return str(np.dtype(kind))  # of a number
    except TypeError:
        return _shown_type(kind)


def _shown_type(kind: Any) -> str:
    return getattr(kind, "__name__", None) or shown(kind)


def _is_int(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _pointed(value: Any) -> int:
    """Return an address, as an int or as a ctypes pointer or function holds it."""
    return int(value) if _is_int(value) else ctypes.cast(value, c_void_p).value or 0


def _data_address(value: Any) -> int:
    """Return the address of user data, or raise TypeError or ValueError."""
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject or not value.dtype.isnative:
            raise TypeError(
                "user_data must be an array of numbers in the machine's byte order, got an array "
                f"of {value.dtype}"
            )
        if not (value.flags.c_contiguous and value.flags.aligned):
            raise ValueError(
                "user_data must be C-contiguous and aligned, got an array of shape "
                f"{value.shape} and strides {value.strides}; pass a copy"
            )
        return int(value.ctypes.data)
    if _is_int(value) or isinstance(value, ctypes._Pointer | CFuncPtr | c_void_p | ctypes.c_char_p):
        return _pointed(value)
    is_number = isinstance(value, ctypes._SimpleCData) and not isinstance(value, ctypes.py_object)
    if is_number or isinstance(value, ctypes.Array | ctypes.Structure | ctypes.Union):
        return ctypes.addressof(value)
    raise TypeError(
        "user_data must be None, an address, a NumPy array, or a pointer, an array or a structure "
        f"of ctypes, got {shown(value)}"
    )
