"""The engines with the stages of attention and its derivatives, as users of each call them."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

import regard
from regard._bench import engines
from regard._bench.engines import Array, Call, NotOfferedError, require_room_for_scores


class TableEngine(engines.Engine):
    """An engine with the computations beyond attention that it offers."""

    def matmul(self, a: Array, b: Array) -> Call:
        """Return the call that multiplies."""
        raise NotOfferedError("it has no products")

    def softmax(self, x: Array, axis: int) -> Call:
        """Return the call that normalizes along an axis."""
        raise NotOfferedError("it has no softmax")

    def scale(self, scores: Array, factor: float) -> Call:
        """Return the call that multiplies by a number."""
        raise NotOfferedError("it has no products with a number")

    def apply_mask(self, scores: Array, mask: Array) -> Call:
        """Return the call that writes -inf where a bool mask is False."""
        raise NotOfferedError("it has no masks")

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
        """Return the call that computes all three gradients and returns the key's gradient."""
        raise NotOfferedError("it computes no gradients")

    def attention_tangent(self, query: Array, key: Array, value: Array, *, is_causal: bool) -> Call:
        """Return the call that computes attention and its derivative, and returns the output."""
        raise NotOfferedError("it computes no derivatives along a direction")


class Regard(engines.Regard, TableEngine):
    """Regard with the stages."""

    def matmul(self, a: Array, b: Array) -> Call:
        """Return the stage."""
        return partial(regard.matmul, a, b, **self.thread_options())

    def softmax(self, x: Array, axis: int) -> Call:
        """Return the stage."""
        return partial(regard.softmax, x, axis, **self.thread_options())

    def scale(self, scores: Array, factor: float) -> Call:
        """Return the stage."""
        return partial(regard.scale, scores, factor, **self.thread_options())

    def apply_mask(self, scores: Array, mask: Array) -> Call:
        """Return the stage."""
        return partial(regard.apply_mask, scores, mask, **self.thread_options())

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
        options = self.thread_options()
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
        """Return the fused call. The direction is not zero in any array."""
        tangents = (np.flip(query, -2).copy(), np.flip(key, -2).copy(), np.flip(value, -2).copy())
        options = self.thread_options() | {"is_causal": is_causal}
        return lambda: regard.scaled_dot_product_attention_jvp(
            query, key, value, *tangents, **options
        )[0]


class NumPy(engines.NumPy, TableEngine):
    """NumPy with the stages."""

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
        require_room_for_scores(query, key, self.MAX_SCORE_BYTES)
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


class PyTorch(engines.PyTorch, TableEngine):
    """PyTorch with the stages."""

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
        torch = self.torch
        inputs = [torch.from_numpy(array).requires_grad_() for array in (query, key, value)]
        gradient_of_output = torch.from_numpy(grad_output)
        kept = self.fused(*inputs, is_causal=is_causal)

        def gradient() -> Any:
            with torch.inference_mode(False), torch.enable_grad():
                output = self.fused(*inputs, is_causal=is_causal) if with_forward else kept
                return torch.autograd.grad(
                    output, inputs, gradient_of_output, retain_graph=not with_forward
                )[1]

        return gradient

    def matmul(self, a: Array, b: Array) -> Call:
        """Return the product."""
        return partial(self.torch.matmul, *map(self.torch.from_numpy, (a, b)))

    def softmax(self, x: Array, axis: int) -> Call:
        """Return the function."""
        return partial(self.torch.softmax, self.torch.from_numpy(x), dim=axis)

    def scale(self, scores: Array, factor: float) -> Call:
        """Return the product."""
        return partial(self.torch.mul, self.torch.from_numpy(scores), factor)

    def apply_mask(self, scores: Array, mask: Array) -> Call:
        """Return the choice."""
        shown, array = self.torch.from_numpy(mask), self.torch.from_numpy(scores)
        return partial(self.torch.where, shown, array, -math.inf)


class OnnxRuntime(engines.OnnxRuntime, TableEngine):
    """OnnxRuntime with the stages."""

    def matmul(self, a: Array, b: Array) -> Call:
        """Return a run of the MatMul operator."""
        return self.session("MatMul", {"A": a, "B": b})

    def softmax(self, x: Array, axis: int) -> Call:
        """Return a run of the Softmax operator."""
        return self.session("Softmax", {"input": x}, axis=axis)

    def scale(self, scores: Array, factor: float) -> Call:
        """Return a run of the Mul operator."""
        return self.session("Mul", {"A": scores, "B": np.full(1, factor, scores.dtype)})

    def apply_mask(self, scores: Array, mask: Array) -> Call:
        """Return a run of the Where operator."""
        hidden = np.full(1, -np.inf, scores.dtype)
        return self.session("Where", {"condition": mask, "X": scores, "Y0": hidden})


ENGINES = (Regard, NumPy, PyTorch, OnnxRuntime)
