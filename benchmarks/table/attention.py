"""Attention with the options that only regard supports, and the derivatives of attention."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

import regard
from regard import masks
from regard._bench.engines import (
    Array,
    Call,
    Engine,
    LeftOutError,
    NumPy,
    PyTorch,
    Regard,
    require_room_for_scores,
)
from regard._bench.problems import Attention, Inputs

BLOCK = 128


@dataclass(frozen=True)
class Variant(Attention):
    """Attention with a window or mask, of another type or layout, or with another precision.

    `window` counts the visible neighbors on both sides. With `mask_block`, a bool mask of square
    blocks with that side hides a random half of the blocks in each row of blocks. With
    `blocks_per_row`, a sparse mask shows that many random blocks of 128 keys to each block of 128
    queries. With `document`, queries see the document of that length to which they belong. If
    `is_strided`, arrays are views of (batch, length, heads, dim) storage. `precision` is the option
    of that name.
    """

    window: tuple[int, int] | None = None
    mask_block: int = 0
    blocks_per_row: int = 0
    document: int = 0
    dtype: str = "float32"
    is_strided: bool = False
    precision: str | None = None

    @cached_property
    def visible(self) -> int:
        """The number of visible pairs of query and key per head."""
        if self.mask_block:
            return super().visible // 2
        if self.blocks_per_row or self.document:
            return self.q_len * (self.document or self.blocks_per_row * BLOCK)
        if self.window is None:
            return super().visible
        position = np.arange(self.q_len)
        first = np.maximum(position - self.window[0], 0)
        last = np.minimum(position + self.window[1], self.kv_len - 1)
        return int(np.maximum(last - first + 1, 0).sum())

    @property
    def bytes(self) -> int:
        """The size of keys and values."""
        return super().bytes * np.dtype(self.dtype).itemsize // 4

    def make_inputs(self) -> Inputs:
        """Return query, key, value, and the mask or None."""
        arrays = [array.astype(self.dtype, copy=False) for array in super().make_inputs()]
        if self.is_strided:
            arrays = [array.swapaxes(1, 2).copy().swapaxes(1, 2) for array in arrays]
        return (*arrays, self._make_mask(np.random.default_rng(1)))

    def _make_mask(self, rng: np.random.Generator) -> Any:
        if side := self.mask_block:
            down, across = self.q_len // side, self.kv_len // side
            blocks = rng.permuted(np.tile(np.arange(across) % 2 == 0, (down, 1)), axis=1)
            return blocks.repeat(side, axis=0).repeat(side, axis=1)
        if self.document:
            return masks.documents(np.arange(self.q_len) // self.document)
        if self.blocks_per_row:
            return masks.random_blocks(
                self.q_len,
                self.kv_len,
                blocks_per_row=self.blocks_per_row,
                block=(BLOCK, BLOCK),
                rng=rng,
            )
        return None

    def seen(self, rows: list[int], inputs: Inputs) -> Array:
        """Return which keys some queries see, of shape (len(rows), kv_len)."""
        visible, mask = super().seen(rows, inputs), inputs[3]
        if self.window is not None:
            distance = np.arange(self.kv_len) - np.array(rows)[:, None]
            visible &= (-self.window[0] <= distance) & (distance <= self.window[1])
        if isinstance(mask, np.ndarray):
            return visible & mask[rows]
        if mask is not None:
            return np.concatenate([mask[row : row + 1].to_dense() for row in rows])
        return visible

    def on(self, engine: Engine, inputs: Inputs) -> Call:
        """Return the call of regard, the only engine with these options."""
        *arrays, mask = inputs
        given = {"mask": mask, "window": self.window, "precision": self.precision}
        options = {name: one for name, one in given.items() if one is not None}
        return engine.attention(*arrays, is_causal=self.is_causal, **options)


@dataclass(frozen=True)
class Backward(Attention):
    """The gradients of attention with respect to query, key and value, if heads equals kv_heads.

    With `with_forward`, the forward call is timed too.
    """

    with_forward: bool = False

    @property
    def flops(self) -> int:
        """Five products, each as large as one of the two products of the forward call."""
        return super().flops * (7 if self.with_forward else 5) // 2

    def make_inputs(self) -> Inputs:
        """Make query, key, value and the gradient of the output."""
        arrays = super().make_inputs()
        draw = np.random.default_rng(1).standard_normal
        return (*arrays, draw(arrays[0].shape, dtype=np.float32))

    def sample(self, inputs: Inputs) -> tuple[Any, Array]:
        """Compute the gradient of the first head's keys in float64."""
        query, key, value, grad_output = (array[0, 0].astype(np.float64) for array in inputs)
        scores = query @ key.T / math.sqrt(self.head_dim)
        if self.is_causal:
            scores = np.where(np.tri(*scores.shape) > 0, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        grad_weights = grad_output @ value.T
        inner = (grad_weights * weights).sum(axis=1, keepdims=True)
        grad_scores = weights * (grad_weights - inner)
        return np.s_[0, 0], grad_scores.T @ query / math.sqrt(self.head_dim)

    def on(self, engine: Engine, inputs: Inputs) -> Call:
        """Return the call that computes all three gradients and returns the key's gradient."""
        match engine:
            case Regard():
                return self._on_regard(engine, *inputs)
            case NumPy():
                return self._on_numpy(engine, *inputs)
            case PyTorch():
                return self._on_torch(engine, *inputs)
        raise LeftOutError("none: it computes no gradients")

    def _on_regard(
        self, engine: Regard, query: Array, key: Array, value: Array, grad_output: Array
    ) -> Call:
        options = engine.options | ({"is_causal": True} if self.is_causal else {})

        def forward() -> tuple[Array, Array]:
            return regard.scaled_dot_product_attention(
                query, key, value, return_lse=True, **options
            )

        kept = forward()

        def gradient() -> Array | None:
            output, lse = forward() if self.with_forward else kept
            return regard.scaled_dot_product_attention_backward(
                grad_output, query, key, value, output, lse, **options
            ).key

        return gradient

    def _on_numpy(
        self, engine: NumPy, query: Array, key: Array, value: Array, grad_output: Array
    ) -> Call:
        """Return the formulas, which keep the weights of the forward pass."""
        require_room_for_scores(query, key, engine.max_score_bytes)
        scale = query.dtype.type(1 / math.sqrt(query.shape[-1]))
        hidden = ~np.tri(query.shape[-2], key.shape[-2], dtype=bool) if self.is_causal else None

        def forward() -> Array:
            weights: Array = (query * scale) @ key.swapaxes(-1, -2)
            if hidden is not None:
                np.copyto(weights, -np.inf, where=hidden)
            weights -= weights.max(axis=-1, keepdims=True)
            np.exp(weights, out=weights)
            weights /= weights.sum(axis=-1, keepdims=True)
            if self.with_forward:
                weights @ value
            return weights

        kept = forward()

        def gradient() -> Array:
            weights = forward() if self.with_forward else kept
            weights.swapaxes(-1, -2) @ grad_output
            scores: Array = grad_output @ value.swapaxes(-1, -2)
            scores -= (scores * weights).sum(axis=-1, keepdims=True)
            scores *= weights
            scores *= scale
            scores @ key
            result: Array = scores.swapaxes(-1, -2) @ query
            return result

        return gradient

    def _on_torch(
        self, engine: PyTorch, query: Array, key: Array, value: Array, grad_output: Array
    ) -> Call:
        torch = engine.torch
        inputs = [torch.from_numpy(array).requires_grad_() for array in (query, key, value)]
        gradient_of_output = torch.from_numpy(grad_output)
        kept = engine.fused(*inputs, is_causal=self.is_causal)

        def gradient() -> Any:
            with torch.inference_mode(False), torch.enable_grad():
                again = self.with_forward
                output = engine.fused(*inputs, is_causal=self.is_causal) if again else kept
                return torch.autograd.grad(
                    output, inputs, gradient_of_output, retain_graph=not again
                )[1]

        return gradient


@dataclass(frozen=True)
class Tangent(Attention):
    """The derivative of attention along a direction, which is not zero in any array."""

    def on(self, engine: Engine, inputs: Inputs) -> Call:
        """Return the call of regard, which returns the output."""
        if not isinstance(engine, Regard):
            raise LeftOutError("none: it computes no derivatives along a direction")
        tangents = [np.flip(array, -2).copy() for array in inputs]
        options = engine.options | {"is_causal": self.is_causal}
        return lambda: regard.scaled_dot_product_attention_jvp(*inputs, *tangents, **options)[0]
