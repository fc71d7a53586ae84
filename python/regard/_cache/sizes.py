"""The sizes of caches, their limits and lengths."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from regard._cache.opened import opened_state
from regard._show.shows_options import ShowsOptions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from regard._cache.content import Content
    from regard._cache.layer import Layer

# The maximum number of lengths in a representation, which is one line.
_MOST_LENGTHS = 16


class Sizes(ShowsOptions):
    """A cache of one or all layers."""

    @property
    @abstractmethod
    def _source(self) -> Content | Layer:
        """Return the object that has the sizes and the state."""

    def _shown_options(self) -> dict[str, str] | str:
        geometry, state = self._source.geometry, self._source.state
        if state is None:
            return "closed"
        shown = {"batch": state.batch}
        shown |= {"num_kv_heads": geometry.kv_heads}
        shown |= {"head_dim": geometry.head_dim, "value_dim": geometry.value_dim}
        limits = {}
        if geometry.capacity is not None:
            limits["capacity"] = f"{geometry.capacity}"
        if geometry.keep_last is not None:
            limits["keep_last"] = f"{geometry.keep_last}"
            limits["keep_first"] = f"{geometry.keep_first}"
        lengths = state.all_lengths()
        more = f" and {len(lengths) - _MOST_LENGTHS} more" if len(lengths) > _MOST_LENGTHS else ""
        return {
            **{name: f"{number}" for name, number in shown.items()},
            "dtype": geometry.dtype.name,
            **limits,
            "page_size": f"{geometry.page_size}",
            "lengths": f"{lengths[:_MOST_LENGTHS].tolist()}{more}",
        }

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens seen by each entry, which is the position of its next token (a copy)."""
        return opened_state(self._source).all_lengths()

    @property
    def batch(self) -> int:
        """Number of batch entries."""
        return opened_state(self._source).batch

    @property
    def num_kv_heads(self) -> int:
        """Number of key and value heads."""
        return self._source.geometry.kv_heads

    @property
    def head_dim(self) -> int:
        """Size of the keys."""
        return self._source.geometry.head_dim

    @property
    def value_dim(self) -> int:
        """Size of the values."""
        return self._source.geometry.value_dim

    @property
    def dtype(self) -> np.dtype[Any] | str:
        """Storage type of keys and values: a name if NumPy has no such type."""
        return self._source.geometry.dtype.dtype

    @property
    def key_scales(self) -> NDArray[np.float32] | None:
        """Factors of the stored float8 keys, one per head (a copy), or None."""
        return self._fixed_scales(0)

    @property
    def value_scales(self) -> NDArray[np.float32] | None:
        """Factors of the stored float8 values, as for `key_scales`."""
        return self._fixed_scales(1)

    def _fixed_scales(self, which: int) -> NDArray[np.float32] | None:
        geometry = self._source.geometry
        if geometry.scales is None:
            return None
        scales = geometry.scales.arrays(geometry.layers)[which]
        number = getattr(self._source, "number", None)  # of one layer
        return scales.copy() if number is None else scales[number].copy()

    @property
    def capacity(self) -> int | None:
        """Maximum number of tokens per entry, or None."""
        return self._source.geometry.capacity

    @property
    def keep_last(self) -> int | None:
        """Number of last tokens that a query sees, or None for all."""
        return self._source.geometry.keep_last

    @property
    def keep_first(self) -> int:
        """Number of first tokens that a query also sees, with `keep_last`."""
        return self._source.geometry.keep_first

    @property
    def page_size(self) -> int:
        """Number of tokens in a page."""
        return self._source.geometry.page_size
