"""Attention in regard, NumPy, PyTorch and ONNX Runtime, as their users call it."""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

import regard
from regard._bench.machine import available_memory

Array = NDArray[Any]
Call = Callable[[], Any]


class NotInstalledError(Exception):
    """An engine is not installed. The message names the missing package."""


class TooLargeError(Exception):
    """A problem needs too much memory in an engine. The message states the size."""


class NotOfferedError(Exception):
    """An engine does not support a computation. The message names the computation."""


class Engine(ABC):
    """A library that computes attention.

    The returned calls hold arrays of the library and return such an array, so conversions are not
    timed.
    """

    name: str
    version: str

    def __init__(self, threads: int) -> None:
        self.threads = threads

    @abstractmethod
    def attention(self, query: Array, key: Array, value: Array, *, is_causal: bool = False) -> Call:
        """Return the call that computes attention. Raises `TooLargeError`."""

    def as_array(self, result: Any) -> Array:
        """Convert the result of a call to an array."""
        array: Array = result
        return array

    def context(self) -> AbstractContextManager[Any]:
        """Return the context that the calls need."""
        return nullcontext()


class Regard(Engine):
    """The installed regard. Only it accepts masks, windows and a precision."""

    name = "regard"
    version = regard.__version__

    def attention(
        self,
        query: Array,
        key: Array,
        value: Array,
        *,
        is_causal: bool = False,
        mask: Array | None = None,
        window: tuple[int, int] | None = None,
        precision: str | None = None,
    ) -> Call:
        """Return the fused call, without options that have their default values."""
        options = self.thread_options()
        if is_causal:
            options["is_causal"] = True
        given = {"mask": mask, "window": window, "precision": precision}
        options |= {name: option for name, option in given.items() if option is not None}
        return partial(regard.scaled_dot_product_attention, query, key, value, **options)

    def thread_options(self) -> dict[str, Any]:
        """Return the option `threads`, unless it has its default value."""
        return {} if self.threads == regard.get_num_threads() else {"threads": self.threads}


class NumPy(Engine):
    """The formula in NumPy, without loops, in place, and without copies of keys for a group.

    NumPy has no function that sets its number of threads. Set it before the process starts.
    """

    name = "NumPy"
    version = np.__version__

    MAX_SCORE_BYTES = 1 << 30

    def attention(self, query: Array, key: Array, value: Array, *, is_causal: bool = False) -> Call:
        """Return the formula."""
        require_room_for_scores(query, key, self.MAX_SCORE_BYTES)
        batch, heads, q_len, head_dim = query.shape
        _, kv_heads, kv_len, _ = key.shape
        rows = (batch, kv_heads, heads // kv_heads * q_len, head_dim)
        scale = query.dtype.type(1 / math.sqrt(head_dim))
        keys = key.swapaxes(-1, -2)
        hidden = ~np.tri(q_len, kv_len, dtype=bool) if is_causal else None

        def attend() -> Array:
            # The queries of a group form one matrix, so there is one product per key head.
            scores: Array = (query * scale).reshape(rows) @ keys
            weights = scores.reshape(batch, heads, q_len, -1)
            if hidden is not None:
                np.copyto(weights, -np.inf, where=hidden)
            weights -= weights.max(axis=-1, keepdims=True)
            np.exp(weights, out=weights)
            weights /= weights.sum(axis=-1, keepdims=True)
            output: Array = weights.reshape(scores.shape) @ value
            return output.reshape(batch, heads, q_len, -1)

        return attend


class PyTorch(Engine):
    """PyTorch on the CPU."""

    name = "PyTorch"

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.torch: Any = _import("torch")
        self.torch.set_num_threads(threads)
        self.version = str(self.torch.__version__)
        self.fused = self.torch.nn.functional.scaled_dot_product_attention

    def attention(self, query: Array, key: Array, value: Array, *, is_causal: bool = False) -> Call:
        """Return the fused call."""
        options: dict[str, bool] = {}
        if is_causal:
            options["is_causal"] = True
        if query.shape[1] != key.shape[1]:
            options["enable_gqa"] = True
        return partial(self.fused, *map(self.torch.from_numpy, (query, key, value)), **options)

    def as_array(self, result: Any) -> Array:
        """Return the array of a tensor."""
        array: Array = result.numpy()
        return array

    def context(self) -> AbstractContextManager[Any]:
        """Return a context in which nothing is recorded for gradients."""
        mode: AbstractContextManager[Any] = self.torch.inference_mode()
        return mode


class OnnxRuntime(Engine):
    """ONNX Runtime: a session with a model of one node, on the CPU provider."""

    name = "ONNX Runtime"

    MAX_SCORE_BYTES = 1 << 32
    _OPSET = 24
    _IR_VERSION = 10

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self._runtime: Any = _import("onnxruntime")
        self._onnx: Any = _import("onnx")
        self.version = str(self._runtime.__version__)
        self._session_key: Any = None
        self._run: Callable[..., Any]

    def attention(self, query: Array, key: Array, value: Array, *, is_causal: bool = False) -> Call:
        """Return a run of the Attention operator, which stores the scores."""
        require_room_for_scores(query, key, self.MAX_SCORE_BYTES)
        arrays = {"Q": query, "K": key, "V": value}
        return self.session("Attention", arrays, is_causal=int(is_causal))

    def session(self, operator: str, arrays: dict[str, Array], **attributes: int) -> Call:
        """Return a run of one operator."""
        # A session has its own threads, so arrays of equal shapes share one.
        shapes = {name: array.shape for name, array in arrays.items()}
        if self._session_key != (operator, shapes, attributes):
            self._run = self._make_session(operator, shapes, attributes).run
            self._session_key = (operator, shapes, attributes)
        return partial(self._run, None, arrays)

    def _make_session(
        self, operator: str, shapes: dict[str, tuple[int, ...]], attributes: dict[str, int]
    ) -> Any:
        helper, float32 = self._onnx.helper, self._onnx.TensorProto.FLOAT
        types = {"condition": self._onnx.TensorProto.BOOL}
        inputs = [
            helper.make_tensor_value_info(name, types.get(name, float32), shape)
            for name, shape in shapes.items()
        ]
        outputs = [helper.make_tensor_value_info("Y", float32, None)]
        node = helper.make_node(operator, list(shapes), ["Y"], **attributes)
        model = helper.make_model(
            helper.make_graph([node], operator, inputs, outputs),
            opset_imports=[helper.make_opsetid("", self._OPSET)],
            ir_version=self._IR_VERSION,
        )
        options = self._runtime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        return self._runtime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def as_array(self, result: Any) -> Array:
        """Return the array of the only output."""
        array: Array = result[0]
        return array


ENGINES: tuple[type[Engine], ...] = (Regard, NumPy, PyTorch, OnnxRuntime)


def require_room_for_scores(query: Array, key: Array, most: int) -> None:
    """Raise TooLargeError for scores of more than `most` bytes or a quarter of the free memory."""
    size = query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2] * query.itemsize
    if size > min(most, available_memory() // 4):
        raise TooLargeError(f"its scores need {size / 1e9:.1f} GB")


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            raise NotInstalledError(name) from None
        raise
