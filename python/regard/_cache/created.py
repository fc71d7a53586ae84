"""New caches, from the arguments of their constructors."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from regard._arguments.numbers import MOST, count, file_path
from regard._cache import arguments, file
from regard._cache.content import Content
from regard._cache.storage.fixed_scales import FixedScales
from regard._cache.storage.geometry import Geometry
from regard._cache.storage.memory_room import MemoryRoom
from regard._cache.storage.pool import Pool
from regard._cache.storage.rows import PageLayout
from regard._cache.storage.state import State
from regard._cache.storage.types import stored_type

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike

    from regard._cache.storage.types import StoredType

Path = str | os.PathLike[str]


def new_content(
    layers: int,
    batch: int,
    num_kv_heads: int,
    head_dim: int,
    value_dim: int | None,
    *,
    capacity: int | None,
    dtype: DTypeLike,
    keep_last: int | None,
    keep_first: int,
    page_size: int | None,
    max_bytes: int | None,
    path: Path | None,
    key_scales: ArrayLike | None,
    value_scales: ArrayLike | None,
) -> Content:
    """Return the content of a new cache, or raise an error that names an argument."""
    entries = count("batch", batch, maximum=2**31 - 1)
    last, first = arguments.kept_tokens(keep_last, keep_first)
    room = None if capacity is None else count("capacity", capacity, maximum=MOST)
    if room is not None and last is not None and room <= first + last:
        raise ValueError(
            f"capacity must be at least {first + last + 1}, keep_first + keep_last + 1, got {room}"
        )
    heads = count("num_kv_heads", num_kv_heads, minimum=1, maximum=MOST)
    dim = count("head_dim", head_dim, minimum=1, maximum=MOST)
    of_values = dim
    if value_dim is not None:
        of_values = count("value_dim", value_dim, minimum=1, maximum=MOST)
    stored = stored_type(dtype)
    stored.check_dim("head_dim", dim)
    stored.check_dim("value_dim", of_values)
    geometry = Geometry(
        layers,
        heads,
        dim,
        of_values,
        stored,
        last,
        first,
        room,
        arguments.size_of_pages(page_size, room, last),
        _fixed_scales(stored, key_scales, value_scales, (layers, heads)),
    )
    # A fixed capacity has one page per entry, so that a lack of memory shows now.
    has_fixed_room = room is not None and page_size is None and last is None
    reserved = entries if has_fixed_room else 0
    limit = None if max_bytes is None else count("max_bytes", max_bytes, minimum=1)
    if path is not None:
        return file.create(file_path(path), geometry, entries, reserved, limit)
    pool = Pool(geometry, MemoryRoom(PageLayout.of(geometry), 0), limit)
    pool.reserve(reserved)
    return Content(pool, State.empty(entries))


def _fixed_scales(
    stored: StoredType,
    key: ArrayLike | None,
    value: ArrayLike | None,
    shape: tuple[int, int],
) -> FixedScales | None:
    if stored.scaled == "heads":
        return FixedScales.of(key, value, shape)
    for name, scales in (("key_scales", key), ("value_scales", value)):
        if scales is not None:
            raise TypeError(
                f"{name} must be left out with dtype {stored.name}: only float8_e4m3fn accepts "
                "scales"
            )
    return None
