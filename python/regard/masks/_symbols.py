"""Represent many integers at once: intervals with arithmetic, and truth values with unknowns.

An operation on intervals returns an interval that contains the result of the operation on any of
their integers, as NumPy computes it in int64. It may contain more.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

# Larger integers wrap around, so that the result may be any integer.
_LEAST, _MOST = -(2**63), 2**63 - 1
# NumPy compares integers with floats as floats, which are exact up to this number.
_EXACT_IN_FLOAT = 2**53


class _Symbol:
    """Makes NumPy's functions call the operators of the symbols, or refuse them."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        operation = _UFUNCS.get(ufunc)
        if operation is None or method != "__call__" or keywords:
            return NotImplemented
        return operation(*(_operand(value) for value in inputs))

    def __array_function__(self, *_: Any) -> NoReturn:
        raise TypeError("a symbol has no elements")

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("a symbol has no elements")

    def __bool__(self) -> NoReturn:
        raise TypeError("a symbol has no truth value")


class Truth(_Symbol):
    """What is known about many truth values.

    Attributes
    ----------
    can_be_true, can_be_false : bool
        Whether any of the values may be True, and whether any may be False.
    """

    __slots__ = ("can_be_false", "can_be_true")

    def __init__(self, can_be_true: bool, can_be_false: bool) -> None:
        self.can_be_true, self.can_be_false = can_be_true, can_be_false

    @staticmethod
    def of(value: Any) -> Truth:
        """Return a truth value as a symbol, or raise TypeError."""
        if isinstance(value, Truth):
            return value
        if isinstance(value, bool | np.bool_):
            return Truth(bool(value), not value)
        raise TypeError(f"not a truth value: {type(value).__name__}")

    def __and__(self, other: Any) -> Truth:
        other = Truth.of(other)
        return Truth(
            self.can_be_true and other.can_be_true, self.can_be_false or other.can_be_false
        )

    def __or__(self, other: Any) -> Truth:
        other = Truth.of(other)
        return Truth(
            self.can_be_true or other.can_be_true, self.can_be_false and other.can_be_false
        )

    def __xor__(self, other: Any) -> Truth:
        other = Truth.of(other)
        return Truth(
            (self.can_be_true and other.can_be_false) or (self.can_be_false and other.can_be_true),
            (self.can_be_true and other.can_be_true) or (self.can_be_false and other.can_be_false),
        )

    def __invert__(self) -> Truth:
        return Truth(self.can_be_false, self.can_be_true)

    def __eq__(self, other: object) -> Truth:  # type: ignore[override]
        return ~(self ^ other)

    def __ne__(self, other: object) -> Truth:  # type: ignore[override]
        return self ^ other

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__


_UNKNOWN = Truth(True, True)


class Span(_Symbol):
    """Integers, each from `least` to `most`."""

    __slots__ = ("least", "most")

    def __init__(self, least: int, most: int) -> None:
        if least < _LEAST or most > _MOST:
            least, most = _LEAST, _MOST
        self.least, self.most = least, most

    @staticmethod
    def of(value: Any) -> Span:
        """Return an integer as a symbol, or raise TypeError."""
        if isinstance(value, Span):
            return value
        is_signed = isinstance(value, int) or (
            isinstance(value, np.integer) and value.dtype != np.uint64
        )
        if not is_signed or not _LEAST <= value <= _MOST:
            raise TypeError(f"not an integer of 64 bits: {value!r}")
        return Span(int(value), int(value))

    @staticmethod
    def _around(*ends: int) -> Span:
        return Span(min(ends), max(ends))

    def __add__(self, other: Any) -> Span:
        other = Span.of(other)
        return Span(self.least + other.least, self.most + other.most)

    def __sub__(self, other: Any) -> Span:
        other = Span.of(other)
        return Span(self.least - other.most, self.most - other.least)

    def __mul__(self, other: Any) -> Span:
        other = Span.of(other)
        return Span._around(
            *(a * b for a in (self.least, self.most) for b in (other.least, other.most))
        )

    def __floordiv__(self, other: Any) -> Span:
        other = Span.of(other)
        if other.least <= 0 <= other.most:  # NumPy returns 0
            return Span(_LEAST, _MOST)
        return Span._around(
            *(a // b for a in (self.least, self.most) for b in (other.least, other.most))
        )

    def __mod__(self, other: Any) -> Span:
        other = Span.of(other)
        if other.least <= 0 <= other.most:
            return Span(_LEAST, _MOST)
        divisor = other.least
        if divisor == other.most and self.least // divisor == self.most // divisor:
            return Span(self.least % divisor, self.most % divisor)
        if divisor < 0:
            return Span(other.least + 1, 0)
        return Span(0, min(other.most - 1, self.most) if self.least >= 0 else other.most - 1)

    def __neg__(self) -> Span:
        return Span(-self.most, -self.least)

    def __divmod__(self, other: Any) -> tuple[Span, Span]:
        return self // other, self % other

    def __pow__(self, exponent: Any) -> Span:
        if not isinstance(exponent, int | np.integer) or not 0 <= exponent < 64:
            raise TypeError("not an exponent")
        base = self if exponent % 2 else abs(self)
        return Span(base.least ** int(exponent), base.most ** int(exponent))

    def __pos__(self) -> Span:
        return self

    def __invert__(self) -> Span:
        return Span(~self.most, ~self.least)

    def __abs__(self) -> Span:
        nearest = max(self.least, -self.most, 0)
        return Span(nearest, max(-self.least, self.most))

    def __rshift__(self, other: Any) -> Span:
        return self // _power_of_two(other)

    def __lshift__(self, other: Any) -> Span:
        return self * _power_of_two(other)

    def __and__(self, other: Any) -> Span:
        return self._of_bits(Span.of(other), min)

    def __or__(self, other: Any) -> Span:
        return self._of_bits(Span.of(other), _all_bits)

    __xor__ = __or__

    def _of_bits(self, other: Span, most: Callable[[int, int], int]) -> Span:
        """Return the bounds of a bitwise operation on integers that are not negative."""
        if self.least < 0 or other.least < 0:
            return Span(_LEAST, _MOST)
        return Span(0, most(self.most, other.most))

    def __radd__(self, other: Any) -> Span:
        return Span.of(other) + self

    def __rsub__(self, other: Any) -> Span:
        return Span.of(other) - self

    def __rmul__(self, other: Any) -> Span:
        return Span.of(other) * self

    def __rfloordiv__(self, other: Any) -> Span:
        return Span.of(other) // self

    def __rmod__(self, other: Any) -> Span:
        return Span.of(other) % self

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __lt__(self, other: Any) -> Truth:
        low, high = self._bounds(other)
        if low is None or high is None:
            return _UNKNOWN
        return Truth(self.least < high, self.most >= low)

    def __le__(self, other: Any) -> Truth:
        low, high = self._bounds(other)
        if low is None or high is None:
            return _UNKNOWN
        return Truth(self.least <= high, self.most > low)

    def __gt__(self, other: Any) -> Truth:
        is_less: Truth = self <= other
        return ~is_less

    def __ge__(self, other: Any) -> Truth:
        is_less: Truth = self < other
        return ~is_less

    def __eq__(self, other: object) -> Truth:  # type: ignore[override]
        low, high = self._bounds(other)
        if low is None or high is None:
            return _UNKNOWN
        is_one = self.least == self.most == low == high
        return Truth(self.least <= high and low <= self.most, not is_one)

    def __ne__(self, other: object) -> Truth:  # type: ignore[override]
        return ~(self == other)

    def _bounds(self, other: Any) -> tuple[Any, Any]:
        """Return the bounds of the operands, or None if the comparison is not exact."""
        if not isinstance(other, float | np.floating):
            other = Span.of(other)
            return other.least, other.most
        number = float(other)
        is_exact = (
            isinstance(other, float | np.float64 | np.float32)
            and number == number
            and max(-self.least, self.most) <= _EXACT_IN_FLOAT
        )
        return (number, number) if is_exact else (None, None)


def _power_of_two(shift: Any) -> int:
    if not isinstance(shift, int | np.integer) or not 0 <= shift < 63:
        raise TypeError("not a shift")
    return 1 << int(shift)


def _all_bits(a: int, b: int) -> int:
    return int((1 << max(a, b).bit_length()) - 1)


def _minimum(a: Any, b: Any) -> Span:
    a, b = Span.of(a), Span.of(b)
    return Span(min(a.least, b.least), min(a.most, b.most))


def _maximum(a: Any, b: Any) -> Span:
    a, b = Span.of(a), Span.of(b)
    return Span(max(a.least, b.least), max(a.most, b.most))


def _logical(operation: Callable[..., Any]) -> Callable[..., Truth]:
    def on_truths(*values: Any) -> Truth:
        return operation(*(Truth.of(value) for value in values))  # type: ignore[no-any-return]

    return on_truths


def _operand(value: Any) -> Any:
    """Return an operand of a NumPy function as a symbol or a Python number, or raise TypeError.

    The operators of NumPy's scalars would call the function again.
    """
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, np.bool_):
        return Truth.of(value)
    if isinstance(value, np.integer):
        return Span.of(value)
    if isinstance(value, np.float64 | np.float32):
        return float(value)
    if isinstance(value, np.ndarray | np.generic):
        raise TypeError(f"not a number: {type(value).__name__}")
    return value


_UFUNCS: dict[Any, Callable[..., Any]] = {
    np.add: operator.add,
    np.subtract: operator.sub,
    np.multiply: operator.mul,
    np.floor_divide: operator.floordiv,
    np.remainder: operator.mod,
    np.negative: operator.neg,
    np.positive: operator.pos,
    np.absolute: abs,
    np.divmod: divmod,
    np.power: operator.pow,
    np.square: lambda span: span**2,
    np.left_shift: operator.lshift,
    np.right_shift: operator.rshift,
    np.bitwise_and: operator.and_,
    np.bitwise_or: operator.or_,
    np.bitwise_xor: operator.xor,
    np.invert: operator.invert,
    np.less: operator.lt,
    np.less_equal: operator.le,
    np.greater: operator.gt,
    np.greater_equal: operator.ge,
    np.equal: operator.eq,
    np.not_equal: operator.ne,
    np.minimum: _minimum,
    np.maximum: _maximum,
    np.logical_and: _logical(operator.and_),
    np.logical_or: _logical(operator.or_),
    np.logical_xor: _logical(operator.xor),
    np.logical_not: _logical(operator.invert),
}
