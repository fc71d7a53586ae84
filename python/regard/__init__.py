"""Exact, fused scaled-dot-product attention for NumPy arrays."""

from regard._attention.dense import scaled_dot_product_attention
from regard._attention.merge import merge_attention_states
from regard._attention.ragged import scaled_dot_product_attention_ragged
from regard._attention.stages import apply_mask, matmul, scale, softmax
from regard._core import __version__
from regard._runtime.config import active_target, cpu_targets, show_config
from regard._runtime.public import importing as _importing
from regard._runtime.threads import (
    ThreadingLayer,
    get_num_threads,
    register_if_imported,
    register_with_threadpoolctl,
    set_num_threads,
    set_threading_layer,
    threading_layer,
)
from regard._weights.quantized import QuantizedWeight

# The names that are imported on first use, by the modules that define them. Type checkers read
# `__init__.pyi`.
_NAMES_IN = {
    "regard._arguments.score_function": ["ScoreFunction"],
    "regard._attention.explain": ["explain"],
    "regard._attention.explanation": ["Explanation"],
    "regard._attention.linear": ["linear_attention"],
    "regard._attention.select_keys": ["select_keys"],
    "regard._cache": ["KVCache", "KVCaches", "LayerCache", "PrefixIndex", "paged_attention"],
    "regard._explore": ["Explorer", "explore"],
    "regard._gradients.backward": [
        "AttentionGradients",
        "scaled_dot_product_attention_backward",
        "scaled_dot_product_attention_ragged_backward",
    ],
    "regard._gradients.jvp": ["scaled_dot_product_attention_jvp"],
    "regard._gradients.linear_backward": [
        "LinearAttentionGradients",
        "linear_attention_backward",
    ],
    "regard._gradients.merge_backward": ["merge_attention_states_backward"],
    "regard._gradients.stages": [
        "apply_mask_backward",
        "matmul_backward",
        "scale_backward",
        "softmax_backward",
    ],
    "regard._random.torch_generator": ["TorchGenerator"],
    "regard._recording.layer": ["RecordedLayer"],
    "regard._recording.recording": ["Recording"],
    "regard._show.show": ["ShownWeights", "show"],
    "regard._statistics.attention_map": ["attention_map"],
    "regard._statistics.result": ["AttentionSummary", "TopKeys"],
    "regard._statistics.rollout": ["rollout"],
    "regard._statistics.summary": ["summarize_attention", "summarize_attention_ragged"],
    "regard._stream.attend": ["attend_stream"],
    "regard._stream.source": ["KeyValueChunks"],
    "regard.layers": ["MultiHeadAttention", "SelfAttention"],
}
_MODULES_OF = {name: module for module, names in _NAMES_IN.items() for name in names}
_SUBMODULES = frozenset({"checkpoints", "layers", "masks", "models", "plot", "positional"})

register_if_imported()
del register_if_imported
_NAMES = sorted(
    {"__version__", *(each for each in globals() if not each.startswith("_"))}
    | {*_MODULES_OF, *_SUBMODULES}
)


def __getattr__(name: str) -> object:
    """Import a name on first use."""
    from importlib import import_module

    if name == "__all__":
        # `from regard import *` reads these names and must not need an optional package.
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
