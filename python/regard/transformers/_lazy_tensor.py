"""A tensor without elements, which becomes an array only when its elements are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from regard._runtime.optional import needed

torch = needed("torch", "regard.transformers", "transformers")
pytree = needed("torch.utils._pytree", "regard.transformers", "transformers")

_aten = torch.ops.aten
_SAME = {_aten.detach.default, _aten.alias.default}


class _State:
    """The data that the aliases of a tensor share."""

    def __init__(self, meaning: Any, make: Callable[[], Any]) -> None:
        self.meaning = meaning
        self.make = make
        # The array, once a writable alias of it has been returned.
        self.shared: Any = None

    def array(self) -> Any:
        return self.make() if self.shared is None else self.shared


class LazyTensor(torch.Tensor):  # type: ignore[misc, name-defined]
    """A tensor that is represented by something smaller than its elements: its meaning.

    Any operation on it is applied to the array that it represents, so that a model can use it like
    that array. `meaning_or_array` returns its current state.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl
    _state: _State

    @staticmethod
    def __new__(cls, state: _State, shape: tuple[int, ...], dtype: Any, device: Any) -> LazyTensor:
        tensor = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        tensor._state = state
        return tensor  # type: ignore[no-any-return]

    @classmethod
    def of(
        cls,
        meaning: Any,
        shape: tuple[int, ...],
        dtype: Any,
        device: Any,
        make: Callable[[], Any],
    ) -> Self:
        """Return a tensor.

        Parameters
        ----------
        meaning : object
            The information that attention needs.
        shape : tuple of int
        dtype : torch.dtype
        device : torch.device or str
            The device of the array that `make` returns.
        make : callable
            Returns the array.
        """
        return cls(_State(meaning, make), shape, dtype, device)

    def meaning_or_array(self) -> tuple[Any, Any]:
        """Return the meaning and None, or None and the equivalent array."""
        state = self._state
        return (state.meaning, None) if state.shared is None else (None, state.shared)

    def array(self) -> Any:
        """Return the array that the tensor represents."""
        return self._state.array()

    def __repr__(self, **_: Any) -> str:
        state = self._state
        inner = state.meaning if state.shared is None else state.shared
        return f"{type(self).__name__}({inner})"

    @classmethod
    def __torch_dispatch__(
        cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if operator in _SAME or (operator is _aten.slice.Tensor and _takes_all(*args)):
            tensor = args[0]
            return type(tensor)(tensor._state, tuple(tensor.shape), tensor.dtype, tensor.device)
        # If an operator writes to the array or returns a view of it, the tensor must keep this
        # array from now on.
        is_aliased = any(argument.alias_info for argument in operator._schema.arguments)

        def array_of(value: Any) -> Any:
            if not isinstance(value, LazyTensor):
                return value
            state = value._state
            array = state.array()
            if is_aliased:
                state.shared = array
            return array

        args, kwargs = pytree.tree_map(array_of, (args, kwargs or {}))
        return operator(*args, **kwargs)


def _on_array(name: str) -> Callable[..., Any]:
    """Return a method that works on the array. Its result may share the array's memory."""

    def method(self: LazyTensor, *args: Any, **kwargs: Any) -> Any:
        state = self._state
        state.shared = state.array()
        return getattr(state.shared, name)(*args, **kwargs)

    return method


# These methods read or copy memory without an operator, and PyTorch does not prevent all of them.
for _name in (
    "__array__",
    "__deepcopy__",
    "__dlpack__",
    "__reduce_ex__",
    "data_ptr",
    "numpy",
    "share_memory_",
    "tolist",
):
    setattr(LazyTensor, _name, _on_array(_name))


def _takes_all(
    tensor: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> bool:
    """Return whether a slice contains all elements."""
    starts = start is None or start == 0
    return starts and step == 1 and (end is None or end >= tensor.shape[dim])
