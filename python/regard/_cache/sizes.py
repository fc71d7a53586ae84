"""The sizes of caches, their limits and lengths."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._show.shows_options import ShowsOptions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard import _core
    from regard._cache.geometry import Geometry, LayerGeometry

    Array = NDArray[Any]

# The maximum number of lengths in a representation, which is one line.
_MOST_LENGTHS = 16


class Sizes(ShowsOptions):
    """A cache of one or all layers. A value that differs between layers is a tuple."""

    _pages: _core.PageTable
    _geometry: Geometry

    @property
    @abstractmethod
    def _shown(self) -> tuple[LayerGeometry, ...]:
        """The layers whose sizes are shown."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens seen by each entry, which is the position of its next token (a copy)."""
        return self._pages.lengths

    @property
    def batch(self) -> int:
        """Number of batch entries."""
        return len(self._pages.lengths)

    @property
    def num_kv_heads(self) -> Any:
        """Number of key and value heads."""
        return self._common("kv_heads")

    @property
    def head_dim(self) -> Any:
        """Size of the keys."""
        return self._common("head_dim")

    @property
    def value_dim(self) -> Any:
        """Size of the values."""
        return self._common("value_dim")

    @property
    def dtype(self) -> Any:
        """Storage type of keys and values: a name if NumPy has no such type."""
        types = tuple(layer.dtype.dtype for layer in self._shown)
        return types[0] if len(set(types)) == 1 else types

    @property
    def capacity(self) -> int | None:
        """Maximum number of tokens per entry, or None."""
        return self._geometry.capacity

    @property
    def keep_last(self) -> Any:
        """Number of last tokens that a query sees, or None for all."""
        return self._common("keep_last")

    @property
    def keep_first(self) -> Any:
        """Number of first tokens that a query also sees, with `keep_last`."""
        return self._common("keep_first")

    @property
    def page_size(self) -> Any:
        """Number of tokens in a page."""
        return self._common("page_size")

    @property
    def key_scales(self) -> Any:
        """Factors of the stored float8 keys, one per head (a copy), or None."""
        return self._scales(0)

    @property
    def value_scales(self) -> Any:
        """Factors of the stored float8 values, as for `key_scales`."""
        return self._scales(1)

    @property
    def key_means(self) -> Any:
        """What is subtracted from keys before they are stored (a copy), or None."""
        return self._joined([layer.mean_array() for layer in self._shown])

    @property
    def value_from_key(self) -> Any:
        """Whether values are the first numbers of the keys, and are not stored."""
        return self._common("value_from_key")

    def _scales(self, which: int) -> Any:
        found = [layer.scale_arrays() for layer in self._shown]
        return self._joined([each[which] if each else None for each in found])

    def _joined(self, arrays: list[Array | None]) -> Any:
        """Return the arrays of all layers as one array if their shapes are equal."""
        if all(each is None for each in arrays):
            return None
        shapes = {None if each is None else each.shape for each in arrays}
        return np.array(arrays) if len(shapes) == 1 else tuple(arrays)

    def _common(self, name: str) -> Any:
        values = tuple(getattr(layer, name) for layer in self._shown)
        return values[0] if len(set(values)) == 1 else values

    def _shown_options(self) -> dict[str, str] | str:
        if self._pages.is_closed:
            return "closed"
        names = ["batch", "num_kv_heads", "head_dim", "value_dim", "dtype"]
        names += ["capacity"] * (self.capacity is not None)
        names += ["keep_last", "keep_first"] * any(layer.keep_last for layer in self._shown)
        names += ["value_from_key"] * any(layer.value_from_key for layer in self._shown)
        lengths = self.lengths
        more = f" and {len(lengths) - _MOST_LENGTHS} more" if len(lengths) > _MOST_LENGTHS else ""
        types = tuple(layer.dtype.name for layer in self._shown)
        shown = {name: f"{getattr(self, name)}" for name in [*names, "page_size"]}
        return {
            **shown,
            "dtype": types[0] if len(set(types)) == 1 else f"({', '.join(types)})",
            "lengths": f"{lengths[:_MOST_LENGTHS].tolist()}{more}",
        }
