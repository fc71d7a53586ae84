"""The projections of multi-head attention, and their parameters."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex, cast

import numpy as np

from regard._arguments.arrays import compute_type
from regard._arguments.numbers import count
from regard._weights.narrow import narrowed, widened
from regard._weights.quantized import QuantizedWeight, rows_of, stacked
from regard.layers._linear import project
from regard.layers._norms import Norm, NormResult, normalize
from regard.layers._state import overwrite

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from regard._weights.narrow import Weight
    from regard.layers._draws import Draws
    from regard.layers._gates import HeadGates
    from regard.layers._linear import FloatArray

INPUTS = ("query", "key", "value")


class LayerSizes(NamedTuple):
    """The sizes of a layer."""

    inputs: tuple[int, int, int]  # of the query, key and value vectors
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def counts(self) -> tuple[int, int, int]:
        """The number of heads of each input."""
        return self.heads, self.kv_heads, self.kv_heads

    def ends(self, first: int, last: int) -> list[int]:
        """Return the ends of the adjacent projections of the inputs `first` to ``last - 1``."""
        return [self.head_dim * sum(self.counts[first : i + 1]) for i in range(first, last)]


def sizes_of(
    d_model: SupportsIndex,
    num_heads: SupportsIndex,
    num_kv_heads: SupportsIndex | None,
    head_dim: SupportsIndex | None,
    d_key: SupportsIndex | None,
    d_value: SupportsIndex | None,
) -> LayerSizes:
    """Return the sizes of a layer, with defaults for None, or raise an error."""
    width = count("d_model", d_model, minimum=1)
    heads = count("num_heads", num_heads, minimum=1)
    kv_heads = heads if num_kv_heads is None else count("num_kv_heads", num_kv_heads, minimum=1)
    if heads % kv_heads:
        raise ValueError(f"num_kv_heads must divide num_heads, got {kv_heads} and {heads}")
    if head_dim is None and width % heads:
        raise ValueError(
            f"num_heads must divide d_model if head_dim is not given, got {heads} and {width}"
        )
    dim = width // heads if head_dim is None else count("head_dim", head_dim, minimum=1)
    key_width = width if d_key is None else count("d_key", d_key, minimum=1)
    value_width = key_width if d_value is None else count("d_value", d_value, minimum=1)
    return LayerSizes((width, key_width, value_width), heads, kv_heads, dim)


class Projections:
    """Linear layers around attention, and the weights of the RMS norms between them.

    Parameters
    ----------
    sizes : LayerSizes
        The sizes of the layer.
    own : dict of str to numpy.ndarray
        The parameters, as `draw` names them. Without ``W_out``, joined heads are the output.
    norm : Norm or None
        The norm of queries and keys; None if there is none.
    weight_dtype : str or None
        The narrow type in which weights, but not biases and norms, are stored.
    is_stacked : bool
        Whether the weights of inputs of equal size become views of one array, so that one product
        projects equal inputs.
    is_out_in : bool
        Whether weights have shape ``(d_out, d_in)``, or ``(d_in, d_out)`` and are not stacked.
    """

    def __init__(
        self,
        sizes: LayerSizes,
        own: dict[str, Any],
        norm: Norm | None,
        weight_dtype: str | None = None,
        is_stacked: bool = True,
        is_out_in: bool = True,
    ) -> None:
        # Arrays, and QuantizedWeights if weight_dtype is "int8".
        self.own: dict[str, Any] = own
        self.sizes = sizes
        self._bounds = [0, *sizes.ends(0, 3)]  # of the inputs in stacked weights
        self.norm = norm
        self._weight_dtype = weight_dtype
        if weight_dtype is not None:
            own |= {name: self._stored(name, own[name]) for name in own}
        self._is_stacked = is_stacked and is_out_in and len(set(sizes.inputs)) == 1
        self.is_out_in = is_out_in
        self._packed: dict[str, Any] = {}
        if not self._is_stacked:
            return
        for letter in "Wb":
            names = [f"{letter}_{name}" for name in INPUTS if f"{letter}_{name}" in own]
            if names:
                self._packed[letter] = _stack([own[name] for name in names])
                own |= {
                    name: _rows(self._packed[letter], slice(*rows))
                    for name, rows in zip(names, pairwise(self._bounds), strict=True)
                }

    def state(self) -> dict[str, Any]:
        """Return the arguments of the constructor, as plain values."""
        return {
            "sizes": tuple(self.sizes),
            "own": dict(self.own),
            "norm": None if self.norm is None else tuple(self.norm),
            "weight_dtype": self._weight_dtype,
            "is_stacked": self._is_stacked,
            "is_out_in": self.is_out_in,
        }

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> Projections:
        """Return the projections with a state."""
        norm = None if state["norm"] is None else Norm(*state["norm"])
        sizes = LayerSizes(*state["sizes"])
        return cls(**state | {"sizes": sizes, "own": dict(state["own"]), "norm": norm})

    def widened(self) -> dict[str, FloatArray]:
        """Return the parameters as floats; narrow parameters are copied."""
        return {name: widened(parameter) for name, parameter in self.own.items()}

    def overwrite(self, parameters: Mapping[str, FloatArray]) -> None:
        """Write all parameters, or none if one cannot be stored in fewer bits."""
        new = {name: self._stored(name, array) for name, array in parameters.items()}
        # Lists, because an iterator in Python would allow Ctrl-C between two arrays.
        overwrite(
            [part for held in self.own.values() for part in _parts(held)],
            [part for name in self.own for part in _parts(new[name])],
        )

    def _stored(self, name: str, parameter: Any) -> Any:
        is_narrow = isinstance(parameter, QuantizedWeight) or parameter.dtype.itemsize == 2
        if self._weight_dtype is None or is_narrow or not name.startswith("W_"):
            return parameter
        return narrowed(name, parameter, self._weight_dtype)

    def heads(
        self,
        sources: list[FloatArray],
        threads: int | None,
        norms: dict[str, NormResult] | None = None,
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Project the three inputs to new arrays ``(..., heads, seq, head_dim)``.

        Data for the gradients of norms is added to `norms`, by the names of their weights.
        """
        query, key, value = (
            x.reshape(*x.shape[:-1], heads, self.sizes.head_dim)
            for x, heads in zip(self._project(sources, threads), self.sizes.counts, strict=True)
        )
        if self.norm is not None:
            for name, x in (("norm_query", query), ("norm_key", key)):
                # NaN and infinity are results, not warnings.
                with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
                    root = normalize(x, self.norm.eps)
                    if norms is not None:
                        norms[name] = NormResult(x.copy(), root)
                    x *= self.norm_factor(name)
        return query.swapaxes(-3, -2), key.swapaxes(-3, -2), value.swapaxes(-3, -2)

    def norm_factor(self, name: str) -> FloatArray:
        """Return the numbers that multiply the components of a normalized head."""
        weight: FloatArray = self.own[name]
        return weight + weight.dtype.type(self.norm_offset) if self.norm_offset else weight

    @property
    def norm_offset(self) -> float:
        """The number that norms add to their weight."""
        return self.norm.offset if self.norm is not None else 0.0

    def joined(
        self, output: FloatArray, gates: HeadGates | None, threads: int | None
    ) -> FloatArray:
        """Join the heads of ``(..., heads, seq, head_dim)``, multiply them and project them."""
        rows = self.rows(output)
        return self.out(rows if gates is None else gates.apply(rows, self.sizes.heads), threads)

    def rows(self, output: FloatArray) -> FloatArray:
        """Join the heads of ``(..., heads, seq, head_dim)``."""
        weight = self.own.get("W_out", self.own["W_query"])
        rows = output.swapaxes(-3, -2).astype(compute_type(weight.dtype), copy=False)
        return rows.reshape(*rows.shape[:-2], self.sizes.heads * self.sizes.head_dim)

    def out(self, rows: FloatArray, threads: int | None) -> FloatArray:
        """Project joined heads, or return them if there is no projection."""
        if "W_out" not in self.own:
            return rows
        return project(rows, self.own["W_out"], self.own.get("b_out"), threads)

    def stacked(self, first: int, last: int) -> FloatArray:
        """Return the weights of the inputs `first` to ``last - 1``, the first on top."""
        if self._packed:
            rows = slice(self._bounds[first], self._bounds[last])
            weights: FloatArray = self._packed["W"][rows]
            return weights
        return np.concatenate([self._weight(name) for name in INPUTS[first:last]])

    def _weight(self, name: str) -> Any:
        """Return the weight of an input, of shape (d_out, d_in)."""
        weight = self.own[f"W_{name}"]
        return weight if self.is_out_in else weight.T

    def _project(self, sources: list[FloatArray], threads: int | None) -> list[FloatArray]:
        """Project each input; inputs that are the same array are projected in one product."""
        if not self._packed:
            return [
                project(x, self._weight(name), self.own.get(f"b_{name}"), threads)
                for name, x in zip(INPUTS, sources, strict=True)
            ]
        results: list[FloatArray] = []
        for first, last in runs(sources):
            bounds = self._bounds[first : last + 1]
            rows = slice(bounds[0], bounds[-1])
            bias = self._packed["b"][rows] if "b" in self._packed else None
            product = project(sources[first], _rows(self._packed["W"], rows), bias, threads)
            for begin, end in pairwise(bounds):
                results.append(product[..., begin - rows.start : end - rows.start])
        return results


def _stack(weights: list[Weight]) -> Weight:
    if isinstance(weights[0], QuantizedWeight):
        return stacked(cast("list[QuantizedWeight]", weights))
    return np.concatenate(cast("list[FloatArray]", weights))


def _rows(weight: Weight, rows: slice) -> Weight:
    """Return a view of some rows."""
    return rows_of(weight, rows) if isinstance(weight, QuantizedWeight) else weight[rows]


def _parts(parameter: Weight) -> tuple[Any, ...]:
    """Return the arrays that hold a parameter."""
    if isinstance(parameter, QuantizedWeight):
        return parameter.numbers, parameter.scales
    return (parameter,)


def runs(arrays: Sequence[FloatArray]) -> Iterator[tuple[int, int]]:
    """Yield the beginning and the end of each run of the same array."""
    first = 0
    for last in range(1, len(arrays) + 1):
        if last == len(arrays) or arrays[last] is not arrays[first]:
            yield first, last
            first = last


def draw(
    sizes: LayerSizes,
    source: Draws,
    *,
    qkv_bias: bool,
    out_bias: bool,
    norm: Norm | None,
    distances: int | None,
    head_gates: bool,
    dtype: np.dtype[Any],
) -> dict[str, FloatArray]:
    """Draw the query, key, value and out layers.

    Norms and head gates multiply by 1 at first, and biases of distances are 0.
    """
    joined = sizes.heads * sizes.head_dim
    linears = [
        (name, d_in, heads * sizes.head_dim, qkv_bias)
        for name, d_in, heads in zip(INPUTS, sizes.inputs, sizes.counts, strict=True)
    ]
    own: dict[str, FloatArray] = {}
    for name, d_in, d_out, has_bias in [*linears, ("out", joined, sizes.inputs[0], out_bias)]:
        weight, bias = source.linear(d_in, d_out, has_bias, dtype)
        own[f"W_{name}"] = weight
        if bias is not None:
            own[f"b_{name}"] = bias
    if norm is not None:
        neutral = np.full(sizes.head_dim, norm.neutral, dtype)
        own |= {f"norm_{name}": neutral.copy() for name in INPUTS[:2]}
    if distances is not None:
        own["distance_bias"] = np.zeros((sizes.heads, 2 * distances - 1), dtype)
    if head_gates:
        own["head_gates"] = np.ones(sizes.heads, dtype)
    return own
