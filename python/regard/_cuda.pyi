from typing import Any, TypedDict

Strided = tuple[int, int, int, int, int]  # address; strides of batch, head, row, column
PerEntry = tuple[int, int]  # address, or 0 and the number for all

class _DeviceCount(TypedDict):
    count: int
    error: str
    text: str

class _Device(TypedDict):
    name: str
    compute_capability: tuple[int, int]
    memory_bytes: int
    multiprocessors: int

class _Kernel(TypedDict):
    name: str
    proof: str

toolkit_version: int

def driver_version() -> int: ...
def device_count() -> _DeviceCount: ...
def device(number: int, /) -> _Device: ...
def compute_capability(number: int, /) -> tuple[int, int]: ...
def current_device() -> int: ...
def device_of(address: int, /) -> int | None: ...
def kernels() -> list[_Kernel]: ...

class Problem:
    """A problem, field by field: see cpp/cuda/problem.hpp."""

    element: str
    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    value_dim: int
    query_starts: int
    key_starts: int
    query: Strided
    key: Strided
    value: Strided
    output: Strided
    lse: Strided
    mask: Strided
    bias: Strided
    bias_element: str
    window_left: int
    window_right: int
    query_offset_is_end: bool
    query_offset: PerEntry
    key_lengths: PerEntry
    left_padding: PerEntry
    scale: float
    softcap: float
    alibi_slopes: int
    alibi_batch_stride: int
    sinks: int

    def launch(self, device: int, stream: int) -> None: ...

class Buffer:
    """Memory of a device, in the order of streams: see cpp/cuda/bindings/memory.hpp."""

    address: int
    bytes: int
    device: int

    def __init__(self, bytes: int, device: int, stream: int) -> None: ...
    def used_by(self, stream: int, /) -> None: ...
    def order(self, stream: int, /) -> None: ...
    def exported(self) -> None: ...
    def upload(self, host: Any, stream: int, /) -> None: ...

def download(address: int, device: int, host: Any, stream: int, /) -> None: ...
def order_streams(device: int, before: int, after: int, /) -> None: ...
def synchronize(device: int, stream: int, /) -> None: ...

class ImportedTensor:
    """The content of a DLPack capsule: see cpp/cuda/bindings/dlpack.hpp."""

    address: int
    device: tuple[int, int]
    element: tuple[int, int, int]
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    is_read_only: bool

    def __init__(self, capsule: Any, /) -> None: ...

def export_tensor(
    owner: Any,
    address: int,
    device: int,
    code: int,
    bits: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    is_versioned: bool,
    /,
) -> Any: ...
