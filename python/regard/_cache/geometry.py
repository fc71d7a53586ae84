"""The properties of a cache that never change, and the checks of a constructor's arguments."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from regard import _core
from regard._arguments.arrays import as_array
from regard._arguments.numbers import MOST, count, flag
from regard._cache.types import FLOAT8_UNITS, SCALE_TYPE, stored_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard._cache.types import StoredType

    Array = NDArray[Any]
    Scales = tuple[float, ...]
    Means = tuple[Scales, ...]

# Default number of tokens in a page: a multiple of the 96 keys in a block of a kernel, so that no
# block crosses a page boundary, which would need a copy.
_PAGE_TOKENS = 192
_MOST_LAYERS = 2**16 - 1
_MOST_BYTES = 2**63 - 1
_LEAST_SCALE, _MOST_SCALE = 2.0**-100, 2.0**100  # well within the range of float32


class LayerGeometry(NamedTuple):
    """Sizes, type and limits of a layer."""

    kv_heads: int
    head_dim: int
    value_dim: int
    dtype: StoredType
    keep_last: int | None
    keep_first: int
    page_size: int
    key_scales: Scales | None  # of float8, one for each head
    value_scales: Scales | None
    key_means: Means | None  # subtracted from keys before they are stored
    value_from_key: bool
    """Whether values are the first numbers of the keys, and are not stored."""

    @classmethod
    def of(
        cls,
        capacity: int | None,
        num_kv_heads: Any,
        head_dim: Any,
        value_dim: Any,
        dtype: Any,
        keep_last: Any,
        keep_first: Any,
        page_size: Any,
        value_from_key: Any,
    ) -> Self:
        """Check the arguments of one layer, except its scales and means."""
        heads, dim = _size("num_kv_heads", num_kv_heads), _size("head_dim", head_dim)
        values = dim if value_dim is None else _size("value_dim", value_dim)
        stored = stored_type(dtype)
        stored.check_dim("head_dim", dim)
        stored.check_dim("value_dim", values)
        last = None if keep_last is None else _size("keep_last", keep_last)
        first = count("keep_first", keep_first, maximum=MOST) if last else 0
        if capacity is not None and last is not None and capacity <= first + last:
            raise ValueError(
                f"capacity must be at least {first + last + 1}, keep_first + keep_last + 1, got "
                f"{capacity}"
            )
        tokens = _page_size(page_size, capacity, last)
        is_in_key = flag("value_from_key", value_from_key)
        if is_in_key and values > dim:
            raise ValueError(
                f"value_dim must be at most head_dim, {dim}, with value_from_key=True, got {values}"
            )
        none = None, None, None
        return cls(heads, dim, values, stored, last, first, tokens, *none, value_from_key=is_in_key)

    @property
    def pool(self) -> tuple[int, int | None, int]:
        """The properties that layers share if they have their tokens in the same pages."""
        return self.page_size, self.keep_last, self.keep_first

    @property
    def first_pages(self) -> int:
        """Number of pages of the first tokens, which are never evicted."""
        return -(-self.keep_first // self.page_size)

    @property
    def forms(self) -> list[tuple[np.dtype[Any], tuple[int, ...]]]:
        """The arrays of a page, (dtype, shape): keys, values, and the scales of both.

        If values are in the keys, they have no arrays.
        """
        axes = self.kv_heads, self.page_size
        dims = (self.head_dim,) if self.value_from_key else (self.head_dim, self.value_dim)
        of_both = (self.dtype.forms(*axes, dim) for dim in dims)
        return [(dtype, shape) for alike in zip(*of_both, strict=True) for shape, dtype in alike]

    def scale_arrays(self) -> list[Array]:
        """Return the scales that never change, of keys and of values, or none."""
        scales = self.key_scales, self.value_scales
        return [np.array(each, SCALE_TYPE) for each in scales if each is not None]

    def mean_array(self) -> Array | None:
        """Return what is subtracted from keys, (kv_heads, head_dim), or None."""
        return None if self.key_means is None else np.array(self.key_means, SCALE_TYPE)


class Geometry(NamedTuple):
    """Sizes, types and limits of a cache."""

    layers: tuple[LayerGeometry, ...]
    capacity: int | None

    @classmethod
    def of(
        cls,
        layers: int | None,
        num_kv_heads: Any,
        head_dim: Any,
        value_dim: Any,
        *,
        capacity: Any,
        key_scales: Any,
        value_scales: Any,
        key_means: Any,
        **options: Any,
    ) -> Self:
        """Check the arguments of a constructor; `layers` is None for a cache of one layer."""
        number = 1 if layers is None else count("layers", layers, 1, _MOST_LAYERS)

        def each(name: str, value: Any) -> list[Any]:
            if layers is None or not isinstance(value, list | tuple | np.ndarray):
                return [value] * number
            if len(value) != number:
                raise ValueError(
                    f"{name} must be one value, or one for each of the {number} layers, got "
                    f"{len(value)}"
                )
            return list(value)

        limit = None if capacity is None else count("capacity", capacity, maximum=MOST)
        sizes = {"num_kv_heads": num_kv_heads, "head_dim": head_dim, "value_dim": value_dim}
        columns = {name: each(name, value) for name, value in (sizes | options).items()}
        first = max(count("keep_first", kept, maximum=MOST) for kept in columns["keep_first"])
        if first and not any(columns["keep_last"]):
            raise ValueError(f"keep_first must be 0 without keep_last, got {first}")
        rows = zip(*columns.values(), strict=True)
        found = [LayerGeometry.of(limit, **dict(zip(columns, row, strict=True))) for row in rows]
        types, heads = [layer.dtype for layer in found], [layer.kv_heads for layer in found]
        if key_means is not None and not any(stored.is_quantized for stored in types):
            raise TypeError(
                f"key_means must be left out with dtype {types[0].name}: only types of fewer than "
                "16 bits accept means"
            )
        of_keys, of_values = (
            _scales(name, given, types, heads, is_single=layers is None)
            for name, given in (("key_scales", key_scales), ("value_scales", value_scales))
        )
        means = each("key_means", key_means)
        for place, layer in enumerate(found):
            own = of_keys[place], of_values[place]
            if layer.value_from_key:
                if value_scales is not None and own[0] != own[1]:
                    raise ValueError(
                        "value_scales must be left out, or equal key_scales, with "
                        f"value_from_key=True, got {own[1]}"
                    )
                if means[place] is not None:
                    raise ValueError("key_means must be left out with value_from_key=True")
                own = own[0], own[0]
            mean = _means(means[place], layer) if layer.dtype.is_quantized else None
            found[place] = layer._replace(key_scales=own[0], value_scales=own[1], key_means=mean)
        geometry = cls(tuple(found), limit)
        geometry._check_bytes()
        return geometry

    @property
    def pools(self) -> list[tuple[int, int | None, int]]:
        """The pools of pages, one for the layers that keep the same tokens."""
        return list(dict.fromkeys(layer.pool for layer in self.layers))

    def new_pages(
        self, batch: int, max_bytes: int | None, *, is_reserved: bool = False
    ) -> _core.PageTable:
        """Return empty entries. With `is_reserved`, each has a page of its capacity at once."""
        pools = self.pools
        layers = []
        for layer in self.layers:
            scales = [FLOAT8_UNITS * each for each in layer.scale_arrays()]
            if layer.value_from_key:  # the same array, not an equal one
                scales = scales[:1] * 2
            in_keys = layer.dtype.items(layer.value_dim) if layer.value_from_key else None
            fixed = scales or None, layer.mean_array()
            layers.append((pools.index(layer.pool), layer.forms, *fixed, in_keys))
        return _core.PageTable(
            batch,
            [
                (tokens, last or -1, first, batch if is_reserved and last is None else 0)
                for tokens, last, first in pools
            ],
            layers,
            -1 if self.capacity is None else self.capacity,
            -1 if max_bytes is None else max_bytes,
        )

    def _check_bytes(self) -> None:
        """Raise MemoryError if the pages of a pool are too large."""
        ends = dict.fromkeys(self.pools, 0)
        for layer in self.layers:
            for dtype, shape in layer.forms:
                size = math.prod(shape) * dtype.itemsize
                ends[layer.pool] += size + 64
                if ends[layer.pool] > _MOST_BYTES:
                    raise MemoryError(
                        f"no memory for {size} bytes, {dtype.name} of shape {shape}: an array has "
                        f"at most {_MOST_BYTES}"
                    )


def _size(name: str, value: Any) -> int:
    return count(name, value, minimum=1, maximum=MOST)


def _page_size(page_size: Any, capacity: int | None, keep_last: int | None) -> int:
    """Return the number of tokens in a page.

    By default, a fixed capacity is one page per entry, and a page is no longer than a window:
    otherwise, more hidden than visible tokens would be kept.
    """
    if page_size is not None:
        tokens = count("page_size", page_size, minimum=16, maximum=MOST)
        if tokens % 16:
            raise ValueError(f"page_size must be a multiple of 16, got {tokens}")
        return tokens
    wanted = capacity if keep_last is None else min(keep_last, _PAGE_TOKENS)
    return _PAGE_TOKENS if wanted is None else max(16, -(-wanted // 16) * 16)


def _scales(
    name: str, given: Any, types: list[StoredType], heads: list[int], *, is_single: bool
) -> list[Scales | None]:
    """Return the scales of each layer, 1 by default, or None if its type accepts none."""
    have_scales = [stored.scaled == "heads" for stored in types]
    if not any(have_scales):
        if given is not None:
            raise TypeError(
                f"{name} must be left out with dtype {types[0].name}: only float8_e4m3fn accepts "
                "scales"
            )
        return [None] * len(types)
    parts = given if isinstance(given, list | tuple) and len(given) == len(heads) else None
    if len(set(heads)) == 1 and (parts is None or all(part is not None for part in parts)):
        shape = (len(heads), heads[0])
        needed = f"have shape ({heads[0]},)" if is_single else f"broadcast to {shape}"
        needed = needed.replace("to (", "to (layers, num_kv_heads), (")
        rows = _as_scales(name, 1.0 if given is None else given, shape, needed)
    else:
        rows = []
        for layer, number in enumerate(heads):
            own = given if parts is None else parts[layer]
            needed = f"be a list of an array for each layer, of shape ({number},) for layer {layer}"
            rows.append(_as_scales(name, 1.0 if own is None else own, (number,), needed))
    return [
        tuple(row.tolist()) if has_scales else None
        for row, has_scales in zip(rows, have_scales, strict=True)
    ]


def _as_scales(name: str, given: Any, shape: tuple[int, ...], needed: str) -> Any:
    scales = _as_floats(name, given)
    try:
        scales = np.broadcast_to(scales, shape)
    except ValueError:
        raise ValueError(
            f"{name} must be a number, or {needed}, got shape {scales.shape}"
        ) from None
    wrong = scales[~((scales >= _LEAST_SCALE) & (scales <= _MOST_SCALE))]
    if wrong.size:
        raise ValueError(f"{name} must be from 2**-100 to 2**100, got {wrong[0]}")
    return scales


def _as_floats(name: str, given: Any) -> Any:
    floats = as_array(name, given)
    if floats.dtype.kind not in "fiu" and floats.dtype.name != "bfloat16":
        raise TypeError(f"{name} must be an array of floats, got {floats.dtype}")
    with np.errstate(over="ignore"):
        return floats.astype(SCALE_TYPE)


def _means(given: Any, layer: LayerGeometry) -> Means | None:
    if given is None:
        return None
    means, shape = _as_floats("key_means", given), (layer.kv_heads, layer.head_dim)
    if means.shape != shape:
        raise ValueError(f"key_means must have shape {shape}, got shape {means.shape}")
    wrong = means[~np.isfinite(means)]
    if wrong.size:
        raise ValueError(f"key_means must be finite in float32, got {wrong[0]}")
    return tuple(map(tuple, means.tolist()))
