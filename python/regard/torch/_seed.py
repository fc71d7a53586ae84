"""The seed of dropout, which a compiled function draws once for both directions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy

from regard.torch._operators import Layout, dense, library, ragged

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from torch.fx import Graph, Node


def draw_seed() -> Tensor:
    """Draw a seed from PyTorch's default CPU generator."""
    # As torch.randint, which Inductor replaces by separate generators, which forget the mark.
    seed: Tensor = torch.ops.aten.randint.low_generator(
        0, 2**63 - 1, (), generator=None, dtype=torch.int64, device="cpu"
    )
    return seed


def _recorded(layout: Layout) -> Callable[..., Any]:
    """Return the rule by which a graph records the call.

    To save memory, a compiler may compute any part of the forward pass again in the backward pass.
    It restores the state of the generator only for random operators that are marked as if they were
    in a checkpointed region. It refuses to compile a forward pass by itself with such an operator.
    """
    place = layout.attention.tensors.index("dropout_seed")

    def record(mode: Any, operator: Any, types: Any, given: Any, named: Any) -> Any:
        results = mode.__torch_dispatch__(operator, types, given, named)
        graph = mode.tracer.graph
        seed = graph.find_nodes(op="call_function", target=operator)[-1].args[place]
        if seed is not None and _has_backward(graph):
            _mark(seed)
        return results

    return record


def _has_backward(graph: Graph) -> bool:
    return any("tangents" in str(node.target) for node in graph.find_nodes(op="placeholder"))


def _mark(seed: Node) -> None:
    """Mark the random operators from which a seed is computed."""
    nodes = [seed]
    for node in nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            node.meta["recompute"] = CheckpointPolicy.PREFER_RECOMPUTE
        nodes += [each for each in node.all_input_nodes if each not in nodes]


for _layout in (dense, ragged):
    torch.library.register_torch_dispatch(
        f"regard::{_layout.attention.name}",
        ProxyTorchDispatchMode,
        _recorded(_layout),
        lib=library,
    )
