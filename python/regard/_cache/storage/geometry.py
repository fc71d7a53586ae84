"""The properties of a cache that never change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard._cache.storage.fixed_scales import FixedScales
    from regard._cache.storage.types import StoredType

    Array = NDArray[Any]

# Default number of tokens in a page: a multiple of the 96 keys in a block of a kernel, so that no
# block crosses a page boundary, which would need a copy.
_PAGE_TOKENS = 192
MOST_LAYERS = 2**16 - 1
MOST_PAGES = 2**31 - 1  # page tables have 32-bit entries


class Geometry(NamedTuple):
    """Sizes, type and limits of a cache, the same for all layers and batch entries."""

    layers: int
    kv_heads: int
    head_dim: int
    value_dim: int
    dtype: StoredType
    keep_last: int | None
    keep_first: int
    capacity: int | None
    page_size: int
    scales: FixedScales | None = None

    @property
    def is_quantized(self) -> bool:
        """Whether numbers are stored with scales, and keys are rotated."""
        return self.dtype.is_quantized

    @property
    def first_pages(self) -> int:
        """Number of pages of the first tokens, which are never evicted."""
        return -(-self.keep_first // self.page_size)

    def most_at_once(self, longest: int) -> int | None:
        """Return the maximum number of tokens to append to an entry of this length, or None."""
        if self.capacity is None:
            return None
        if self.keep_last is None:
            return self.capacity - longest
        return max(self.capacity - longest, self.capacity - self.keep_first - self.keep_last)

    def check_append(self, counts: Array, after: Array) -> None:
        """Raise ValueError if `counts` new tokens exceed the capacity of an entry."""
        if self.capacity is None:
            return
        is_over = after > self.capacity
        if self.keep_last is not None:
            most = self.capacity - self.keep_first - self.keep_last
            is_over &= counts > most
        if not is_over.any():
            return
        entry = int(np.argmax(np.where(is_over, after, 0)))
        new = int(counts[entry])
        if self.keep_last is None:
            raise ValueError(
                f"the cache has capacity {self.capacity}, and appending {new} would make it "
                f"{after[entry]} tokens long"
            )
        raise ValueError(
            f"key must have at most {most} new tokens at once, got {new}: they are stored with "
            f"keep_first={self.keep_first} and keep_last={self.keep_last} within capacity "
            f"{self.capacity}"
        )


def default_page_size(capacity: int | None, keep_last: int | None) -> int:
    """Return the default number of tokens in a page.

    A fixed capacity is one page per entry. A page is no longer than a window. Otherwise, more
    hidden than visible tokens would be kept.
    """
    if keep_last is not None:
        return min(_PAGE_TOKENS, _next_multiple(keep_last))
    return _PAGE_TOKENS if capacity is None else _next_multiple(capacity)


def _next_multiple(tokens: int) -> int:
    return max(16, -(-tokens // 16) * 16)
