"""T5's position biases as tables of distances, which become arrays only when they are read.

The first layer of a T5-like model computes a bias for each query and key by its method
`compute_bias`, before it calls an attention function. To avoid this array, `compute_lazily`
replaces this method. The new method returns a `DistanceBias` if the model's attention is regard's.
Otherwise, it calls the original method.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from functools import cache, wraps
from inspect import signature
from typing import Any, NamedTuple

from regard._runtime.optional import needed
from regard.transformers._lazy_tensor import LazyTensor
from regard.transformers._models import NAME, models_of

torch = needed("torch", "regard.transformers", "transformers")
forward_ad = needed("torch.autograd.forward_ad", "regard.transformers", "transformers")
masking_utils = needed("transformers.masking_utils", "regard.transformers", "transformers")

_PARAMETERS = ["self", "query_length", "key_length", "device", "past_seen_tokens"]


class Distances(NamedTuple):
    """The biases of all distances."""

    table: Any
    """Shape (heads, 2 n - 1), by ``n - 1 + key - query``."""
    offset: int
    """The position of the first query."""


class DistanceBias(LazyTensor):
    """A bias of shape ``(1, heads, q_len, kv_len)``, without its elements.

    Its meaning is a `Distances`. A gradient of the array becomes a gradient of the table.
    """

    def distances(self) -> Distances | None:
        """Return the equivalent table, or None if it would not receive a wanted gradient.

        This is the case if something has written to the tensor, or if it is a leaf or the output of
        another operation, as within checkpoints with separate backward passes.
        """
        distances: Distances
        distances, array = self.meaning_or_array()
        if array is not None:
            return None
        if not (torch.is_grad_enabled() and self.requires_grad):
            return distances._replace(table=distances.table.detach())
        is_result = isinstance(self.grad_fn, _Spread._backward_cls)
        return distances if is_result else None


def distance_bias(table: Any, offset: int, q_len: int, kv_len: int) -> Any:
    """Return a `DistanceBias`."""
    bias = _Spread.apply(table, offset, q_len, kv_len)
    bias._state.meaning = Distances(table, offset)  # with the table's own history
    return bias


class _Spread(torch.autograd.Function):  # type: ignore[misc, name-defined]
    """Give each query and key the bias of their distance."""

    @staticmethod
    def forward(ctx: Any, table: Any, offset: int, q_len: int, kv_len: int) -> Any:
        ctx.count, ctx.place = table.shape[-1], (offset, q_len, kv_len)
        values = table.detach()

        def make() -> Any:
            return values[None, :, _columns(table, table.shape[-1], offset, q_len, kv_len)]

        shape = (1, table.shape[0], q_len, kv_len)
        return DistanceBias.of(Distances(values, offset), shape, table.dtype, table.device, make)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        columns = _columns(gradient, ctx.count, *ctx.place).flatten()
        sums = gradient.new_zeros(gradient.shape[1], ctx.count)
        return sums.index_add(1, columns, gradient[0].flatten(1)), None, None, None


def _columns(like: Any, count: int, offset: int, q_len: int, kv_len: int) -> Any:
    """Return the column of the table for each query and key, on the device of a tensor."""
    queries = torch.arange(q_len, device=like.device)[:, None] + offset
    return torch.arange(kv_len, device=like.device) - queries + count // 2


@cache
def compute_lazily(kind: Hashable) -> None:
    """Replace the method in the classes of the models that have such a configuration.

    Only classes in transformers itself are changed. They behave as before, unless a module's
    configuration names regard.
    """
    for name in {model.__module__ for model in models_of(kind)}:
        if not name.startswith("transformers.models."):
            continue
        for each in vars(sys.modules[name]).values():
            compute = vars(each).get("compute_bias") if isinstance(each, type) else None
            if compute is None or hasattr(compute, "__wrapped__"):
                continue
            if list(signature(compute).parameters) == _PARAMETERS:
                each.compute_bias = _lazy(compute)


def _lazy(compute: Callable[..., Any]) -> Callable[..., Any]:
    is_of_distances = False

    @wraps(compute)
    def compute_bias(
        self: Any, query_length: int, key_length: int, device: Any = None, past_seen_tokens: Any = 0
    ) -> Any:
        nonlocal is_of_distances
        if not (_is_wanted(self, device) and query_length > 1 and key_length > 0):
            return compute(self, query_length, key_length, device, past_seen_tokens)
        if not is_of_distances:
            table = distances_of(compute, self, 2, 5, 7, device)
            small = table[None, :, _columns(table, table.shape[-1], 2, 5, 7)]
            is_of_distances = torch.equal(small, compute(self, 5, 7, device, 2))
        if not is_of_distances:
            return compute(self, query_length, key_length, device, past_seen_tokens)
        offset = int(past_seen_tokens)
        shape = query_length, key_length
        table = distances_of(compute, self, offset, *shape, device)
        return distance_bias(table, offset, *shape)

    return compute_bias


def distances_of(
    compute: Callable[..., Any], module: Any, offset: int, q_len: int, kv_len: int, device: Any
) -> Any:
    """Return the biases of all distances, which the last of many positions has."""
    most = max(offset + q_len, kv_len)
    return compute(module, 1, 2 * most - 1, device, most - 1)[0, :, 0]


def _is_wanted(module: Any, device: Any) -> bool:
    """Return whether a module's bias may be lazy: regard reads it, and nothing transforms it."""
    weight = module.relative_attention_bias.weight
    return (
        module.config._attn_implementation == NAME
        and not masking_utils.is_tracing(weight)
        and weight.device.type == "cpu"
        and (device is None or torch.device(device).type == "cpu")
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
    )
