"""Observers of the attention function, and the recorder, an observer that copies tensors.

An observer sees the calls of the thread in which it was set. If no thread has an observer, a call
only checks an empty dictionary.
"""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import contextmanager, suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import regard
from regard._arguments.arrays import bytes_of, shown
from regard._arguments.masks import Masks, is_sparse
from regard._arguments.numbers import count, listed
from regard._arguments.options import RecordedOptions, names_of
from regard._recording.selection import Selection
from regard.torch._arguments import TYPES
from regard.torch._memory import as_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

MAX_BYTES = 4_000_000_000
_OPTIONS = frozenset(names_of(RecordedOptions))
_NARROW = (torch.float16, torch.bfloat16)


# An observer is called with each call before it is computed: its tensors, which are query, key and
# value, and the starts of packed sequences; the bool or sparse mask and the float mask; and the
# options that are not None, as they were given. An exception ends the call.
OBSERVERS: dict[int, Callable[..., None]] = {}  # by thread


@contextmanager
def observed_by(observer: Callable[..., None] | None) -> Iterator[None]:
    """Set the observer of this thread, or no observer, in place of the current observer."""
    thread = get_ident()
    before = OBSERVERS.pop(thread, None)
    if observer is not None:
        OBSERVERS[thread] = observer
    try:
        yield
    finally:
        OBSERVERS.pop(thread, None)
        if before is not None:
            OBSERVERS[thread] = before


def is_observed() -> bool:
    """Return whether the calls of this thread are observed."""
    return bool(OBSERVERS) and get_ident() in OBSERVERS


def show_call(
    tensors: tuple[Tensor, ...], masks: tuple[Any, Tensor | None], options: dict[str, Any]
) -> None:
    """Show a call to the observer of this thread, if it has one."""
    observer = OBSERVERS.get(get_ident())
    if observer is not None:
        observer(tensors, masks, options)


class RecordRequest(NamedTuple):
    """The checked arguments of a call that records."""

    selection: Selection | None
    dtype: torch.dtype | None
    max_bytes: int | None

    @classmethod
    def of(cls, layers: Any, dtype: Any, max_bytes: Any) -> RecordRequest:
        """Check the arguments; raises TypeError or ValueError."""
        most = None if max_bytes is None else count("max_bytes", max_bytes)
        return cls(Selection.of(layers), _storage_type(dtype), most)


def _storage_type(dtype: Any) -> torch.dtype | None:
    """Return a type of PyTorch, of NumPy or by name as PyTorch's, or raise TypeError."""
    if dtype is None:
        return None
    types = {str(each).removeprefix("torch."): each for each in TYPES}
    name = str(dtype).removeprefix("torch.")
    if not isinstance(dtype, str | torch.dtype):
        with suppress(TypeError):
            name = np.dtype(dtype).name
    if name not in types:
        raise TypeError(f"dtype must be one of {listed(types)}, got {shown(dtype)}")
    return types[name]


class ModulePaths:
    """Names the calls of a model by the modules that make them.

    The innermost running module is found on the stack, because hooks would disable the fast paths
    of some modules, and would affect the modules of other threads.
    """

    def __init__(self, module: Any) -> None:
        # The wrapper of a compiled module is not part of the path.
        self._paths: dict[int, str] = {
            id(each): path.replace("_orig_mod.", "").removesuffix("_orig_mod")
            for path, each in module.named_modules()
        }
        self._root = type(getattr(module, "_orig_mod", module)).__name__
        self._counts: Counter[str] = Counter()

    def next_name(self) -> str:
        """Return the name of a new call: the path of its module, with a number from the second on.

        The first call in the module ``a.b`` has the name ``"a.b"``, and the second ``"a.b:2"``.
        """
        path = self._running(sys._getframe(1)) or self._root
        self._counts[path] += 1
        count = self._counts[path]
        return path if count == 1 else f"{path}:{count}"

    def _running(self, frame: FrameType | None) -> str:
        while frame is not None:
            # Names of arguments come first; a snapshot of the locals is needed only for methods.
            if frame.f_code.co_varnames[:1] == ("self",):
                path: str | None = self._paths.get(id(frame.f_locals.get("self")))
                if path is not None:
                    return path
            frame = frame.f_back
        return ""


class RecordingStopped(Exception):
    """Ends a run whose recording has failed; the recorder raises the error."""


class Recorder:
    """An observer that names the calls of a run, and copies those that the request selects."""

    def __init__(self, module: Any, request: RecordRequest) -> None:
        self._request = request
        self._paths = ModulePaths(module)
        self._masks: dict[tuple[Any, ...], Tensor] = {}
        self._nbytes = 0
        self._refusal: Exception | None = None
        self.names: list[str] = []
        self.layers: list[regard.RecordedLayer] = []

    def __call__(
        self,
        tensors: tuple[Tensor, ...],
        masks: tuple[Any, Tensor | None],
        options: dict[str, Any],
    ) -> None:
        """Record a call if it is selected."""
        name = self._paths.next_name()
        self.names.append(name)
        selection = self._request.selection
        if selection is not None and not selection.has(len(self.names) - 1, name):
            return
        try:
            self.layers.append(self._layer(name, tensors, masks, options))
        except Exception as error:
            self._refusal = error
            # PyTorch would compute a call itself that raises one of the usual errors.
            raise RecordingStopped(name) from error

    def check(self) -> None:
        """Raise the error that ended the run, even if the model has caught it."""
        if self._refusal is not None:
            raise self._refusal

    def check_layers(self) -> None:
        """Raise ValueError if some of the selected layers do not exist."""
        if self._request.selection is not None:
            self._request.selection.check(self.names)

    def _layer(
        self,
        name: str,
        tensors: tuple[Tensor, ...],
        masks: tuple[Any, Tensor | None],
        options: dict[str, Any],
    ) -> regard.RecordedLayer:
        query, key, _, *starts = tensors
        if starts:
            raise NotImplementedError(
                f"{name} calls attention with packed sequences or nested tensors, which cannot be "
                "recorded: pad them, or run the module with one sequence"
            )
        if query.is_meta or torch._C._functorch.is_functorch_wrapped_tensor(query):
            raise NotImplementedError(
                f"{name} calls attention on tensors without their own memory, as within "
                "torch.func.vmap or on the meta device, which cannot be recorded"
            )
        query, key = _with_heads(query), _once(_with_heads(key), (-3,))
        item_bytes = (self._request.dtype or query.dtype).itemsize
        self._reserve(name, (query.numel() + key.numel()) * item_bytes)
        of_query, of_key = self._copied(name, query), self._copied(name, key)
        mask = Masks(*(self._mask(name, each) for each in masks)).argument
        given = {option: value for option, value in options.items() if option in _OPTIONS}
        own = {option: _own(value) for option, value in given.items()}
        return regard.RecordedLayer(name, of_query, of_key, mask, **own)

    def _reserve(self, name: str, nbytes: int) -> None:
        """Raise ValueError if the recording would become too large."""
        self._nbytes += nbytes
        most = self._request.max_bytes
        if most is not None and self._nbytes > most:
            raise ValueError(
                f"the recording would have {bytes_of(self._nbytes)} with the layer {name!r}, after "
                f"{len(self.layers)} others, and max_bytes is {bytes_of(most)}: raise max_bytes, "
                "name fewer layers with layers=, or pass a narrower dtype="
            )

    def _copied(self, name: str, tensor: Tensor) -> Any:
        copy = tensor.detach().to(
            device="cpu",
            dtype=self._request.dtype or tensor.dtype,
            memory_format=torch.contiguous_format,
            copy=True,
        )
        if self._request.dtype is torch.float16 and not torch.equal(
            copy.isfinite(), tensor.isfinite().to("cpu")
        ):
            raise ValueError(
                f"dtype must hold the numbers of {name}, some of which are too large for float16: "
                "pass 'bfloat16' or 'float32'"
            )
        return as_array(copy)

    def _mask(self, name: str, mask: Any) -> Any:
        """Return a mask as an array that equal masks of other layers share."""
        if mask is None or is_sparse(mask):
            return mask
        own = _once(mask.detach(), range(-mask.ndim, 0)).to("cpu")
        if own.dtype in _NARROW:
            own = own.float()  # as attention reads it
        place = tuple(own.shape), own.dtype
        kept = self._masks.get(place)
        if kept is None or not torch.equal(kept, own):
            self._reserve(name, own.numel() * own.element_size())
            kept = own.to(memory_format=torch.contiguous_format, copy=True)
            self._masks[place] = kept
        return as_array(kept)


def _own(value: Any) -> Any:
    """Return a copy of an array or a tensor as an array, and other values unchanged."""
    if isinstance(value, Tensor):
        value = as_array(value.detach().to("cpu"))
    return np.array(value) if isinstance(value, np.ndarray) else value


def _with_heads(tensor: Tensor) -> Tensor:
    return tensor[None] if tensor.ndim == 2 else tensor


def _once(tensor: Tensor, axes: Any) -> Tensor:
    """Return a view with length 1 for broadcast axes without memory, of the given axes."""
    for axis in axes:
        if tensor.shape[axis] > 1 and tensor.stride(axis) == 0:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor
