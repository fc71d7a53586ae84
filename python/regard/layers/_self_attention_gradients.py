"""The gradients of self-attention in one head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard._gradients.backward import AttentionGradients, scaled_dot_product_attention_backward
from regard.layers._linear import gradient_of_bias, gradient_of_input, gradient_of_weight

if TYPE_CHECKING:
    from regard.layers._linear import FloatArray


class SelfAttentionCall(NamedTuple):
    """The data that the gradients of a forward call of `SelfAttention` need."""

    x: FloatArray
    parameters: dict[str, FloatArray]
    is_out_in: bool  # whether weights are (d_out, d_in) or (d_in, d_out)
    heads: tuple[FloatArray, FloatArray, FloatArray]  # (..., 1, seq, d_out)
    output: FloatArray  # (..., 1, seq, d_out)
    lse: FloatArray
    mask: Any
    options: dict[str, Any]  # of the attention call

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the output."""
        return (*self.output.shape[:-3], *self.output.shape[-2:])

    def gradients(
        self, grad: FloatArray, threads: int | None
    ) -> tuple[FloatArray, dict[str, FloatArray]]:
        """Return the gradients of x and, by their names, of the parameters."""
        d_out = self.output.shape[-1]
        # The gradients of queries, keys and values are side by side, as if their weights were
        # stacked. One product then computes the gradients of all weights, and another that of x.
        columns = np.empty((*self.x.shape[:-1], 3 * d_out), self.x.dtype)
        parts = np.split(columns, 3, axis=-1)
        query, key, value = self.heads
        scaled_dot_product_attention_backward(
            grad[..., None, :, :],
            query,
            key,
            value,
            self.output,
            self.lse,
            self.mask,
            **self.options,
            out=AttentionGradients(*(part[..., None, :, :] for part in parts)),
            threads=threads,
        )
        weights = [name for name, array in self.parameters.items() if array.ndim == 2]
        biases = [name for name in self.parameters if name not in weights]
        of_weights = np.split(gradient_of_weight(columns, self.x, threads), 3)
        gradients = dict(zip(weights, map(self._turned, of_weights), strict=True))
        if biases:
            of_biases = np.split(gradient_of_bias(columns, threads), 3)
            gradients |= zip(biases, of_biases, strict=True)
        stack = np.concatenate([self._turned(self.parameters[name]) for name in weights])
        ordered = {name: gradients[name] for name in self.parameters}
        return gradient_of_input(columns, stack, threads), ordered

    def _turned(self, weight: FloatArray) -> FloatArray:
        """Convert a weight of the layer to (d_out, d_in), or a gradient back."""
        return weight if self.is_out_in else np.ascontiguousarray(weight.T)
