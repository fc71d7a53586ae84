"""Put regard's attention in the place of PyTorch's, in code that does not change."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from functools import cache
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from regard.torch._attention import scaled_dot_product_attention

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def replacing_sdpa() -> Iterator[None]:
    """Make every call of PyTorch's attention function a call of regard's."""
    with _Replacing():
        yield


class _Replacing(TorchFunctionMode):  # type: ignore[misc]
    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _instead().get(function, function)(*args, **(kwargs or {}))


@cache
def _instead() -> dict[Any, Any]:
    # PyTorch hands a mode this function, and not the calls within it: a copy of it calls regard.
    whole = F.multi_head_attention_forward
    module = ModuleType("regard.torch._functional")
    vars(module).update(
        vars(F), scaled_dot_product_attention=scaled_dot_product_attention, __name__=module.__name__
    )
    sys.modules[module.__name__] = module
    copied = FunctionType(whole.__code__, vars(module), whole.__name__, whole.__defaults__)
    return {F.scaled_dot_product_attention: scaled_dot_product_attention, whole: copied}
