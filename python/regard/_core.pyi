from types import ModuleType
from typing import Any, TypedDict

from numpy.typing import NDArray

__version__: str

class _TargetRow(TypedDict):
    name: str
    runnable: bool
    needs: str
    vector_bytes: int

class _ThreadingLayer(TypedDict):
    name: str
    reason: str
    runtime: str | None
    path: str | None
    version: str | None

_Sizes = tuple[int, int, int, int, int, int, int]

class _Plan(TypedDict):
    target: str
    kernel: str
    instruction: str | None
    has_few_rows: bool
    decoded_entries: int
    columns: int
    threads: int
    tasks: int
    task_rows: int
    chunk_keys: int
    strip_rows: int
    tile_keys: int
    block_keys: int
    workspace_bytes: int
    copies_keys: bool
    copies_values: bool
    tiles: int
    tiles_visible: int
    tiles_biased: int
    scores_computed: int
    shape: _Sizes
    result_type: str

def attention(query: Any, key: Any, value: Any, mask: Any, options: Any, /) -> Any: ...
def check_attention(
    query: Any, key: Any, value: Any, mask: Any, options: Any, /
) -> tuple[tuple[int, ...], int, int, int, int, int, int, str, bool]: ...
def attention_plan(query: Any, key: Any, value: Any, mask: Any, options: Any, /) -> _Plan: ...
def attention_ragged(
    query: Any,
    key: Any,
    value: Any,
    query_starts: Any,
    key_starts: Any,
    mask: Any,
    options: Any,
    /,
) -> Any: ...
def check_attention_ragged(
    query: Any,
    key: Any,
    value: Any,
    query_starts: Any,
    key_starts: Any,
    mask: Any,
    options: Any,
    /,
) -> tuple[tuple[int, ...], int, int, int, int, int, int, str, bool]: ...
def attention_ragged_plan(
    query: Any,
    key: Any,
    value: Any,
    query_starts: Any,
    key_starts: Any,
    mask: Any,
    options: Any,
    /,
) -> _Plan: ...

class PageRows:
    """Keys, values and scales in pages; see cpp/bindings/page_rows.hpp."""

    def __init__(
        self,
        key: Any,
        value: Any,
        key_scales: Any,
        value_scales: Any,
        are_keys_upright: bool,
        /,
    ) -> None: ...
    def store_plain(
        self, pages: NDArray[Any], starts: Any, most: int, key: Any, value: Any, /
    ) -> int: ...
    def store_packed(
        self,
        pages: NDArray[Any],
        starts: Any,
        most: int,
        key: Any,
        value: Any,
        token_starts: Any,
        /,
    ) -> int | NDArray[Any] | None: ...
    def store(
        self,
        pages: NDArray[Any],
        starts: Any,
        counts: Any,
        is_packed: bool,
        key: Any,
        value: Any,
        key_scales: Any,
        value_scales: Any,
        /,
    ) -> bool: ...

def attention_backward(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    options: Any,
    grad_output: Any,
    output: Any,
    lse: Any,
    grad_lse: Any,
    wanted: Any,
    out: Any,
    /,
) -> Any: ...
def attention_ragged_backward(
    query: Any,
    key: Any,
    value: Any,
    query_starts: Any,
    key_starts: Any,
    mask: Any,
    options: Any,
    grad_output: Any,
    output: Any,
    lse: Any,
    grad_lse: Any,
    wanted: Any,
    out: Any,
    /,
) -> Any: ...
def attention_jvp(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    options: Any,
    tangent_query: Any,
    tangent_key: Any,
    tangent_value: Any,
    /,
) -> Any: ...
def attention_summary(
    query: Any,
    key: Any,
    mask: Any,
    options: Any,
    lse: Any,
    wanted: Any,
    first_keys: Any,
    local_reach: Any,
    top_count: Any,
    induction_keys: Any,
    progress: Any,
    /,
) -> Any: ...
def attention_map(
    query: Any,
    key: Any,
    mask: Any,
    options: Any,
    lse: Any,
    extent: Any,
    pooling: Any,
    progress: Any,
    /,
) -> Any: ...
def attention_ragged_summary(
    query: Any,
    key: Any,
    query_starts: Any,
    key_starts: Any,
    mask: Any,
    options: Any,
    lse: Any,
    wanted: Any,
    first_keys: Any,
    local_reach: Any,
    top_count: Any,
    induction_keys: Any,
    progress: Any,
    /,
) -> Any: ...
def attention_cached(
    query: Any,
    starts: Any,
    rows: PageRows,
    pages: NDArray[Any],
    evicted_pages: Any,
    keep_first: int,
    kv_len: int,
    mask: Any,
    options: Any,
    /,
) -> Any: ...
def attention_cached_plan(
    query: Any,
    starts: Any,
    rows: PageRows,
    pages: NDArray[Any],
    evicted_pages: Any,
    keep_first: int,
    kv_len: int,
    mask: Any,
    options: Any,
    /,
) -> _Plan: ...
def matmul(a: Any, b: Any, out: Any, threads: Any, /) -> Any: ...
def matmul_int8(a: Any, numbers: Any, scales: Any, out: Any, threads: Any, /) -> Any: ...
def scale(scores: Any, factor: Any, out: Any, threads: Any, /) -> Any: ...
def apply_mask(scores: Any, mask: Any, out: Any, threads: Any, /) -> Any: ...
def softmax(x: Any, axis: Any, out: Any, threads: Any, /) -> Any: ...
def merge_attention_states(outputs: list[Any], lses: list[Any], threads: Any, /) -> Any: ...
def quantize_rows(
    rows: NDArray[Any], form: str, rotates: bool, /
) -> tuple[NDArray[Any], NDArray[Any] | None, bool]: ...
def array_of_tensor(tensor: Any, bfloat16: Any, /) -> NDArray[Any] | None: ...
def map_copy(descriptor: int, file_bytes: int, size: int, /) -> NDArray[Any]: ...
def target_rows() -> list[_TargetRow]: ...
def cpu_features() -> dict[str, tuple[bool, bool]]: ...
def active_target() -> str: ...
def active_target_reason() -> str: ...
def better_target() -> str: ...
def l2_cache_bytes() -> int: ...
def num_threads() -> int: ...
def num_threads_reason() -> str: ...
def set_num_threads(threads: Any, /) -> None: ...
def set_threading_layer(name: str, /) -> None: ...
def threading_layer() -> _ThreadingLayer: ...
def build_info() -> dict[str, str]: ...
def fma_peak(is_double: bool, threads: Any, /) -> float: ...
def read_bandwidth(bytes: Any, threads: Any, /) -> float: ...

testing: ModuleType  # hooks for tests and benchmarks
