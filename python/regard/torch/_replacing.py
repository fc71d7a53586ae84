"""Replace PyTorch's attention with regard, in unchanged code.

The operator `aten::scaled_dot_product_attention` gets another kernel for tensors on the CPU. Every
caller arrives there: `torch.nn.functional.scaled_dot_product_attention` under any name, PyTorch's
own modules, TorchScript, exported programs, and compilers, which record what the kernel calls. A
PyTorch mode would see fewer calls, and would slow down all other functions.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nested._internal.ops as _of_nested_tensors

from regard._runtime.uninterrupted import uninterrupted
from regard.torch._attention import scaled_dot_product_attention
from regard.torch._counting import (
    CountedBlock,
    ReplacedCalls,
    calls_of_process,
    count_call,
    counted_in_thread,
    is_counted,
)
from regard.torch._direct import is_eager

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

_OPERATOR = torch.ops.aten.scaled_dot_product_attention.default
# With and without autograd, which is left out in inference mode.
_KEYS = ("AutogradCPU", "CPU")


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Compute the operator."""
    given = query, key, value, attn_mask, dropout_p, is_causal
    return _computed(_OPERATOR.decompose, *given, scale=scale, enable_gqa=enable_gqa)


def _computed(original: Callable[..., Any], *given: Any, **words: Any) -> Any:
    """Compute a call with regard if this thread has requested it and regard supports it."""
    if is_counted():
        try:
            output = scaled_dot_product_attention(*given, **words)
        except (TypeError, ValueError, NotImplementedError, ImportError) as error:
            count_call(str(error))
        else:
            if is_eager():  # otherwise, it is counted whenever the recorded operator runs
                count_call()
            return output
    return original(*given, **words)


class _Kernel:
    """The kernel above, which is registered as long as it has uses."""

    def __init__(self) -> None:
        self.uses: set[int] = set()
        self._lock = threading.Lock()
        self._library: Any = None
        self._had_fast_path = True
        self._of_nested: Any = None

    def apply(self) -> None:
        """Register the kernel if it has uses, and unregister it otherwise."""
        with self._lock:
            if self.uses and self._library is None:
                try:
                    self._register()
                except BaseException:
                    self._unregister()
                    raise
            elif not self.uses and self._library is not None:
                self._unregister()

    def _register(self) -> None:
        self._had_fast_path = torch.backends.mha.get_fastpath_enabled()
        self._library = torch.library.Library("aten", "IMPL")
        for key in _KEYS:
            self._library.impl(_OPERATOR._schema.name, _attention, key)
        # The fast path of PyTorch's modules is a kernel with separate attention.
        torch.backends.mha.set_fastpath_enabled(False)
        self._replace_nested()
        _compile_anew()

    def _unregister(self) -> None:
        if self._library is not None:
            self._library._destroy()
            self._library = None
        torch.backends.mha.set_fastpath_enabled(self._had_fast_path)
        if self._of_nested is not None:
            _of_nested_tensors.jagged_scaled_dot_product_attention = self._of_nested
        _compile_anew()

    def _replace_nested(self) -> None:
        """Replace the function that PyTorch's class of jagged nested tensors calls instead."""
        self._of_nested = getattr(_of_nested_tensors, "jagged_scaled_dot_product_attention", None)
        if self._of_nested is not None:
            _of_nested_tensors.jagged_scaled_dot_product_attention = partial(
                _computed, self._of_nested
            )


def _compile_anew() -> None:
    """Let compiled functions keep one graph with the kernel and one without it.

    Compiled code depends on this flag, which has no other effect while algorithms need not be
    deterministic. Otherwise, a function would keep the attention that it was compiled with.
    """
    _OPERATOR._dispatch_cache.clear()  # the kernels that compilers found for each key
    if not torch.are_deterministic_algorithms_enabled():
        is_warning = torch.is_deterministic_algorithms_warn_only_enabled()
        torch._C._set_deterministic_algorithms(False, warn_only=not is_warning)


_kernel = _Kernel()
_numbers = itertools.count()


class _Use(CountedBlock):
    """A use of the kernel, which ends with `end`, or at the latest with this object."""

    _has_ended = False
    _number = -1  # of none, if an interrupt comes before there is one

    def __init__(self) -> None:
        super().__init__()
        self._number = next(_numbers)
        _kernel.uses.add(self._number)
        uninterrupted(_kernel.apply)

    def end(self) -> None:
        _kernel.uses.discard(self._number)
        uninterrupted(_kernel.apply)
        self._has_ended = True

    def __del__(self) -> None:
        if not self._has_ended:
            with contextlib.suppress(RuntimeError):  # the interpreter ends, and starts no thread
                self.end()


@contextmanager
def replacing_sdpa() -> Iterator[ReplacedCalls]:
    """Compute PyTorch's scaled-dot-product attention with regard within a ``with`` block.

    All calls of `torch.nn.functional.scaled_dot_product_attention` on CPU tensors in this thread
    are computed by `regard.torch.scaled_dot_product_attention`. This includes the calls of
    torch.nn, torchvision, timm, diffusers and transformers modules (with
    ``attn_implementation="sdpa"``), in eager and in compiled code, with gradients. PyTorch computes
    calls that regard does not support.

    Yields
    ------
    ReplacedCalls
        Counts both kinds of calls, with the reasons for the calls that PyTorch computed.

    See Also
    --------
    install : the same for all threads, until `uninstall` is called.

    Notes
    -----
    A call that was recorded in the block has regard's gradients, even after the block.
    `torch.nn.MultiheadAttention` calls the function only with ``need_weights=False``. In the block,
    PyTorch's modules do not use their fast path, which does not call the function. PyTorch computes
    calls under ``torch.vmap``.

    A compiled function is compiled once more for the block.

    Examples
    --------
    >>> import torch
    >>> import regard.torch
    >>> layer = torch.nn.TransformerEncoderLayer(d_model=32, nhead=4, batch_first=True)
    >>> with regard.torch.replacing_sdpa() as calls:
    ...     output = layer(torch.randn(2, 10, 32))
    >>> calls
    ReplacedCalls(1 by regard, 0 by PyTorch)
    """
    use = _Use()
    try:
        with counted_in_thread(use):
            yield use.calls
    finally:
        use.end()


_installing = threading.RLock()
_installed: list[_Use] = []


def install() -> ReplacedCalls:
    """Compute PyTorch's scaled-dot-product attention with regard in the whole process.

    This is `replacing_sdpa` for all threads, until `uninstall` is called. Repeated calls have no
    effect.

    Returns
    -------
    ReplacedCalls
        Counts the calls from now on. Repeated calls return the same object.

    Examples
    --------
    >>> import torch
    >>> import regard.torch
    >>> calls = regard.torch.install()
    >>> x = torch.ones(1, 2, 3, 4)
    >>> output = torch.nn.functional.scaled_dot_product_attention(x, x, x)
    >>> calls.by_regard
    1
    >>> regard.torch.uninstall()
    """
    with _installing:
        if not calls_of_process:
            use = _Use()
            _installed[:] = [use]
            calls_of_process[:] = [use.calls]
        return calls_of_process[0]


def uninstall() -> None:
    """Undo `install`. Without a previous `install`, there is no effect."""
    with _installing:
        calls_of_process.clear()
        for use in _installed:
            use.end()
        _installed.clear()
