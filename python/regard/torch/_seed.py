"""The seed of dropout, which a compiled function draws once for both directions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy

from regard.torch._operators import attention, library
from regard.torch._options import TENSORS

if TYPE_CHECKING:
    from torch import Tensor
    from torch.fx import Graph, Node

_PLACE = 3 + TENSORS.index("dropout_seed")


def draw_seed() -> Tensor:
    """Draw a seed from PyTorch's default CPU generator."""
    # As torch.randint, which Inductor replaces by separate generators, which forget the mark.
    seed: Tensor = torch.ops.aten.randint.low_generator(
        0, 2**63 - 1, (), generator=None, dtype=torch.int64, device="cpu"
    )
    return seed


def _recorded(mode: Any, operator: Any, types: Any, given: Any, named: Any) -> Any:
    """Record a call in a graph.

    To save memory, a compiler may compute any part of the forward pass again in the backward pass.
    It restores the state of the generator only for random operators that are marked as if they were
    in a checkpointed region. It refuses to compile a forward pass by itself with such an operator.
    """
    results = mode.__torch_dispatch__(operator, types, given, named)
    graph = mode.tracer.graph
    seed = graph.find_nodes(op="call_function", target=operator)[-1].args[_PLACE]
    if seed is not None and _has_backward(graph):
        _mark(seed)
    return results


def _has_backward(graph: Graph) -> bool:
    return any("tangents" in str(node.target) for node in graph.find_nodes(op="placeholder"))


def _mark(seed: Node) -> None:
    """Mark the random operators from which a seed is computed."""
    nodes = [seed]
    for node in nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            node.meta["recompute"] = CheckpointPolicy.PREFER_RECOMPUTE
        nodes += [each for each in node.all_input_nodes if each not in nodes]


torch.library.register_torch_dispatch(attention, ProxyTorchDispatchMode, _recorded, lib=library)
