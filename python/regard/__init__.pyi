from collections.abc import Callable, Iterable
from typing import Any, Literal, Unpack, overload

from numpy.typing import ArrayLike

from regard import checkpoints as checkpoints
from regard import layers as layers
from regard import masks as masks
from regard import models as models
from regard import plot as plot
from regard import positional as positional
from regard._arguments.arrays import Array
from regard._arguments.options import AttentionOptions, BackwardOptions, StreamOptions
from regard._arguments.score_function import ScoreFunction as ScoreFunction
from regard._attention.explain import explain as explain
from regard._attention.explanation import Explanation as Explanation
from regard._attention.merge import merge_attention_states as merge_attention_states
from regard._attention.select_keys import select_keys as select_keys
from regard._attention.stages import apply_mask as apply_mask
from regard._attention.stages import matmul as matmul
from regard._attention.stages import scale as scale
from regard._attention.stages import softmax as softmax
from regard._cache import KVCache as KVCache
from regard._cache import KVCaches as KVCaches
from regard._cache import LayerCache as LayerCache
from regard._cache import PrefixIndex as PrefixIndex
from regard._cache import paged_attention as paged_attention
from regard._core import __version__ as __version__
from regard._explore import Explorer as Explorer
from regard._explore import explore as explore
from regard._gradients.backward import AttentionGradients as AttentionGradients
from regard._gradients.backward import (
    scaled_dot_product_attention_backward as scaled_dot_product_attention_backward,
)
from regard._gradients.backward import (
    scaled_dot_product_attention_ragged_backward as scaled_dot_product_attention_ragged_backward,
)
from regard._gradients.linear_backward import LinearAttentionGradients as LinearAttentionGradients
from regard._gradients.linear_backward import linear_attention_backward as linear_attention_backward
from regard._gradients.merge_backward import (
    merge_attention_states_backward as merge_attention_states_backward,
)
from regard._gradients.stages import apply_mask_backward as apply_mask_backward
from regard._gradients.stages import matmul_backward as matmul_backward
from regard._gradients.stages import scale_backward as scale_backward
from regard._gradients.stages import softmax_backward as softmax_backward
from regard._random.torch_generator import TorchGenerator as TorchGenerator
from regard._recording.layer import RecordedLayer as RecordedLayer
from regard._recording.recording import Recording as Recording
from regard._runtime.config import active_target as active_target
from regard._runtime.config import cpu_targets as cpu_targets
from regard._runtime.threads import ThreadingLayer as ThreadingLayer
from regard._runtime.threads import get_num_threads as get_num_threads
from regard._runtime.threads import register_with_threadpoolctl as register_with_threadpoolctl
from regard._runtime.threads import set_num_threads as set_num_threads
from regard._runtime.threads import set_threading_layer as set_threading_layer
from regard._runtime.threads import threading_layer as threading_layer
from regard._show.show import ShownWeights as ShownWeights
from regard._show.show import show as show
from regard._statistics.attention_map import attention_map as attention_map
from regard._statistics.result import AttentionSummary as AttentionSummary
from regard._statistics.result import TopKeys as TopKeys
from regard._statistics.rollout import rollout as rollout
from regard._statistics.summary import summarize_attention as summarize_attention
from regard._statistics.summary import summarize_attention_ragged as summarize_attention_ragged
from regard._stream.source import KeyValueChunks as KeyValueChunks
from regard._weights.quantized import QuantizedWeight as QuantizedWeight
from regard.layers import MultiHeadAttention as MultiHeadAttention
from regard.layers import SelfAttention as SelfAttention

_Progress = bool | Callable[[int, int | None], object] | None

@overload
def scaled_dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    return_weights: Literal[False] = False,
    return_lse: Literal[False] = False,
    **options: Unpack[AttentionOptions],
) -> Array: ...
@overload
def scaled_dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    rows: slice | None = None,
    return_weights: Literal[True],
    return_lse: Literal[False] = False,
    **options: Unpack[AttentionOptions],
) -> tuple[Array, Array]: ...
@overload
def scaled_dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    return_weights: Literal[False] = False,
    return_lse: Literal[True],
    **options: Unpack[AttentionOptions],
) -> tuple[Array, Array]: ...
@overload
def scaled_dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    rows: slice | None = None,
    return_weights: Literal[True],
    return_lse: Literal[True],
    **options: Unpack[AttentionOptions],
) -> tuple[Array, Array, Array]: ...
@overload
def scaled_dot_product_attention_ragged(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    query_starts: ArrayLike,
    key_starts: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    return_weights: Literal[False] = False,
    return_lse: Literal[False] = False,
    **options: Unpack[AttentionOptions],
) -> Array: ...
@overload
def scaled_dot_product_attention_ragged(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    query_starts: ArrayLike,
    key_starts: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    return_weights: Literal[True],
    return_lse: Literal[False] = False,
    **options: Unpack[AttentionOptions],
) -> tuple[Array, Array]: ...
@overload
def scaled_dot_product_attention_ragged(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    query_starts: ArrayLike,
    key_starts: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    return_weights: Literal[False] = False,
    return_lse: Literal[True],
    **options: Unpack[AttentionOptions],
) -> tuple[Array, Array]: ...
@overload
def scaled_dot_product_attention_ragged(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    query_starts: ArrayLike,
    key_starts: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    return_weights: Literal[True],
    return_lse: Literal[True],
    **options: Unpack[AttentionOptions],
) -> tuple[Array, Array, Array]: ...
@overload
def linear_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    decay: ArrayLike | None = None,
    beta: ArrayLike | None = None,
    state: ArrayLike | None = None,
    scale: float | None = None,
    starts: ArrayLike | None = None,
    return_state: Literal[False] = False,
    out: Array | None = None,
    threads: int | None = None,
) -> Array: ...
@overload
def linear_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    decay: ArrayLike | None = None,
    beta: ArrayLike | None = None,
    state: ArrayLike | None = None,
    scale: float | None = None,
    starts: ArrayLike | None = None,
    return_state: Literal[True],
    out: Array | tuple[Array | None, Array | None] | None = None,
    threads: int | None = None,
) -> tuple[Array, Array]: ...
@overload
def attend_stream(
    query: ArrayLike,
    chunks: Iterable[Any],
    mask: Any = None,
    *,
    return_lse: Literal[False] = False,
    progress: _Progress = None,
    **options: Unpack[StreamOptions],
) -> Array: ...
@overload
def attend_stream(
    query: ArrayLike,
    chunks: Iterable[Any],
    mask: Any = None,
    *,
    return_lse: Literal[True],
    progress: _Progress = None,
    **options: Unpack[StreamOptions],
) -> tuple[Array, Array]: ...
@overload
def scaled_dot_product_attention_jvp(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    tangent_query: ArrayLike | None,
    tangent_key: ArrayLike | None,
    tangent_value: ArrayLike | None,
    mask: ArrayLike | None = None,
    *,
    return_lse: Literal[False] = False,
    **options: Unpack[BackwardOptions],
) -> tuple[Array, Array]: ...
@overload
def scaled_dot_product_attention_jvp(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    tangent_query: ArrayLike | None,
    tangent_key: ArrayLike | None,
    tangent_value: ArrayLike | None,
    mask: ArrayLike | None = None,
    *,
    return_lse: Literal[True],
    **options: Unpack[BackwardOptions],
) -> tuple[Array, Array, Array, Array]: ...
@overload
def show_config(mode: Literal["stdout"] = "stdout") -> None: ...
@overload
def show_config(mode: Literal["dicts"]) -> dict[str, Any]: ...
