"""The sizes of caches, their limits and lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._show.shows_options import ShowsOptions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from regard import _core
    from regard._cache.geometry import Geometry, LayerGeometry

    Array = NDArray[Any]

# The maximum number of lengths in a representation, which is one line.
_MOST_LENGTHS = 16


def _one_or_all(values: Iterable[Any]) -> Any:
    """Return a value that all layers share, or the tuple of the values of all layers."""
    each = tuple(values)
    return each[0] if len(set(each)) == 1 else each


def _common(name: str, documentation: str) -> property:
    """Return a property that is this field of `LayerGeometry`."""

    def of_layers(cache: Sizes) -> Any:
        return _one_or_all(getattr(layer, name) for layer in cache._shown)

    return property(of_layers, doc=documentation)


class Sizes(ShowsOptions):
    """A cache of one or all layers. A value that differs between layers is a tuple."""

    _pages: _core.PageTable
    _geometry: Geometry
    _shown: tuple[LayerGeometry, ...]  # the layers whose sizes are shown

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens seen by each entry, which is the position of its next token (a copy)."""
        return self._pages.lengths

    @property
    def batch(self) -> int:
        """Number of batch entries."""
        return len(self._pages.lengths)

    num_kv_heads = _common("kv_heads", "Number of key and value heads.")
    head_dim = _common("head_dim", "Size of the keys.")
    value_dim = _common("value_dim", "Size of the values.")
    keep_last = _common("keep_last", "Number of last tokens that a query sees, or None for all.")
    keep_first = _common(
        "keep_first", "Number of first tokens that a query also sees, with `keep_last`."
    )
    page_size = _common("page_size", "Number of tokens in a page.")
    value_from_key = _common(
        "value_from_key", "Whether values are the first numbers of the keys, and are not stored."
    )

    @property
    def dtype(self) -> Any:
        """Storage type of keys and values: a name if NumPy has no such type."""
        return _one_or_all(layer.dtype.dtype for layer in self._shown)

    @property
    def capacity(self) -> int | None:
        """Maximum number of tokens per entry, or None."""
        return self._geometry.capacity

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

    def _scales(self, which: int) -> Any:
        found = [layer.scale_arrays() for layer in self._shown]
        return self._joined([each[which] if each else None for each in found])

    def _joined(self, arrays: list[Array | None]) -> Any:
        """Return the arrays of all layers as one array if their shapes are equal."""
        if all(each is None for each in arrays):
            return None
        shapes = {None if each is None else each.shape for each in arrays}
        return np.array(arrays) if len(shapes) == 1 else tuple(arrays)

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
