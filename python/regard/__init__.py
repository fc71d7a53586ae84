"""Exact, fused scaled-dot-product attention for NumPy arrays."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from regard import checkpoints, masks, positional
from regard._attention import scaled_dot_product_attention
from regard._cache import KVCache
from regard._config import active_target, cpu_targets, show_config
from regard._core import __version__
from regard._explain import explain
from regard._explanation import Explanation
from regard._explore import Explorer, explore
from regard._gradients.backward import (
    AttentionGradients,
    scaled_dot_product_attention_backward,
    scaled_dot_product_attention_ragged_backward,
)
from regard._gradients.double_backward import (
    DoubleGradients,
    scaled_dot_product_attention_double_backward,
)
from regard._gradients.jvp import scaled_dot_product_attention_jvp
from regard._gradients.merge_backward import merge_attention_states_backward
from regard._merge import merge_attention_states
from regard._quantised_weight import QuantisedWeight
from regard._ragged import scaled_dot_product_attention_ragged
from regard._show.show import ShownWeights, show
from regard._stages import apply_mask, matmul, scale, softmax
from regard._statistics.attention_map import attention_map
from regard._statistics.request import AttentionSummary, TopKeys
from regard._statistics.summary import summarize_attention, summarize_attention_ragged
from regard._stream.attend import attend_stream
from regard._stream.source import KeyValueChunks
from regard._threadpoolctl import register_when_imported
from regard._threads import (
    ThreadingLayer,
    get_num_threads,
    set_num_threads,
    set_threading_layer,
    threading_layer,
)
from regard._torch_generator import TorchGenerator
from regard.layers import MultiHeadAttention, SelfAttention

__all__ = [
    "AttentionGradients",
    "AttentionSummary",
    "DoubleGradients",
    "Explanation",
    "Explorer",
    "KVCache",
    "KeyValueChunks",
    "MultiHeadAttention",
    "QuantisedWeight",
    "SelfAttention",
    "ShownWeights",
    "ThreadingLayer",
    "TopKeys",
    "TorchGenerator",
    "__version__",
    "active_target",
    "apply_mask",
    "attend_stream",
    "attention_map",
    "checkpoints",
    "cpu_targets",
    "explain",
    "explore",
    "get_num_threads",
    "masks",
    "matmul",
    "merge_attention_states",
    "merge_attention_states_backward",
    "positional",
    "scale",
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_backward",
    "scaled_dot_product_attention_double_backward",
    "scaled_dot_product_attention_jvp",
    "scaled_dot_product_attention_ragged",
    "scaled_dot_product_attention_ragged_backward",
    "set_num_threads",
    "set_threading_layer",
    "show",
    "show_config",
    "softmax",
    "summarize_attention",
    "summarize_attention_ragged",
    "threading_layer",
]

register_when_imported()
del register_when_imported

if _TYPE_CHECKING:
    from regard import plot as plot
else:

    def __getattr__(name: str) -> object:
        """Import `regard.plot`, and with it matplotlib, when it is first used."""
        if name == "plot":
            import importlib

            return importlib.import_module("regard.plot")
        raise AttributeError(f"module 'regard' has no attribute {name!r}")

    def __dir__() -> list[str]:
        """Name `regard.plot` too, so that it can be completed."""
        return sorted({*globals(), "plot"})
