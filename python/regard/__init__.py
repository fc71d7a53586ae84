"""Exact, fused scaled-dot-product attention for NumPy arrays."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from regard._attention.dense import scaled_dot_product_attention
from regard._attention.merge import merge_attention_states
from regard._attention.ragged import scaled_dot_product_attention_ragged
from regard._attention.stages import apply_mask, matmul, scale, softmax
from regard._core import __version__
from regard._runtime.config import active_target, cpu_targets, show_config
from regard._runtime.optional import importing as _importing
from regard._runtime.threadpoolctl import register_if_imported, register_with_threadpoolctl
from regard._runtime.threads import (
    ThreadingLayer,
    get_num_threads,
    set_num_threads,
    set_threading_layer,
    threading_layer,
)
from regard._weights.quantized import QuantizedWeight

__all__ = [
    "AttentionGradients",
    "AttentionSummary",
    "DoubleGradients",
    "Explanation",
    "Explorer",
    "ExplorerServer",
    "KVCache",
    "KVCaches",
    "KeyValueChunks",
    "LayerCache",
    "MultiHeadAttention",
    "QuantizedWeight",
    "RecordedLayer",
    "Recording",
    "ScoreFunction",
    "SelfAttention",
    "ShownWeights",
    "ThreadingLayer",
    "TopKeys",
    "TorchGenerator",
    "__version__",
    "active_target",
    "apply_mask",
    "apply_mask_backward",
    "attend_stream",
    "attention_map",
    "checkpoints",
    "cpu_targets",
    "explain",
    "explore",
    "get_num_threads",
    "layers",
    "masks",
    "matmul",
    "matmul_backward",
    "merge_attention_states",
    "merge_attention_states_backward",
    "paged_attention",
    "plot",
    "positional",
    "register_with_threadpoolctl",
    "rollout",
    "scale",
    "scale_backward",
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
    "softmax_backward",
    "summarize_attention",
    "summarize_attention_ragged",
    "threading_layer",
]

# Names that are imported on first use, with the modules that define them. The imports for type
# checkers repeat them.
_MODULES_OF = {
    "AttentionGradients": "regard._gradients.backward",
    "AttentionSummary": "regard._statistics.request",
    "DoubleGradients": "regard._gradients.double_backward",
    "Explanation": "regard._attention.explanation",
    "Explorer": "regard._explore",
    "ExplorerServer": "regard._explore._server",
    "KVCache": "regard._cache",
    "KVCaches": "regard._cache",
    "LayerCache": "regard._cache",
    "paged_attention": "regard._cache",
    "KeyValueChunks": "regard._stream.source",
    "MultiHeadAttention": "regard.layers",
    "RecordedLayer": "regard._recording.layer",
    "Recording": "regard._recording.recording",
    "ScoreFunction": "regard._arguments.score_function",
    "SelfAttention": "regard.layers",
    "ShownWeights": "regard._show.show",
    "TopKeys": "regard._statistics.request",
    "TorchGenerator": "regard._random.torch_generator",
    "apply_mask_backward": "regard._gradients.stages",
    "attend_stream": "regard._stream.attend",
    "attention_map": "regard._statistics.attention_map",
    "explain": "regard._attention.explain",
    "explore": "regard._explore",
    "matmul_backward": "regard._gradients.stages",
    "merge_attention_states_backward": "regard._gradients.merge_backward",
    "rollout": "regard._statistics.rollout",
    "scale_backward": "regard._gradients.stages",
    "scaled_dot_product_attention_backward": "regard._gradients.backward",
    "scaled_dot_product_attention_double_backward": "regard._gradients.double_backward",
    "scaled_dot_product_attention_jvp": "regard._gradients.jvp",
    "scaled_dot_product_attention_ragged_backward": "regard._gradients.backward",
    "show": "regard._show.show",
    "softmax_backward": "regard._gradients.stages",
    "summarize_attention": "regard._statistics.summary",
    "summarize_attention_ragged": "regard._statistics.summary",
}
_SUBMODULES = frozenset({"checkpoints", "layers", "masks", "plot", "positional"})

register_if_imported()
del register_if_imported

if _TYPE_CHECKING:
    from regard import checkpoints, layers, masks, plot, positional
    from regard._arguments.score_function import ScoreFunction
    from regard._attention.explain import explain
    from regard._attention.explanation import Explanation
    from regard._cache import KVCache, KVCaches, LayerCache, paged_attention
    from regard._explore import Explorer, explore
    from regard._explore._server import ExplorerServer
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
    from regard._gradients.stages import (
        apply_mask_backward,
        matmul_backward,
        scale_backward,
        softmax_backward,
    )
    from regard._random.torch_generator import TorchGenerator
    from regard._recording.layer import RecordedLayer
    from regard._recording.recording import Recording
    from regard._show.show import ShownWeights, show
    from regard._statistics.attention_map import attention_map
    from regard._statistics.request import AttentionSummary, TopKeys
    from regard._statistics.rollout import rollout
    from regard._statistics.summary import summarize_attention, summarize_attention_ragged
    from regard._stream.attend import attend_stream
    from regard._stream.source import KeyValueChunks
    from regard.layers import MultiHeadAttention, SelfAttention
else:
    # `from regard import *` reads these names and must not need an optional package.
    _NAMES = globals().pop("__all__")

    def __getattr__(name: str) -> object:
        """Import a name on first use."""
        from importlib import import_module

        if name == "__all__":
            from importlib.util import find_spec

            has_matplotlib = find_spec("matplotlib") is not None
            return [each for each in _NAMES if each != "plot" or has_matplotlib]
        if name not in _SUBMODULES and name not in _MODULES_OF:
            raise AttributeError(f"module 'regard' has no attribute {name!r}")
        with _importing:
            if name in _SUBMODULES:
                return import_module(f"regard.{name}")
            value: object = getattr(import_module(_MODULES_OF[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """List all names, including names not yet imported, for tab completion."""
        return sorted({*globals(), *_MODULES_OF, *_SUBMODULES})
