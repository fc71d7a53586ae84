"""The layout of a page of keys and values, and arrays over many pages."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard import _core
from regard._cache.storage.types import FLOAT8_UNITS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from regard._cache.storage.fixed_scales import FixedScales
    from regard._cache.storage.geometry import Geometry

    Array = NDArray[Any]
    DType = np.dtype[Any]

_MOST_BYTES = 2**63 - 1
_LINE = 64  # bytes of a cache line, to which arrays are aligned


def aligned(offset: int) -> int:
    """Return the next multiple of a cache line."""
    return -(-offset // _LINE) * _LINE


class PageRegion(NamedTuple):
    """One array of a layer, of shape (kv_heads, page_size, dim), or without dim for scales."""

    offset: int  # in bytes, from the layer's beginning
    shape: tuple[int, ...]
    dtype: DType


class PageLayout(NamedTuple):
    """The layout of a page.

    It has its tokens' keys and values, and scales of both if the type has them, one layer after
    another.
    """

    layers: int
    regions: tuple[PageRegion, ...]  # of each layer: keys, values, scales of keys, scales of values
    layer_stride: int  # bytes of a layer
    fixed_scales: FixedScales | None

    @property
    def stride(self) -> int:
        """Bytes of a page."""
        return self.layers * self.layer_stride

    @classmethod
    def of(cls, geometry: Geometry) -> PageLayout:
        """Return the layout of a cache's pages, or raise MemoryError if they are too large."""
        regions, end = [], 0
        for shape, dtype in _forms(geometry):
            size = math.prod(shape) * dtype.itemsize
            if geometry.layers * aligned(end + size) > _MOST_BYTES:
                raise MemoryError(
                    f"no memory for {size} bytes, {dtype.name} of shape {shape}: an array has at "
                    f"most {_MOST_BYTES}"
                )
            regions.append(PageRegion(end, shape, dtype))
            end = aligned(end + size)
        return cls(geometry.layers, tuple(regions), end, geometry.scales)


def _forms(geometry: Geometry) -> Iterator[tuple[tuple[int, ...], DType]]:
    axes = (geometry.kv_heads, geometry.page_size)
    forms = (geometry.dtype.forms(*axes, dim) for dim in (geometry.head_dim, geometry.value_dim))
    for alike in zip(*forms, strict=True):
        yield from alike


class LayerRows(NamedTuple):
    """Keys, values and their scales of a layer, if they have any.

    The arrays have the shape (pages, heads, page_size, items), or without items for scales of rows.
    """

    arrays: list[Array]
    core: _core.PageRows

    @classmethod
    def of(cls, arrays: list[Array], *, are_keys_upright: bool = False) -> LayerRows:
        """Return the rows of a layer, whose quantized keys are rotated unless they are upright."""
        key, value, *scales = arrays
        of_key, of_value = scales or (None, None)
        core = _core.PageRows(key, value, of_key, of_value, are_keys_upright)
        return cls(arrays, core)


class Rows:
    """Keys, values and scales in consecutive pages of memory.

    The arrays have the shape (pages, layers, heads, page_size, items), or without items for scales
    of rows.
    """

    __slots__ = ("arrays", "layers")

    def __init__(self, layout: PageLayout, memory: Any, offset: int, pages: int) -> None:
        self.arrays = [_view(layout, region, memory, offset, pages) for region in layout.regions]
        self.layers = [
            LayerRows.of([*(array[:, layer] for array in self.arrays), *fixed])
            for layer, fixed in enumerate(_fixed_scales(layout, self.arrays[0].shape))
        ]

    def copy_page(self, page: int, to: int, tokens: int) -> None:
        """Copy the first tokens of a page to another page."""
        for array in self.arrays:
            array[to, :, :, :tokens] = array[page, :, :, :tokens]

    def copy_pages(self, other: Rows, pages: Array) -> None:
        """Copy these sorted pages from the same places in `other`."""
        for run in np.split(pages, np.flatnonzero(np.diff(pages) != 1) + 1):
            if run.size:
                where = slice(run[0], run[-1] + 1)
                for array, source in zip(self.arrays, other.arrays, strict=True):
                    array[where] = source[where]


def _fixed_scales(layout: PageLayout, shape: tuple[int, ...]) -> Iterator[list[Array]]:
    """Yield the fixed scales of each layer as scales of rows, which share their head's number."""
    pages, layers, kv_heads, tokens, _ = shape
    if layout.fixed_scales is None:
        yield from [[] for _ in range(layers)]
        return
    for of_keys, of_values in zip(*layout.fixed_scales.arrays(layers), strict=True):
        each = of_keys[None, :, None], of_values[None, :, None]
        wide = (FLOAT8_UNITS * scales for scales in each)
        yield [np.broadcast_to(scales, (pages, kv_heads, tokens)) for scales in wide]


def _view(layout: PageLayout, region: PageRegion, memory: Any, offset: int, pages: int) -> Array:
    form, dtype = region.shape, region.dtype
    shape = (pages, layout.layers, *form)
    if pages == 0:
        return np.empty(shape, dtype)
    sizes = (*form[1:], dtype.itemsize)
    inner = (math.prod(sizes[axis:]) for axis in range(len(form)))
    strides = (layout.stride, layout.layer_stride, *inner)
    return np.ndarray(shape, dtype, memory, offset + region.offset, strides)
