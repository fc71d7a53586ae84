"""Attention in regard, NumPy, PyTorch and ONNX Runtime, as their users call it."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

import regard
from regard._bench.machine import available_memory

Array = NDArray[Any]
Call = Callable[[], Any]


class LeftOutError(Exception):
    """An engine does not compute a problem. The message is a keyword and the reason."""


class Engine:
    """A library that computes attention.

    The returned calls hold arrays of the library and return such an array, so conversions are not
    timed. An engine without one of its `packages` is not installed.
    """

    name: str
    version: str
    packages: tuple[str, ...] = ()

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def attention(self, query: Array, key: Array, value: Array, *, is_causal: bool = False) -> Call:
        """Return the call that computes attention. Raises `LeftOutError`."""
        raise NotImplementedError

    def as_array(self, result: Any) -> Any:
        """Convert the result of a call to an array."""
        return result

    def context(self) -> Any:
        """Return the context that the calls need."""
        return nullcontext()


class Regard(Engine):
    """The installed regard. Only it accepts other options."""

    name = "regard"
    version = regard.__version__

    @property
    def options(self) -> dict[str, Any]:
        """The option `threads`, unless it has its default value."""
        return {} if self.threads == regard.get_num_threads() else {"threads": self.threads}

    def attention(
        self, query: Array, key: Array, value: Array, *, is_causal: bool = False, **options: Any
    ) -> Call:
        """Return the fused call, without options that have their default values."""
        given = {"is_causal": True} | options if is_causal else options
        return partial(
            regard.scaled_dot_product_attention, query, key, value, **self.options, **given
        )


class NumPy(Engine):
    """The formula in NumPy, without loops, in place, and without copies of keys for a group.

    NumPy has no function that sets its number of threads. Set it before the process starts.
    """

    name = "NumPy"
    version = np.__version__
    max_score_bytes = 1 << 30

    def attention(self, query: Array, key: Array, value: Array, *, is_causal: bool = False) -> Call:
        """Return the formula."""
        require_room_for_scores(query, key, self.max_score_bytes)
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
    packages = ("torch",)

    def __init__(self, threads: int) -> None:
        import torch

        super().__init__(threads)
        torch.set_num_threads(threads)
        self.torch: Any = torch
        self.version = str(torch.__version__)
        self.fused = torch.nn.functional.scaled_dot_product_attention

    def attention(self, query: Array, key: Array, value: Array, *, is_causal: bool = False) -> Call:
        """Return the fused call."""
        options = {"is_causal": is_causal, "enable_gqa": query.shape[1] != key.shape[1]}
        given = {name: True for name, option in options.items() if option}
        return partial(self.fused, *map(self.torch.from_numpy, (query, key, value)), **given)

    def as_array(self, result: Any) -> Any:
        """Return the array of a tensor."""
        return result.numpy()

    def context(self) -> Any:
        """Return a context in which nothing is recorded for gradients."""
        return self.torch.inference_mode()


class OnnxRuntime(Engine):
    """ONNX Runtime: a session with a model of one node, on the CPU provider."""

    name = "ONNX Runtime"
    packages = ("onnxruntime", "onnx")
    max_score_bytes = 1 << 32

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self._runtime: Any = import_module("onnxruntime")
        self._parse: Any = import_module("onnx.parser").parse_model
        self.version = str(self._runtime.__version__)
        self._text = ""
        self._run: Callable[..., Any]

    def attention(self, query: Array, key: Array, value: Array, *, is_causal: bool = False) -> Call:
        """Return a run of the Attention operator, which stores the scores."""
        require_room_for_scores(query, key, self.max_score_bytes)
        arrays = {"Q": query, "K": key, "V": value}
        return self.session(f"Attention<is_causal={int(is_causal)}>", arrays)

    def session(self, operator: str, arrays: dict[str, Array]) -> Call:
        """Return a run of one operator, which may be followed by its attributes in brackets."""
        inputs = ", ".join(
            f"{array.dtype.name.replace('float32', 'float')}{list(array.shape)} {name}"
            for name, array in arrays.items()
        )
        text = (
            '<ir_version: 10, opset_import: ["": 24]> '
            f"graph ({inputs}) => (float[] Y) {{ Y = {operator}({', '.join(arrays)}) }}"
        )
        # A session has its own threads, so arrays of equal shapes share one.
        if text != self._text:
            options = self._runtime.SessionOptions()
            options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
            self._run = self._runtime.InferenceSession(
                self._parse(text).SerializeToString(), options, providers=["CPUExecutionProvider"]
            ).run
            self._text = text
        return partial(self._run, None, arrays)

    def as_array(self, result: Any) -> Any:
        """Return the array of the only output."""
        return result[0]


ENGINES: tuple[type[Engine], ...] = (Regard, NumPy, PyTorch, OnnxRuntime)


def require_room_for_scores(query: Array, key: Array, most: int) -> None:
    """Raise LeftOutError for scores of more than `most` bytes or a quarter of the free memory."""
    size = query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2] * query.itemsize
    if size > min(most, available_memory() // 4):
        raise LeftOutError(f"memory: its scores need {size / 1e9:.1f} GB")
