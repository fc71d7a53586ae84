"""The gradients of layers."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard._gradients.backward import AttentionGradients, scaled_dot_product_attention_backward
from regard.layers._linear import gradient_of_bias, gradient_of_input, gradient_of_weight
from regard.layers._norms import gradient_of_norm
from regard.layers._projections import INPUTS, runs, split_heads

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from regard.layers._gates import HeadGates
    from regard.layers._linear import FloatArray
    from regard.layers._norms import NormResult
    from regard.layers._projections import Projections
    from regard.layers._rotation import Rotation


class InputGradients(NamedTuple):
    """The gradients of a layer's inputs.

    Attributes
    ----------
    query, key : numpy.ndarray
        Gradients of these inputs, with their shapes and the layer's dtype.
    value : numpy.ndarray or None
        Likewise, or None if no value was given. The gradient of the key then includes its part.
    head_gates : numpy.ndarray or None
        The gradient of the `head_gates` of the call, with their shape, or None if the call had
        none. If the call had no key, `query` is the gradient of the single input, and `key` is None
        too.
    """

    query: FloatArray
    key: FloatArray | None = None
    value: FloatArray | None = None
    head_gates: FloatArray | None = None


class ForwardCall(NamedTuple):
    """The data of a forward call in train mode, for its gradients."""

    projections: Projections
    sources: list[FloatArray]  # the three inputs, one array if they are the same
    heads: tuple[FloatArray, FloatArray, FloatArray]  # as attention reads them
    rows: FloatArray  # (..., q_len, heads * head_dim), the output of attention
    lse: FloatArray
    mask: Any
    options: dict[str, Any]  # of the attention call
    names: Mapping[str, str]  # the names of parameters in `projections`, by their names in `grads`
    norms: Mapping[str, NormResult] = {}
    rotation: Rotation | None = None
    places: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None  # of queries and keys
    ends: tuple[int, ...] = (3,)  # the end of the inputs that each argument of the call provides
    gates: HeadGates | None = None

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the output."""
        if "W_out" not in self.projections.own:
            return self.rows.shape
        return (*self.rows.shape[:-1], self.projections.sizes.inputs[0])

    def gradients(
        self, grad: FloatArray, threads: int | None
    ) -> tuple[FloatArray | InputGradients, dict[str, FloatArray]]:
        """Return the gradients of the arguments and, by their names, of the parameters."""
        parameters, heads = self.projections.own, self.projections.sizes.heads
        own: dict[str, FloatArray] = {}
        of_rows = grad
        if "W_out" in parameters:
            gated = self.rows if self.gates is None else self.gates.apply(self.rows, heads)
            own["W_out"] = gradient_of_weight(grad, gated, threads)
            of_rows = gradient_of_input(grad, parameters["W_out"], threads)
        if "b_out" in parameters:
            own["b_out"] = gradient_of_bias(grad, threads)
        of_gates = None
        if self.gates is not None:
            of_learned, of_gates = self.gates.gradients(of_rows, self.rows, heads)
            if of_learned is not None:
                own["head_gates"] = of_learned
            of_rows = self.gates.apply(of_rows, heads)

        projected = _ProjectionGradients(self.projections, self.sources)
        own |= self._through_heads(of_rows, projected, threads)
        own |= projected.gradients_of_parameters(threads)

        inputs = [
            gradient_of_input(
                projected.columns(first, last), self.projections.stacked("W", first, last), threads
            )
            for first, last in pairwise((0, *self.ends))
        ]
        gradients = {name: self._as_parameter(own[part]) for name, part in self.names.items()}
        if len(inputs) == 1 and of_gates is None:
            return inputs[0], gradients
        return InputGradients(*inputs)._replace(head_gates=of_gates), gradients

    def _as_parameter(self, gradient: FloatArray) -> FloatArray:
        return gradient if self.projections.is_out_in else np.ascontiguousarray(gradient.T)

    def _through_heads(
        self, of_rows: FloatArray, projected: _ProjectionGradients, threads: int | None
    ) -> dict[str, FloatArray]:
        """Write the gradients of the projected inputs, and return the parameter gradients."""
        query, key, value = self.heads
        of_query, of_key, of_value = (projected.heads(i) for i in range(3))
        sizes = self.projections.sizes
        has_distances = "distance_bias" in self.projections.own
        gradients = scaled_dot_product_attention_backward(
            split_heads(of_rows, sizes.heads).swapaxes(-3, -2),
            query,
            key,
            value,
            split_heads(self.rows, sizes.heads).swapaxes(-3, -2),
            self.lse,
            self.mask,
            **self.options,
            with_respect_to=(*INPUTS, "distance_bias") if has_distances else INPUTS,
            out=AttentionGradients(of_query, of_key, of_value),
            threads=threads,
        )
        if self.rotation is not None and self.places is not None:
            turned = zip((of_query, of_key), self.places, strict=True)
            self.rotation.turn(*turned, cached=False, transposed=True)
        own = {
            name: gradient_of_norm(
                of_head.swapaxes(-3, -2),
                self.projections.norm_factor(name),
                self.norms[name],
                threads,
            )
            for name, of_head in (("norm_query", of_query), ("norm_key", of_key))
            if name in self.norms
        }
        if gradients.distance_bias is not None:
            own["distance_bias"] = gradients.distance_bias
        return own


class _ProjectionGradients:
    """Gradients of the projected inputs, side by side if the inputs are the same array.

    The weights of these inputs are stacked, so that one product computes all their gradients.
    """

    def __init__(self, projections: Projections, sources: list[FloatArray]) -> None:
        self._sizes = projections.sizes
        self._has_biases = "b_query" in projections.own
        self._sources = sources
        self._bounds = [0, *self._sizes.ends(0, 3)]
        self._arrays: list[tuple[int, FloatArray]] = []  # for each input, the first in its array
        for first, last in runs(sources):
            x = sources[first]
            width = self._bounds[last] - self._bounds[first]
            array = np.empty((*x.shape[:-1], width), x.dtype)
            self._arrays += [(first, array)] * (last - first)

    def columns(self, first: int, last: int) -> FloatArray:
        """Return the gradients of inputs `first` to ``last - 1``, which are the same array."""
        beside, array = self._arrays[first]
        begin = self._bounds[beside]
        return array[..., self._bounds[first] - begin : self._bounds[last] - begin]

    def heads(self, i: int) -> FloatArray:
        """Return the gradient of input `i` as ``(..., heads, seq, head_dim)``."""
        return split_heads(self.columns(i, i + 1), self._sizes.counts[i]).swapaxes(-3, -2)

    def gradients_of_parameters(self, threads: int | None) -> dict[str, FloatArray]:
        """Return the gradients of the weights and biases before attention."""
        own: dict[str, FloatArray] = {}
        for first, last in runs(self._sources):
            columns = self.columns(first, last)
            ends = self._sizes.ends(first, last)[:-1]
            stacks = {"W": gradient_of_weight(columns, self._sources[first], threads)}
            if self._has_biases:
                stacks["b"] = gradient_of_bias(columns, threads)
            for letter, stack in stacks.items():
                names = [f"{letter}_{name}" for name in INPUTS[first:last]]
                own |= zip(names, np.split(stack, ends), strict=True)
        return own
