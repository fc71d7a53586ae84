"""The seed of dropout, which a compiled function draws once for both directions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._C import _are_functorch_transforms_active, _len_torch_dispatch_stack
from torch.compiler import is_compiling
from torch.fx import traceback
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils.checkpoint import CheckpointPolicy

from regard.torch._operators import library

if TYPE_CHECKING:
    from torch import Tensor

_CPU = torch.device("cpu")


def draw_seed() -> Tensor:
    """Draw a seed from PyTorch's default CPU generator."""
    if not (is_compiling() or _len_torch_dispatch_stack()):
        return _draw()
    seed: Tensor = torch.ops.regard.draw_seed.default()
    return seed


def _draw() -> Tensor:
    return torch.randint(0, 2**63 - 1, (), dtype=torch.int64, device=_CPU)


def _draw_in_graph() -> Tensor:
    """Draw a seed, marked as if it were in a checkpointed region if both directions are traced.

    To save memory, a compiler may compute any part of the forward pass again in the backward pass.
    Only in such regions does it restore the state of the generator. It refuses to compile a forward
    pass by itself with a random operator in such a region.
    """
    mode: Any = get_proxy_mode()
    # Vmap refuses `torch.randint`, or draws a seed for each entry, as its caller requests.
    if mode is None or _are_functorch_transforms_active():
        return _draw()
    graph, draw = mode.tracer.graph, torch.ops.regard.random_seed.default
    number = len(graph.find_nodes(op="call_function", target=draw))
    before = traceback.current_meta
    if any("tangents" in node.target for node in graph.find_nodes(op="placeholder")):
        traceback.current_meta = before | {"recompute": CheckpointPolicy.PREFER_RECOMPUTE}
    try:
        seed: Tensor = draw(number, device=_CPU)
        return seed
    finally:
        traceback.current_meta = before


library.define("draw_seed() -> Tensor")
library.impl("draw_seed", _draw_in_graph, "CompositeImplicitAutograd")
# Inductor replaces PyTorch's random operators by its own, and would forget the mark. The number
# keeps compilers from merging two seeds, and the device tells which generator's state to restore.
library.define(
    "random_seed(int number, *, Device device) -> Tensor", tags=torch.Tag.nondeterministic_seeded
)
library.impl("random_seed", lambda number, *, device: _draw(), "CompositeExplicitAutograd")
torch.library.register_fake(
    "regard::random_seed",
    lambda number, *, device: torch.empty((), dtype=torch.int64, device=device),
    lib=library,
)
