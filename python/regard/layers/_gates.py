"""Head gates: the numbers that multiply the outputs of heads before they are projected."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from regard._arguments.arrays import broadcasts_to
from regard._arguments.numbers import token_counts
from regard._gradients.wanted import summed_to
from regard.layers._inputs import real_array
from regard.layers._projections import split_heads

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import ArrayLike, NDArray

    from regard.layers._linear import FloatArray


class HeadGates(NamedTuple):
    """The gates of a call."""

    learned: FloatArray | None
    """The parameter, of shape (heads,)."""
    given: FloatArray | None
    """The argument of the call, which broadcasts to (..., heads) with the axes of the batch."""
    factors: FloatArray
    """Their product, for each row of the output: it broadcasts to (..., q_len, heads)."""

    @classmethod
    def of(
        cls,
        learned: FloatArray | None,
        given: ArrayLike | None,
        sources: list[FloatArray],
        starts: ArrayLike | None,
        heads: int,
    ) -> HeadGates | None:
        """Return the gates of a call, or None without gates, or raise TypeError or ValueError."""
        if given is None:
            return None if learned is None else cls(learned, None, learned)
        counts = None if starts is None else token_counts(starts, "query", sources[0].shape[-2])
        own = _checked(given, _batch_of(sources) if counts is None else counts.shape, heads)
        with np.errstate(over="ignore", invalid="ignore"):
            own = own.astype(sources[0].dtype)  # a copy, which the caller cannot change
            product = own if learned is None else own * learned
        if product.ndim < 2:
            return cls(learned, own, product)
        if counts is None:
            return cls(learned, own, product[..., None, :])
        of_sequences = np.broadcast_to(product, (counts.size, product.shape[-1]))
        return cls(learned, own, np.repeat(of_sequences, counts.astype(np.intp), axis=0))

    def apply(self, rows: FloatArray, heads: int) -> FloatArray:
        """Multiply joined heads (..., q_len, heads * head_dim)."""
        with np.errstate(over="ignore", invalid="ignore"):
            gated: FloatArray = split_heads(rows, heads) * self.factors[..., None]
        return gated.reshape(rows.shape)

    def gradients(
        self, of_gated: FloatArray, rows: FloatArray, heads: int
    ) -> tuple[FloatArray | None, FloatArray | None]:
        """Return the gradients of the learned and of the given gates, None for missing gates."""
        with np.errstate(over="ignore", invalid="ignore"):
            terms = np.einsum(
                "...d,...d->...", split_heads(of_gated, heads), split_heads(rows, heads)
            )
            of_entries = np.asarray(np.sum(terms, axis=-2, dtype=np.float64))
            of_learned = of_entries if self.given is None else of_entries * self.given
            of_given = of_entries if self.learned is None else of_entries * self.learned
            return _folded(of_learned, self.learned), _folded(of_given, self.given)


def _checked(given: ArrayLike, batch: tuple[int, ...] | None, heads: int) -> NDArray[Any]:
    array = real_array("head_gates", given)
    if batch is not None and not broadcasts_to(array.shape, (*batch, heads)):
        entries = f" or {(*batch, heads)} with the batch axes" if batch else ""
        raise ValueError(
            f"head_gates must be a number for each head, of shape ({heads},){entries}, got shape "
            f"{array.shape}"
        )
    return array


def _batch_of(sources: list[FloatArray]) -> tuple[int, ...] | None:
    """Return the batch axes of a call, or None for axes that the attention call will refuse."""
    try:
        return np.broadcast_shapes(*(source.shape[:-2] for source in sources))
    except ValueError:
        return None


def _folded(gradient: NDArray[Any], gates: FloatArray | None) -> FloatArray | None:
    """Sum a gradient over the axes along which gates were broadcast."""
    if gates is None:
        return None
    folded: FloatArray = summed_to(gradient, gates.shape, gates.dtype)
    return folded
