"""Hold a C function that changes attention scores."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_double, c_float, c_int64, c_void_p
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from regard._arguments.arrays import single_or_double
from regard._arguments.c_functions import PARAMETERS, checked_type, data_address, function_of
from regard._runtime.public import public

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    DType = np.dtype[Any]


@public
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
        If an argument has the wrong kind, a signature is wrong, or the signature is unknown and
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

    A function does not hide keys: -inf is a score like any other, with a weight of 0, and a row
    whose scores are all -inf has an output of NaN. A mask hides keys.

    A plain Python function is refused. ``c_type(dtype)(python_function)`` is accepted, because
    ctypes acquires the GIL for each call. This is slow, and meant for learning. If the function
    raises an exception, Python prints the exception, and the other scores of the tile do not
    change.

    A `ScoreFunction` is immutable. It keeps its functions and its user data alive, unless they were
    given as addresses. The attributes ``ctypes`` and ``cffi`` of a Numba function contain only its
    address. The contents of the user data may change between calls.

    An example with Numba. The conversion to int32 lets the compiler use vector instructions, since
    few CPUs convert vectors of int64 to float32::

        @numba.cfunc(regard.ScoreFunction.numba_signature("float32"))
        def recent(scores, queries, keys, stride, query_positions, first_key, head, entry, data):
            for k in range(keys):
                for q in range(queries):
                    distance = np.float32(np.int32(query_positions[q] - first_key - k))
                    scores[k * stride + q] -= np.float32(0.5) * abs(distance)

        score_function = regard.ScoreFunction(recent)

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
        main = function_of("function", function, wanted)
        self._dtype = checked_type("function", main, wanted)
        self._address, self._derivative_address = main.address, 0
        data = main.user_data if user_data is None else user_data
        self._user_data_address = data_address(data)
        if derivative is not None:
            other = function_of("derivative", derivative, self._dtype)
            checked_type("derivative", other, self._dtype)
            self._derivative_address = other.address
            if user_data is None and other.user_data is not None:
                _check_same_data(self._user_data_address, data_address(other.user_data))
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
        types: dict[str, Any] = {
            "{real}*": POINTER(real),
            "const int64_t*": POINTER(c_int64),
            "void*": c_void_p,
        }
        return ctypes.CFUNCTYPE(None, *(types.get(each, c_int64) for each in PARAMETERS.values()))

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
        types = {"{real}*": real, "const int64_t*": "CPointer(int64)", "void*": "voidptr"}
        return f"void({', '.join(types.get(each, 'int64') for each in PARAMETERS.values())})"

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


def _check_same_data(function: int, derivative: int) -> None:
    if function != derivative:
        raise ValueError(
            "function and derivative must have the same user_data, got the addresses "
            f"{function:#x} and {derivative:#x}"
        )
