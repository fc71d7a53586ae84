"""The projections of multi-head attention, and their parameters."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex

import numpy as np

from regard._arguments.arrays import compute_type
from regard._arguments.numbers import count
from regard.layers._linear import project
from regard.layers._norms import Norm, NormResult, normalize

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from regard.layers._gates import HeadGates
    from regard.layers._linear import FloatArray

INPUTS = ("query", "key", "value")


class LayerSizes(NamedTuple):
    """The sizes of a layer."""

    inputs: tuple[int, int, int]  # of the query, key and value vectors
    heads: int
    kv_heads: int
    head_dim: int

    @classmethod
    def of(
        cls,
        d_model: SupportsIndex,
        num_heads: SupportsIndex,
        num_kv_heads: SupportsIndex | None,
        head_dim: SupportsIndex | None,
        d_key: SupportsIndex | None,
        d_value: SupportsIndex | None,
    ) -> LayerSizes:
        """Return the sizes of a layer, with defaults for None, or raise TypeError or ValueError."""
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
        return cls((width, key_width, value_width), heads, kv_heads, dim)

    @property
    def counts(self) -> tuple[int, int, int]:
        """The number of heads of each input."""
        return self.heads, self.kv_heads, self.kv_heads

    def ends(self, first: int, last: int) -> list[int]:
        """Return the ends of the adjacent projections of the inputs `first` to ``last - 1``."""
        return [self.head_dim * sum(self.counts[first : i + 1]) for i in range(first, last)]


class Projections:
    """Linear layers around attention, and the weights of the RMS norms between them.

    Parameters
    ----------
    sizes : LayerSizes or tuple
        The sizes of the layer.
    own : mapping of str to numpy.ndarray
        The parameters, as `draw` names them. Without ``W_out``, joined heads are the output.
    norm : Norm, tuple or None
        The norm of queries and keys; None if there is none.
    is_out_in : bool
        Whether weights have shape ``(d_out, d_in)``, or ``(d_in, d_out)`` and are not stacked. The
        weights of inputs of equal size are views of one array, so that one product projects equal
        inputs.
    """

    def __init__(
        self,
        sizes: tuple[Any, ...],
        own: Mapping[str, FloatArray],
        norm: tuple[float, float] | None,
        is_out_in: bool = True,
    ) -> None:
        self.sizes, self.own, self.is_out_in = LayerSizes(*sizes), dict(own), is_out_in
        self.norm = None if norm is None else Norm(*norm)
        self._bounds = [0, *self.sizes.ends(0, 3)]  # of the inputs in stacked weights
        self._packed: dict[str, FloatArray] = {}
        if not is_out_in or len(set(self.sizes.inputs)) > 1:
            return
        for letter in "Wb":
            names = [f"{letter}_{name}" for name in INPUTS if f"{letter}_{name}" in own]
            if names:
                stack = self._packed[letter] = np.concatenate([own[name] for name in names])
                self.own |= zip(names, np.split(stack, self._bounds[1:-1]), strict=True)

    def state(self) -> dict[str, Any]:
        """Return the arguments of the constructor, as plain values."""
        return {
            "sizes": tuple(self.sizes),
            "own": self.own,
            "norm": None if self.norm is None else tuple(self.norm),
            "is_out_in": self.is_out_in,
        }

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
            split_heads(x, heads)
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

    def rows(self, output: FloatArray) -> FloatArray:
        """Join the heads of ``(..., heads, seq, head_dim)``."""
        weight = self.own.get("W_out", self.own["W_query"])
        rows = output.swapaxes(-3, -2).astype(compute_type(weight.dtype), copy=False)
        return rows.reshape(*rows.shape[:-2], self.sizes.heads * self.sizes.head_dim)

    def out(self, rows: FloatArray, gates: HeadGates | None, threads: int | None) -> FloatArray:
        """Multiply joined heads by their gates and project them, if there are any of these."""
        if gates is not None:
            rows = gates.apply(rows, self.sizes.heads)
        if "W_out" not in self.own:
            return rows
        return project(rows, self.own["W_out"], self.own.get("b_out"), threads)

    def stacked(self, letter: str, first: int, last: int) -> Any:
        """Return the weights "W" or the biases "b" of the inputs `first` to ``last - 1``.

        They are stacked, the first on top. Biases are None in a layer without them.
        """
        if letter in self._packed:
            return self._packed[letter][self._bounds[first] : self._bounds[last]]
        if f"{letter}_query" not in self.own:
            return None
        own = [self.own[f"{letter}_{name}"] for name in INPUTS[first:last]]
        if not self.is_out_in:
            own = [array.T for array in own]  # of a layer that has no biases
        return own[0] if len(own) == 1 else np.concatenate(own)

    def _project(self, sources: list[FloatArray], threads: int | None) -> list[FloatArray]:
        """Project each input; packed weights project inputs that are the same array at once."""
        results: list[FloatArray] = []
        for first, last in runs(sources) if self._packed else pairwise(range(4)):
            weight, bias = (self.stacked(letter, first, last) for letter in "Wb")
            product = project(sources[first], weight, bias, threads)
            bounds = self._bounds[first : last + 1]
            for begin, end in pairwise(bounds):
                results.append(product[..., begin - bounds[0] : end - bounds[0]])
        return results


def split_heads(rows: FloatArray, heads: int) -> FloatArray:
    """Return ``(..., heads * head_dim)`` as ``(..., heads, head_dim)``, a view."""
    return rows.reshape(*rows.shape[:-1], heads, rows.shape[-1] // heads)


def runs(arrays: Sequence[FloatArray]) -> Iterator[tuple[int, int]]:
    """Yield the beginning and the end of each run of the same array."""
    first = 0
    for last in range(1, len(arrays) + 1):
        if last == len(arrays) or arrays[last] is not arrays[first]:
            yield first, last
            first = last
