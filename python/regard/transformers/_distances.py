"""Recognize position biases that depend only on the distance between query and key, as in T5.

A `DistanceBias` contains the biases of all distances. Of other biases, only the elements are known.
They are compared once with the biases of all distances, which the layer's own method computes for a
single query. If they agree, attention uses the biases of the distances instead: it does not read
the larger array, and the array gets no gradient.
"""

from __future__ import annotations

from inspect import signature
from typing import Any, NamedTuple

from regard._runtime.optional import needed
from regard.transformers._lazy_bias import DistanceBias, distances_of

torch = needed("torch", "regard.transformers", "transformers")
masking_utils = needed("transformers.masking_utils", "regard.transformers", "transformers")


class _Read(NamedTuple):
    """The known facts about the elements of a bias."""

    version: int
    """The version of the tensor, which changes if something writes to it."""
    table: Any
    """The biases of all distances, shape (heads, 2 n - 1), or None if all biases are 0."""
    offset: int
    """The position of the first query."""


def distance_options(
    module: Any, position_bias: Any, options: dict[str, Any], key_count: int
) -> dict[str, Any] | None:
    """Return options of the attention call that replace a position bias, or None.

    Parameters
    ----------
    module : torch.nn.Module
        The attention module.
    position_bias : tensor
        As in `attend`.
    options : dict
        The options of the call, which determine visibility.
    key_count : int
        The number of keys.
    """
    shape = position_bias.shape
    if (
        position_bias.ndim != 4
        or shape[0] != 1
        or shape[2] < 2  # the bias of one query is not larger than the biases of all distances
        or shape[3] != key_count
        or position_bias.device.type != "cpu"
        or masking_utils.is_tracing(position_bias)
        or torch._C._are_functorch_transforms_active()
    ):
        return None
    read: Any
    if isinstance(position_bias, DistanceBias):
        read = position_bias.distances()
    else:
        read = _read_once(module, position_bias)
    if read is None:
        return None
    if read.table is None:
        return {}
    counts_queries = options.get("is_causal") or "window" in options
    if counts_queries and options.get("query_offset", 0) != read.offset:
        return None
    return {"distance_bias": read.table, "query_offset": read.offset}


def elements_of(position_bias: Any) -> Any:
    """Return a bias as an ordinary tensor, which has its gradients."""
    return position_bias.clone() if isinstance(position_bias, DistanceBias) else position_bias


def _read_once(module: Any, position_bias: Any) -> _Read | None:
    """Return the known facts about a bias, which are kept for the layers that reuse it."""
    read: _Read | None = getattr(position_bias, "_regard_distances", None)
    if read is None or not _is_current(read, position_bias):
        read = _read(module, position_bias)
        if read is not None:
            position_bias._regard_distances = read
    return read


def _version(tensor: Any) -> int:
    """Return a number that changes if something writes to a tensor, if PyTorch counts writes."""
    return 0 if tensor.is_inference() else tensor._version


def _is_current(read: _Read, position_bias: Any) -> bool:
    """Return whether a bias is unchanged, and its table has a gradient if the bias has one."""
    is_recorded = read.table is None or read.table.requires_grad
    return read.version == _version(position_bias) and (
        is_recorded or not position_bias.requires_grad
    )


@torch.no_grad()  # type: ignore[untyped-decorator]
def _agrees(position_bias: Any, table: Any, offset: int) -> bool:
    """Return whether each element of a bias equals the bias of its distance."""
    _, _, q_len, kv_len = position_bias.shape
    zero = table.shape[-1] // 2
    own = position_bias[0]
    if not torch.equal(own[:, 0], table[:, zero - offset : zero - offset + kv_len]):
        return False
    last = offset + q_len - 1
    first_column = table[:, zero - last : zero - offset + 1].flip(-1)
    if not torch.equal(own[:, :, 0], first_column):
        return False
    return bool(torch.equal(own[:, 1:, 1:], own[:, :-1, :-1]))


def _read(module: Any, position_bias: Any) -> _Read | None:
    version = _version(position_bias)
    if not getattr(module, "has_relative_attention_bias", False):
        # Layers without a bias, as in cross attention, get an array of zeros.
        is_zero = not position_bias.requires_grad and not position_bias.any()
        return _Read(version, None, 0) if is_zero else None
    compute = getattr(type(module), "compute_bias", None)
    names = ["query_length", "key_length", "device", "past_seen_tokens"]
    if compute is None or list(signature(compute).parameters)[1:] != names:
        return None
    compute = getattr(compute, "__wrapped__", compute)
    q_len, kv_len = position_bias.shape[2:]
    for offset in dict.fromkeys((max(kv_len - q_len, 0), 0)):
        table = distances_of(compute, module, offset, q_len, kv_len, position_bias.device)
        if _agrees(position_bias, table, offset):
            return _Read(version, table, offset)
    return None
