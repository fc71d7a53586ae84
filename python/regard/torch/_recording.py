"""Record the attention of PyTorch modules."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext, suppress
from functools import cache
from inspect import Signature, signature
from threading import RLock
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

import regard
from regard._arguments.arrays import as_array
from regard._arguments.numbers import flag, listed
from regard._recording.layer import as_tokens, call_of
from regard.torch._recorder import (
    MAX_BYTES,
    Recorder,
    RecordingStopped,
    RecordRequest,
    observed_by,
)
from regard.torch._replacing import replacing_sdpa

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from numpy.typing import ArrayLike

    from regard import Recording


recording_lock = RLock()
"""Held during a recording, which changes settings of the process and of models."""
if hasattr(os, "register_at_fork"):  # a forked child has no thread that would release it
    os.register_at_fork(after_in_child=recording_lock._at_fork_reinit)  # type: ignore[attr-defined]


def record(
    module: torch.nn.Module,
    *args: Any,
    layers: Any = None,
    dtype: Any = None,
    max_bytes: int | None = MAX_BYTES,
    tokens: ArrayLike | None = None,
    return_output: bool = False,
    **kwargs: Any,
) -> Recording | tuple[Recording, Any]:
    """Run a module once, and record the queries and keys of its attention.

    Every call of `torch.nn.functional.scaled_dot_product_attention` and of
    `regard.torch.scaled_dot_product_attention` is recorded, and computed by regard. This includes
    `torch.nn.MultiheadAttention`, with or without weights, the layers of `torch.nn.Transformer`,
    and diffusers models. `regard.transformers.record` is for transformers models.

    Parameters
    ----------
    module : torch.nn.Module
        The module, which runs in its current mode: call ``module.eval()`` first to leave out
        dropout of hidden states. Compiled modules run without the compiler.
    *args, **kwargs
        The arguments of the module.
    layers : int, str, or iterable of int and str, optional
        The layers to record, as numbers in the order of the calls, and as names or parts of names,
        as for `regard.Recording.select`. Default: all.
    dtype : dtype or str, optional
        The type in which queries and keys are stored: float16, bfloat16, float32 or float64, of
        NumPy or PyTorch. Default: the type that the module computes in.
    max_bytes : int, default 4_000_000_000
        The maximum size of the recording. None allows any size.
    tokens : array_like of int or str, shape (..., length), optional
        The tokens. Layers with this number of queries or keys get them.
    return_output : bool, default False
        Whether to also return the output of the module. The recording does not keep it.

    Returns
    -------
    recording : Recording
        Its layers have the names of the modules that called attention, such as
        ``"layers.0.self_attn"``. A second call in the same module has the name
        ``"layers.0.self_attn:2"``, and so on. Queries and keys are copies, without gradients.
    output
        The output of the module; returned if `return_output`.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ValueError
        If the recording would be larger than `max_bytes`; if `layers` selects a layer that does not
        exist; if nothing was recorded, because the module has no attention, or computes it without
        calling one of the two functions; if regard does not support a call.
    NotImplementedError
        If attention is called within `torch.func` transforms, or with packed sequences.
    ImportError
        If tensors are bfloat16 and the ml_dtypes package is missing.

    Notes
    -----
    The run ends at the first layer with which the recording would become too large.

    The module runs in ``torch.no_grad()``. Dropout of weights is not part of a recording. Only
    calls in the caller's thread are recorded. Recordings of several threads run one after another,
    so a module must not wait for a recording in another thread.

    Examples
    --------
    >>> import torch
    >>> import regard.torch
    >>> layer = torch.nn.TransformerEncoderLayer(d_model=32, nhead=4, batch_first=True).eval()
    >>> encoder = torch.nn.TransformerEncoder(layer, num_layers=2)
    >>> recording = regard.torch.record(encoder, torch.randn(1, 10, 32))
    >>> recording.names
    ('layers.0.self_attn', 'layers.1.self_attn')
    >>> recording.summarize().entropy.shape  # layers, batch, heads, queries
    (2, 1, 4, 10)
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module must be a torch.nn.Module, got {type(module).__name__}")
    request = RecordRequest.of(layers, dtype, max_bytes)
    wants_output = flag("return_output", return_output)
    given = None if tokens is None else _tokens(tokens)
    recorded, output = run_recorded(module, args, kwargs, request)
    if given is not None:
        recorded = _with_tokens(recorded, given)
    recording = regard.Recording(recorded)
    return (recording, output) if wants_output else recording


def run_recorded(
    module: Any, args: Any, kwargs: Any, request: RecordRequest, reason: str = ""
) -> tuple[list[regard.RecordedLayer], Any]:
    """Run a module, and return the recorded layers and its output.

    Raises ValueError with the given `reason` if nothing was recorded.
    """
    recorder = Recorder(module, request)
    with (
        recording_lock,
        torch.no_grad(),
        _without_compiler(),
        replacing_sdpa() as calls,
        _ExplicitWeightsMode(),
        observed_by(recorder),
        suppress(RecordingStopped),
    ):
        output = module(*args, **kwargs)
    recorder.check()
    if not recorder.names:
        raise ValueError(f"nothing was recorded: {reason or _reason(module)}")
    if calls.by_pytorch:
        raise ValueError(
            "attention must be computed by regard to be recorded, and PyTorch computed some calls: "
            f"{listed(calls.by_pytorch)}"
        )
    recorder.check_layers()
    return recorder.layers, output


def _reason(module: Any) -> str:
    return (
        f"{type(module).__name__} called neither PyTorch's scaled_dot_product_attention nor "
        "regard's. It has no attention, or computes the weights by itself, or in other threads"
    )


def _without_compiler() -> AbstractContextManager[Any]:
    """Let compiled functions run as Python in all threads, so that their calls are observed."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and importing it takes seconds
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


def _tokens(tokens: Any) -> Any:
    """Return tokens as an array, or raise TypeError or ValueError."""
    array = as_array("tokens", tokens)
    if not array.ndim:
        raise ValueError("tokens must have an axis, got one token")
    given = as_tokens("tokens", tokens, array.shape)
    given.flags.writeable = False
    return given


def _with_tokens(layers: list[regard.RecordedLayer], tokens: Any) -> list[regard.RecordedLayer]:
    """Return layers with tokens for the axes of their length; raises ValueError for none."""
    named = [layer.with_tokens(tokens, tokens) for layer in layers]
    if all(layer.query_tokens is None and layer.key_tokens is None for layer in named):
        lengths = sorted({call_of(layer).sizes.kv_len for layer in layers})
        raise ValueError(
            f"tokens must have one token for each key, got shape {tokens.shape}, and the layers "
            f"have {', '.join(map(str, lengths))} keys"
        )
    return named


class _ExplicitWeightsMode(TorchFunctionMode):  # type: ignore[misc]
    """A mode in which calls of multi-head attention that return weights are observed too.

    With ``need_weights=True``, its default, `torch.nn.MultiheadAttention` does not call the
    attention function. Such a call is computed twice: without weights, for the observer, and
    unchanged, for its results.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Compute a call of PyTorch."""
        kwargs = kwargs or {}
        if function is F.multi_head_attention_forward:
            bound = _signature_of_heads().bind(*args, **kwargs).arguments
            if bound.get("need_weights", True):
                is_random = bound.get("training", True) and bound["dropout_p"]
                with torch.random.fork_rng(devices=[]) if is_random else nullcontext():
                    function(**bound | {"need_weights": False})
                with observed_by(None):
                    return function(*args, **kwargs)
        return function(*args, **kwargs)


@cache
def _signature_of_heads() -> Signature:
    return signature(F.multi_head_attention_forward)
