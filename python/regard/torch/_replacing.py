"""Replace PyTorch's attention with regard, in unchanged code.

The operator `aten::scaled_dot_product_attention` gets another kernel for tensors on the CPU. Every
caller arrives there: `torch.nn.functional.scaled_dot_product_attention` under any name, PyTorch's
own modules, TorchScript, exported programs, and compilers, which record what the kernel calls. A
PyTorch mode would see fewer calls, and would slow down all other functions.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nested._internal.ops as _of_nested_tensors

from regard.torch._attention import scaled_dot_product_attention
from regard.torch._autograd import is_eager
from regard.torch._counting import (
    ReplacedCalls,
    close,
    count_call,
    count_in_thread,
    counts_of_process,
    is_counted,
    lock,
)

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
            # Otherwise, it is counted whenever the recorded operator runs.
            if is_eager() and not torch._C._functorch.is_functorch_wrapped_tensor(output):
                count_call()
            return output
    return original(*given, **words)


class _Kernel:
    """The kernel above, which is registered while a block is open."""

    def __init__(self) -> None:
        self._users: set[ReplacedCalls] = set()
        self._library: Any = None
        self._changed: list[tuple[Callable[[], Any], Callable[[Any], object], Any, Any]] = []

    def open(self, calls: ReplacedCalls) -> None:
        """Register the kernel, unless it is."""
        with lock:
            if not self._users:
                self._library = torch.library.Library("aten", "IMPL")
                for key in _KEYS:
                    self._library.impl(_OPERATOR._schema.name, _attention, key)
                for get, change, value_within in _SETTINGS:
                    before = get()
                    within = value_within(before)
                    change(within)
                    self._changed.append((get, change, before, within))
                _OPERATOR._dispatch_cache.clear()  # the kernels that compilers found for each key
            self._users.add(calls)

    def close(self, calls: ReplacedCalls) -> None:
        """Unregister the kernel, unless others use it."""
        if sys.is_finalizing():  # a thread that no longer runs may have the lock
            return
        with lock:
            close(calls)
            if calls not in self._users:
                return
            self._users.remove(calls)
            if self._users:
                return
            self._library._destroy()
            for get, change, before, within in self._changed:
                if get() is within:  # otherwise, the user has changed it since
                    change(before)
            self._changed.clear()
            _OPERATOR._dispatch_cache.clear()


def _warns_of_nondeterminism(is_warning: bool) -> None:
    if not torch.are_deterministic_algorithms_enabled():
        torch._C._set_deterministic_algorithms(False, warn_only=is_warning)


# Settings of the process that a block changes: how to read and set one, and its value in a block.
_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], object], Callable[[Any], Any]], ...] = (
    # The fast path of PyTorch's modules is a kernel with separate attention. 0 is not the user's
    # False.
    (
        torch.backends.mha.get_fastpath_enabled,
        torch.backends.mha.set_fastpath_enabled,
        lambda _: 0,
    ),
    # PyTorch's class of jagged nested tensors calls this function instead.
    (
        lambda: _of_nested_tensors.jagged_scaled_dot_product_attention,
        partial(setattr, _of_nested_tensors, "jagged_scaled_dot_product_attention"),
        lambda original: partial(_computed, original),
    ),
    # Compiled code depends on this flag, which has no other effect while algorithms need not be
    # deterministic. Compiled functions thus keep one graph with the kernel and one without it.
    # Otherwise, a function would keep the attention that it was compiled with.
    (
        torch.is_deterministic_algorithms_warn_only_enabled,
        _warns_of_nondeterminism,
        lambda is_warning: not is_warning,
    ),
)
_kernel = _Kernel()


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
    calls = ReplacedCalls()
    _kernel.open(calls)
    try:
        count_in_thread(calls)
        yield calls
    finally:
        _kernel.close(calls)


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
    with lock:
        if not counts_of_process:
            calls = ReplacedCalls()
            _kernel.open(calls)
            counts_of_process[:] = [calls]
        return counts_of_process[0]


def uninstall() -> None:
    """Undo `install`. Without a previous `install`, there is no effect."""
    with lock:
        ended = counts_of_process[:]
        counts_of_process.clear()
        for calls in ended:
            _kernel.close(calls)
