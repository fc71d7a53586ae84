"""The same computation in regard, NumPy, PyTorch and ONNX Runtime, as their users call them."""

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
    """An engine is not on this machine; the message names the missing package."""


class TooLargeError(Exception):
    """A problem would take an engine too much memory; the message gives the size."""


class NotOfferedError(Exception):
    """An engine does not compute this; the message says what."""


class Engine(ABC):
    """Something that computes attention, products and softmax.

    The calls that it returns hold their arrays in the engine's own form and return the result in
    that form, so that no conversion is timed.
    """

    name: str
    version: str

    def __init__(self, threads: int) -> None:
        self.threads = threads

    @abstractmethod
    def attention(self, query: Array, key: Array, value: Array, *, is_causal: bool = False) -> Call:
        """Return the call that computes attention, or raise `TooLargeError`."""

    @abstractmethod
    def matmul(self, a: Array, b: Array) -> Call:
        """Return the call that multiplies."""

    @abstractmethod
    def softmax(self, x: Array, axis: int) -> Call:
        """Return the call that normalizes along an axis."""

    @abstractmethod
    def scale(self, scores: Array, factor: float) -> Call:
        """Return the call that multiplies by a number."""

    @abstractmethod
    def apply_mask(self, scores: Array, mask: Array) -> Call:
        """Return the call that gives -inf where a bool mask is False."""

    def attention_gradient(
        self,
        query: Array,
        key: Array,
        value: Array,
        grad_output: Array,
        *,
        is_causal: bool,
        with_forward: bool,
    ) -> Call:
        """Return the call that computes all three gradients and gives that of the key."""
        raise NotOfferedError("it computes no gradients")

    def attention_tangent(self, query: Array, key: Array, value: Array, *, is_causal: bool) -> Call:
        """Return the call that computes attention and its derivative, and gives the output."""
        raise NotOfferedError("it computes no derivatives along a direction")

    def as_array(self, result: Any) -> Array:
        """Convert the result of a call to an array."""
        array: Array = result
        return array

    def context(self) -> AbstractContextManager[Any]:
        """Return the context that the calls need."""
        return nullcontext()


class Regard(Engine):
    """The package that this module is in; it alone takes masks, windows and int8 arithmetic."""

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
        """Return the fused call, with no argument that says what the default says."""
        options = self._thread_options()
        if is_causal:
            options["is_causal"] = True
        given = {"mask": mask, "window": window, "precision": precision}
        options |= {name: option for name, option in given.items() if option is not None}
        return partial(regard.scaled_dot_product_attention, query, key, value, **options)

    def matmul(self, a: Array, b: Array) -> Call:
        """Return the stage."""
        return partial(regard.matmul, a, b, **self._thread_options())

    def softmax(self, x: Array, axis: int) -> Call:
        """Return the stage."""
        return partial(regard.softmax, x, axis, **self._thread_options())

    def scale(self, scores: Array, factor: float) -> Call:
        """Return the stage."""
        return partial(regard.scale, scores, factor, **self._thread_options())

    def apply_mask(self, scores: Array, mask: Array) -> Call:
        """Return the stage."""
        return partial(regard.apply_mask, scores, mask, **self._thread_options())

    def attention_gradient(
        self,
        query: Array,
        key: Array,
        value: Array,
        grad_output: Array,
        *,
        is_causal: bool,
        with_forward: bool,
    ) -> Call:
        """Return the fused calls."""
        options = self._thread_options()
        if is_causal:
            options["is_causal"] = True

        def forward() -> tuple[Array, Array]:
            return regard.scaled_dot_product_attention(
                query, key, value, return_lse=True, **options
            )

        kept = forward()

        def gradient() -> Array | None:
            output, lse = forward() if with_forward else kept
            return regard.scaled_dot_product_attention_backward(
                grad_output, query, key, value, output, lse, **options
            ).key

        return gradient

    def attention_tangent(self, query: Array, key: Array, value: Array, *, is_causal: bool) -> Call:
        """Return the fused call, along a direction that is not zero in any array."""
        tangents = (np.flip(query, -2).copy(), np.flip(key, -2).copy(), np.flip(value, -2).copy())
        options = self._thread_options() | {"is_causal": is_causal}
        return lambda: regard.scaled_dot_product_attention_jvp(
            query, key, value, *tangents, **options
        )[0]

    def _thread_options(self) -> dict[str, Any]:
        return {} if self.threads == regard.get_num_threads() else {"threads": self.threads}


class NumPy(Engine):
    """The formula in NumPy, without a loop, in place, and with no key copied for a group.

    NumPy has no call that sets its threads: the process is started with them set.
    """

    name = "NumPy"
    version = np.__version__

    MAX_SCORE_BYTES = 1 << 30

    def attention(self, query: Array, key: Array, value: Array, *, is_causal: bool = False) -> Call:
        """Return the formula."""
        _require_room_for_scores(query, key, self.MAX_SCORE_BYTES)
        batch, heads, q_len, head_dim = query.shape
        _, kv_heads, kv_len, _ = key.shape
        rows = (batch, kv_heads, heads // kv_heads * q_len, head_dim)
        scale = query.dtype.type(1 / math.sqrt(head_dim))
        keys = key.swapaxes(-1, -2)
        hidden = ~np.tri(q_len, kv_len, dtype=bool) if is_causal else None

        def attend() -> Array:
            # The queries of a group lie below each other: one product for each key head.
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

    def attention_gradient(
        self,
        query: Array,
        key: Array,
        value: Array,
        grad_output: Array,
        *,
        is_causal: bool,
        with_forward: bool,
    ) -> Call:
        """Return the formulas, which keep the weights of the forward pass."""
        _require_room_for_scores(query, key, self.MAX_SCORE_BYTES)
        scale = query.dtype.type(1 / math.sqrt(query.shape[-1]))
        hidden = ~np.tri(query.shape[-2], key.shape[-2], dtype=bool) if is_causal else None

        def forward() -> Array:
            weights: Array = (query * scale) @ key.swapaxes(-1, -2)
            if hidden is not None:
                np.copyto(weights, -np.inf, where=hidden)
            weights -= weights.max(axis=-1, keepdims=True)
            np.exp(weights, out=weights)
            weights /= weights.sum(axis=-1, keepdims=True)
            if with_forward:
                weights @ value
            return weights

        kept = forward()

        def gradient() -> Array:
            weights = forward() if with_forward else kept
            weights.swapaxes(-1, -2) @ grad_output
            scores: Array = grad_output @ value.swapaxes(-1, -2)
            scores -= (scores * weights).sum(axis=-1, keepdims=True)
            scores *= weights
            scores *= scale
            scores @ key
            result: Array = scores.swapaxes(-1, -2) @ query
            return result

        return gradient

    def matmul(self, a: Array, b: Array) -> Call:
        """Return the product."""
        return partial(np.matmul, a, b)

    def softmax(self, x: Array, axis: int) -> Call:
        """Return the formula."""

        def normalize() -> Array:
            weights: Array = x - x.max(axis=axis, keepdims=True)
            np.exp(weights, out=weights)
            weights /= weights.sum(axis=axis, keepdims=True)
            return weights

        return normalize

    def scale(self, scores: Array, factor: float) -> Call:
        """Return the product."""
        return partial(np.multiply, scores, scores.dtype.type(factor))

    def apply_mask(self, scores: Array, mask: Array) -> Call:
        """Return the choice."""
        return partial(np.where, mask, scores, scores.dtype.type(-np.inf))


class PyTorch(Engine):
    """PyTorch on the CPU."""

    name = "PyTorch"

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self._torch: Any = _import("torch")
        self._torch.set_num_threads(threads)
        self.version = str(self._torch.__version__)
        self._attention = self._torch.nn.functional.scaled_dot_product_attention

    def attention(self, query: Array, key: Array, value: Array, *, is_causal: bool = False) -> Call:
        """Return the fused call."""
        options: dict[str, bool] = {}
        if is_causal:
            options["is_causal"] = True
        if query.shape[1] != key.shape[1]:
            options["enable_gqa"] = True
        return partial(
            self._attention, *map(self._torch.from_numpy, (query, key, value)), **options
        )

    def attention_gradient(
        self,
        query: Array,
        key: Array,
        value: Array,
        grad_output: Array,
        *,
        is_causal: bool,
        with_forward: bool,
    ) -> Call:
        """Return the backward pass of the fused call."""
        torch = self._torch
        inputs = [torch.from_numpy(array).requires_grad_() for array in (query, key, value)]
        gradient_of_output = torch.from_numpy(grad_output)
        kept = self._attention(*inputs, is_causal=is_causal)

        def gradient() -> Any:
            with torch.inference_mode(False), torch.enable_grad():
                output = self._attention(*inputs, is_causal=is_causal) if with_forward else kept
                return torch.autograd.grad(
                    output, inputs, gradient_of_output, retain_graph=not with_forward
                )[1]

        return gradient

    def matmul(self, a: Array, b: Array) -> Call:
        """Return the product."""
        return partial(self._torch.matmul, *map(self._torch.from_numpy, (a, b)))

    def softmax(self, x: Array, axis: int) -> Call:
        """Return the function."""
        return partial(self._torch.softmax, self._torch.from_numpy(x), dim=axis)

    def scale(self, scores: Array, factor: float) -> Call:
        """Return the product."""
        return partial(self._torch.mul, self._torch.from_numpy(scores), factor)

    def apply_mask(self, scores: Array, mask: Array) -> Call:
        """Return the choice."""
        shown, array = self._torch.from_numpy(mask), self._torch.from_numpy(scores)
        return partial(self._torch.where, shown, array, -math.inf)

    def as_array(self, result: Any) -> Array:
        """Return the array of a tensor."""
        array: Array = result.numpy()
        return array

    def context(self) -> AbstractContextManager[Any]:
        """Leave out what only gradients need."""
        mode: AbstractContextManager[Any] = self._torch.inference_mode()
        return mode


class OnnxRuntime(Engine):
    """ONNX Runtime: a session over a model of one node, on its CPU provider."""

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
        """Return a session of the Attention operator, which stores the scores."""
        _require_room_for_scores(query, key, self.MAX_SCORE_BYTES)
        arrays = {"Q": query, "K": key, "V": value}
        return self._session("Attention", arrays, is_causal=int(is_causal))

    def matmul(self, a: Array, b: Array) -> Call:
        """Return a session of the MatMul operator."""
        return self._session("MatMul", {"A": a, "B": b})

    def softmax(self, x: Array, axis: int) -> Call:
        """Return a session of the Softmax operator."""
        return self._session("Softmax", {"input": x}, axis=axis)

    def scale(self, scores: Array, factor: float) -> Call:
        """Return a session of the Mul operator."""
        return self._session("Mul", {"A": scores, "B": np.full(1, factor, scores.dtype)})

    def apply_mask(self, scores: Array, mask: Array) -> Call:
        """Return a session of the Where operator."""
        hidden = np.full(1, -np.inf, scores.dtype)
        return self._session("Where", {"condition": mask, "X": scores, "Y0": hidden})

    def _session(self, operator: str, arrays: dict[str, Array], **attributes: int) -> Call:
        # Sessions have threads of their own: one serves all arrays of the same shapes.
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


def _require_room_for_scores(query: Array, key: Array, most: int) -> None:
    """Refuse scores that take more than `most` bytes, or a quarter of the available memory."""
    size = query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2] * query.itemsize
    if size > min(most, available_memory() // 4):
        raise TooLargeError(f"its scores take {size / 1e9:.1f} GB")


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            raise NotInstalledError(name) from None
        raise
