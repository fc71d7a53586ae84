"""A mask stored as a pattern, which becomes an array only when its elements are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from regard._runtime.optional import needed

torch = needed("torch", "regard.transformers", "transformers")
pytree = needed("torch.utils._pytree", "regard.transformers", "transformers")

_aten = torch.ops.aten
_SAME = {_aten.detach.default, _aten.alias.default}


class _LazyPattern:
    """The state that the aliases of a mask share."""

    def __init__(self, options: dict[str, Any], make: Callable[[], Any]) -> None:
        self.options = options
        self.make = make
        # The array, once a writable alias of it has been returned.
        self.shared: Any = None

    def array(self) -> Any:
        return self.make() if self.shared is None else self.shared


class PatternMask(torch.Tensor):  # type: ignore[misc, name-defined]
    """A mask of shape ``(batch, 1, q_len, kv_len)``, without its elements.

    Models pass masks from layer to layer, and some slice them, combine them with other masks or
    write to them. Any operation on a `PatternMask` is applied to the array that it represents, so
    that a model can use it like the mask that ``"sdpa"`` or eager attention would receive.
    `options_or_array` returns the current state of the mask.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl
    _state: _LazyPattern

    @staticmethod
    def __new__(
        cls, state: _LazyPattern, shape: tuple[int, ...], dtype: Any, device: Any
    ) -> PatternMask:
        mask = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        mask._state = state
        return mask  # type: ignore[no-any-return]

    @classmethod
    def of(
        cls,
        options: dict[str, Any],
        shape: tuple[int, ...],
        dtype: Any,
        device: Any,
        make: Callable[[], Any],
    ) -> PatternMask:
        """Return a mask.

        Parameters
        ----------
        options : dict
            The equivalent options of `regard.torch.scaled_dot_product_attention`.
        shape : tuple of int
            ``(batch, 1, q_len, kv_len)``.
        dtype : torch.dtype
            Bool, or a floating type if the array is added to scores.
        device : torch.device or str
            The device of the array that `make` returns.
        make : callable
            Returns the array.
        """
        return cls(_LazyPattern(options, make), shape, dtype, device)

    def options_or_array(self) -> tuple[dict[str, Any], Any]:
        """Return the equivalent options and None, or {} and the equivalent array."""
        state = self._state
        return (state.options, None) if state.shared is None else ({}, state.shared)

    def array(self) -> Any:
        """Return the array that the mask represents."""
        return self._state.array()

    def __repr__(self, **_: Any) -> str:
        state = self._state
        return f"PatternMask({state.options if state.shared is None else state.shared})"

    @classmethod
    def __torch_dispatch__(
        cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if operator in _SAME or (operator is _aten.slice.Tensor and _takes_all(*args)):
            mask = args[0]
            return cls(mask._state, tuple(mask.shape), mask.dtype, mask.device)
        # If an operator writes to the array or returns a view of it, the mask must keep this array
        # from now on.
        is_aliased = any(argument.alias_info for argument in operator._schema.arguments)

        def array_of(value: Any) -> Any:
            if not isinstance(value, PatternMask):
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

    def method(self: PatternMask, *args: Any, **kwargs: Any) -> Any:
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
    setattr(PatternMask, _name, _on_array(_name))


def _takes_all(
    mask: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> bool:
    """Return whether a slice contains all elements."""
    starts = start is None or start == 0
    return starts and step == 1 and (end is None or end >= mask.shape[dim])
