"""Observe multi-head attention that computes its weights explicitly."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from inspect import Signature, signature
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from regard.torch._observing import observed_by


class ExplicitWeightsMode(TorchFunctionMode):  # type: ignore[misc]
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
            bound = _signature().bind(*args, **kwargs).arguments
            if bound.get("need_weights", True):
                is_random = bound.get("training", True) and bound["dropout_p"]
                with torch.random.fork_rng(devices=[]) if is_random else nullcontext():
                    function(**bound | {"need_weights": False})
                with observed_by(None):
                    return function(*args, **kwargs)
        return function(*args, **kwargs)


@cache
def _signature() -> Signature:
    return signature(F.multi_head_attention_forward)
