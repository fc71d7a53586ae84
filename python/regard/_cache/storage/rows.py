"""The layout of a page of keys and values, and arrays over many pages."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard import _core

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from regard._cache.storage.geometry import Geometry

    Array = NDArray[Any]
    DType = np.dtype[Any]

SCALE_TYPE = np.dtype(np.float32)
_MOST_BYTES = 2**63 - 1
_LINE = 64  # bytes of a cache line, to which arrays are aligned


def aligned(offset: int) -> int:
    """Return the next multiple of a cache line."""
    return -(-offset // _LINE) * _LINE


class PageRegion(NamedTuple):
    """One array of a page, of shape (kv_heads, page_size, dim), or without dim for scales."""

    offset: int  # in bytes, from the page's beginning
    shape: tuple[int, ...]
    dtype: DType


class PageLayout(NamedTuple):
    """The layout of a page: keys, values and, with int8, the scales of both."""

    regions: tuple[PageRegion, ...]
    stride: int  # bytes of a page

    @classmethod
    def of(cls, geometry: Geometry) -> PageLayout:
        """Return the layout of a cache's pages, or raise MemoryError if they are too large."""
        regions, end = [], 0
        for shape, dtype in _forms(geometry):
            size = math.prod(shape) * dtype.itemsize
            if aligned(end + size) > _MOST_BYTES:
                raise MemoryError(
                    f"no memory for {size} bytes, {dtype.name} of shape {shape}: an array has at "
                    f"most {_MOST_BYTES}"
                )
            regions.append(PageRegion(end, shape, dtype))
            end = aligned(end + size)
        return cls(tuple(regions), end)


def _forms(geometry: Geometry) -> Iterator[tuple[tuple[int, ...], DType]]:
    axes = (geometry.kv_heads, geometry.page_size)
    yield (*axes, geometry.head_dim), geometry.dtype
    yield (*axes, geometry.value_dim), geometry.dtype
    if geometry.is_quantized:
        yield from [(axes, SCALE_TYPE)] * 2


class Rows:
    """Keys, values and, with int8, scales in consecutive pages of memory.

    The arrays have the shape (pages, kv_heads, page_size, dim), or without dim for scales.
    """

    __slots__ = ("arrays", "core")

    def __init__(self, layout: PageLayout, memory: Any, offset: int, pages: int) -> None:
        self.arrays = [_view(layout, region, memory, offset, pages) for region in layout.regions]
        self.core = _core.PageRows(*self.arrays, *[None] * (4 - len(self.arrays)))

    def copy_page(self, page: int, to: int, tokens: int) -> None:
        """Copy the first tokens of a page to another page."""
        for array in self.arrays:
            array[to, :, :tokens] = array[page, :, :tokens]

    def copy_pages(self, other: Rows, pages: Array) -> None:
        """Copy these sorted pages from the same places in `other`."""
        for run in np.split(pages, np.flatnonzero(np.diff(pages) != 1) + 1):
            if run.size:
                where = slice(run[0], run[-1] + 1)
                for array, source in zip(self.arrays, other.arrays, strict=True):
                    array[where] = source[where]


def _view(layout: PageLayout, region: PageRegion, memory: Any, offset: int, pages: int) -> Array:
    shape, dtype = region.shape, region.dtype
    if pages == 0:
        return np.empty((0, *shape), dtype)
    sizes = (*shape[1:], dtype.itemsize)
    strides = (layout.stride, *(math.prod(sizes[axis:]) for axis in range(len(shape))))
    return np.ndarray((pages, *shape), dtype, memory, offset + region.offset, strides)
