"""The caches of all layers of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from regard._arguments.keywords import refuses_unknown
from regard._cache import arguments
from regard._cache.entries import Entries
from regard._cache.layer import Layer
from regard._runtime.public import public

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike

    from regard import _core
    from regard._cache.geometry import Geometry


@public
class LayerCache(Layer):
    """One layer of a `KVCaches`, to which a layer of a model appends and attends.

    ``caches[layer]`` creates it. It has the `KVCache` methods that append and attend. The methods
    of `KVCaches` add, remove and reorder entries in all layers at once.
    """

    def __init__(self) -> None:
        raise TypeError("a LayerCache is created by indexing a KVCaches: caches[layer]")

    @classmethod
    def _of(cls, pages: _core.PageTable, geometry: Geometry, number: int) -> LayerCache:
        cache = cls.__new__(cls)
        cache._set_layer(pages, geometry, number)
        return cache

    def truncate(self, length: ArrayLike) -> None:
        """Remove the last tokens of all layers, which have the same lengths.

        In the middle of a step, only the new tokens can be removed, which undoes the step.

        Parameters
        ----------
        length : int or array_like of int, shape (batch,)
            As for `KVCaches.truncate`.

        Raises
        ------
        TypeError, ValueError
            As for `KVCaches.truncate`.
        """
        before = self._pages.unfinished()
        shorter = arguments.shorter_lengths(length, self.lengths)
        if before is not None and np.array_equal(shorter, before):
            self._pages.rollback()
        else:
            self._pages.truncate(shorter)

    def _shown_options(self) -> dict[str, str] | str:
        shown = super()._shown_options()
        return shown if isinstance(shown, str) else {"layer": f"{self._number}", **shown}

    def __reduce__(self) -> Any:
        """Refuse to copy one of several layers."""
        raise TypeError("a LayerCache is copied with the fork() of its KVCaches")


@public
class KVCaches(Entries, Sequence[LayerCache]):
    """The keys and values of all layers of a model: a sequence of caches that change together.

    A layer of the model appends its new keys and values to ``caches[layer]``, and attends to it, as
    to a `KVCache`. A step appends the same numbers of tokens in every layer, in any order of the
    layers::

        for layer, block in enumerate(model):
            x = block(x, cache=caches[layer])

    The tokens become part of the caches once the last layer has appended them: `lengths` and forks
    then include all of them, and none before. Until then, only the layers that have
    appended tokens see them. If a step ends early, by an error or an interruption, `rollback`
    removes its tokens.

    Entries are changed for all layers in one call: `truncate`, `reorder`, `fork`, `drop`, `adopt`
    and `keep`.

    Parameters
    ----------
    layers : int
        Number of layers.
    num_kv_heads, head_dim, value_dim, dtype, keep_last, keep_first, value_from_key
        As for `KVCache`, or a list with one for each layer. `keep_first` applies to the layers with
        `keep_last`.
    batch, capacity
        As for `KVCache`.
    page_size : int, optional
        Number of tokens in a page, which contains the keys and values of all layers with the same
        `keep_last` and `keep_first`. The default is the same as for `KVCache`. The last page of a
        text is half empty on average, so a smaller size suits servers of many short texts.
    max_bytes : int, optional
        Budget of the pages of all layers, as for `KVCache`.
    key_scales, value_scales : float or array_like, shape (layers, num_kv_heads), optional
        As for `KVCache`. Shapes that broadcast, such as ``(layers, 1)``, are accepted, and a list
        of an array for each layer if `num_kv_heads` differs.
    key_means : array_like, shape (layers, num_kv_heads, head_dim), optional
        As for `KVCache`, or a list with an array or None for each layer. Layers of 16 or more bits
        ignore theirs.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `KVCache`.

    See Also
    --------
    KVCache : the cache of one layer; its notes on types and interruptions apply here too.

    Notes
    -----
    Layers that keep the same tokens share a table of pages, and each page holds its tokens of every
    such layer. A change of entries is one change for all layers. It is atomic: after an error or a
    signal, it is complete or has not happened.

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> rng = np.random.default_rng(0)
    >>> caches = regard.KVCaches(layers=3, batch=1, num_kv_heads=2, head_dim=64)
    >>> for new in (5, 1):  # a prompt, then a token
    ...     for cache in caches:
    ...         key, value = rng.standard_normal((2, 1, 2, new, 64), dtype=np.float32)
    ...         cache.append(key, value)
    ...         output = cache.attend(rng.standard_normal((1, 8, new, 64), dtype=np.float32))
    >>> caches.lengths, len(caches)
    (array([6]), 3)

    A model whose layers alternate between a window and all tokens, the latter in fewer bits:

    >>> mixed = regard.KVCaches(
    ...     4, 1, 2, 64, keep_last=[512, None] * 2, dtype=["float16", "int8"] * 2
    ... )
    >>> mixed[0].keep_last, mixed[1].dtype
    (512, dtype('int8'))

    A step that ends early:

    >>> caches[0].append(*np.ones((2, 1, 2, 1, 64)))
    >>> caches.lengths, caches[0].lengths, caches[1].lengths
    (array([6]), array([7]), array([6]))
    >>> caches.rollback()
    >>> caches[0].lengths
    array([6])
    """

    @refuses_unknown
    def __init__(
        self,
        layers: int,
        batch: int,
        num_kv_heads: int | Sequence[int],
        head_dim: int | Sequence[int],
        value_dim: int | Sequence[int | None] | None = None,
        *,
        capacity: int | None = None,
        dtype: DTypeLike | Sequence[DTypeLike] = np.float32,
        keep_last: int | Sequence[int | None] | None = None,
        keep_first: int | Sequence[int] = 0,
        page_size: int | None = None,
        max_bytes: int | None = None,
        key_scales: ArrayLike | None = None,
        value_scales: ArrayLike | None = None,
        key_means: ArrayLike | Sequence[ArrayLike | None] | None = None,
        value_from_key: bool | Sequence[bool] = False,
    ) -> None:
        self._create(
            layers,
            batch,
            num_kv_heads,
            head_dim,
            value_dim,
            max_bytes=max_bytes,
            capacity=capacity,
            dtype=dtype,
            keep_last=keep_last,
            keep_first=keep_first,
            page_size=page_size,
            key_scales=key_scales,
            value_scales=value_scales,
            key_means=key_means,
            value_from_key=value_from_key,
        )

    def _set(self, pages: _core.PageTable, geometry: Geometry) -> None:
        super()._set(pages, geometry)
        layers = range(len(geometry.layers))
        self._caches = tuple(LayerCache._of(pages, geometry, layer) for layer in layers)

    def __len__(self) -> int:
        """Return the number of layers."""
        return len(self._caches)

    def __iter__(self) -> Iterator[LayerCache]:
        return iter(self._caches)

    @overload
    def __getitem__(self, layer: int) -> LayerCache: ...
    @overload
    def __getitem__(self, layer: slice) -> Sequence[LayerCache]: ...
    def __getitem__(self, layer: int | slice) -> LayerCache | Sequence[LayerCache]:
        """Return the cache of a layer, or a tuple of the caches of several layers."""
        try:
            return self._caches[layer]
        except IndexError:
            count = len(self._caches)
            raise IndexError(f"there are {count} layers, got layer {layer}") from None

    def _shown_options(self) -> dict[str, str] | str:
        shown = super()._shown_options()
        return shown if isinstance(shown, str) else {"layers": f"{len(self)}", **shown}

    def rollback(self) -> None:
        """Remove the tokens of a step that some layers have finished and others have not.

        If there is no such step, nothing changes.

        Raises
        ------
        ValueError
            If the cache is closed.
        """
        self._pages.rollback()
