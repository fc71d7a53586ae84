"""Run a model on tensors without memory, to learn how large a recording would be."""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses import fake_tensor

if TYPE_CHECKING:
    from collections.abc import Callable

_GLOBAL_HOOKS = torch.nn.modules.module
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


def dry_run(module: Any, args: Any, kwargs: Any, run: Callable[[Any, Any, Any], Any]) -> bool:
    """Call `run` with copies of a module and of arguments that have no memory.

    Returns whether that was possible. Models whose control flow depends on the elements of their
    tensors cannot run this way. User hooks would be called once more, with tensors that they do not
    expect.
    """
    if _has_hooks(module):
        return False
    mode = fake_tensor.FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with fake_tensor.FakeCopyMode(mode):
                copies = copy.deepcopy((module, args, kwargs))
            with mode:
                run(*copies)
    except Exception:  # the real run raises it again, unless only fake tensors cause it
        return False
    return True


def _has_hooks(module: Any) -> bool:
    if _GLOBAL_HOOKS._global_forward_hooks or _GLOBAL_HOOKS._global_forward_pre_hooks:
        return True
    return any(getattr(each, name, None) for each in module.modules() for name in _HOOKS)
