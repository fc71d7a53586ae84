"""The derivatives of attention, as problems."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.table.engines import TableEngine
from regard._bench.engines import Array, Call
from regard._bench.problems import Attention, Inputs


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
        query, key, value, _ = super().make_inputs()
        grad_output = np.random.default_rng(1).standard_normal(query.shape, dtype=np.float32)
        return query, key, value, grad_output

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

    def on(self, engine: TableEngine, inputs: Inputs) -> Call:
        """Return the engine's call, which returns the gradient of the keys."""
        return engine.attention_gradient(
            *inputs, is_causal=self.is_causal, with_forward=self.with_forward
        )


@dataclass(frozen=True)
class Tangent(Attention):
    """The derivative of attention along a direction of query, key and value."""

    def on(self, engine: TableEngine, inputs: Inputs) -> Call:
        """Return the engine's call, which returns the output."""
        query, key, value, _ = inputs
        return engine.attention_tangent(query, key, value, is_causal=self.is_causal)
