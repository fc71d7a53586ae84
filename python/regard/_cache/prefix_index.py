"""Find a text that begins with the tokens of a new text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, SupportsIndex, TypeVar

import numpy as np

from regard._arguments.numbers import integers
from regard._cache import arguments
from regard._cache.cache import KVCache
from regard._cache.caches import KVCaches
from regard._runtime.public import public
from regard._show.shows_options import ShowsOptions

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Cache = TypeVar("Cache", KVCache, KVCaches)


@public
class PrefixIndex(ShowsOptions, Generic[Cache]):
    """Texts whose keys and values new texts with the same beginning can use.

    A server adds each text that it has computed. When a text with the same first tokens arrives,
    `find` returns a cache that has these tokens, and only the rest is computed::

        text = index.find(tokens)
        model(tokens[text.lengths[0]:], cache=text)

    The index holds its own forks, which share pages with the cache, so nothing that is done to the
    cache later changes them. Only one thread at a time may use an index.

    Parameters
    ----------
    cache : KVCache or KVCaches
        The cache in whose pages texts are stored.

    Raises
    ------
    TypeError
        If `cache` is not a cache.
    ValueError
        If the cache is closed, or in the middle of a step.

    See Also
    --------
    KVCache.fork : shares the pages of a known beginning.

    Notes
    -----
    `find` compares the tokens with those of each text, which takes a few microseconds per text of
    thousands of tokens. Any number of tokens may be shared, not only whole pages. An entry of a
    cache with `keep_last` has evicted tokens, so that usually only all of its tokens can be used.

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> cache = regard.KVCache(0, 1, 4)
    >>> index = regard.PrefixIndex(cache)
    >>> tokens = [3, 1, 4, 1, 5]
    >>> text = index.find(tokens)
    >>> text.append(*np.ones((2, 1, 1, 5 - len(text), 4)))
    >>> index.add(tokens, text)
    >>> index.find([3, 1, 4, 2]).lengths  # the first three are there
    array([3])
    """

    def __init__(self, cache: Cache) -> None:
        if not isinstance(cache, KVCache | KVCaches):
            raise TypeError(f"cache must be a KVCache or KVCaches, got {type(cache).__name__}")
        self._nothing: Cache = cache.fork([])
        self._texts: dict[bytes, Cache] = {}  # by token, the text used longest ago first

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self._texts)

    def _shown_options(self) -> dict[str, str]:
        tokens = sum(len(text) for text in self._texts) // 8
        return {"texts": f"{len(self)}", "tokens": f"{tokens}"}

    def add(self, tokens: ArrayLike, cache: Cache, entry: SupportsIndex = 0) -> None:
        """Add a text, which the cache may continue or drop.

        Parameters
        ----------
        tokens : array_like of int, shape (length,)
            The tokens whose keys and values the entry has.
        cache : KVCache or KVCaches
            The cache of the text. Pages are copied unless it shares the pages of the index.
        entry : int, default 0
            Number of the text's entry.

        Raises
        ------
        TypeError
            If `tokens` are not integers, or `cache` is not a cache.
        ValueError
            If there are not as many tokens as the entry has, or no such entry; if `cache` has
            other sizes, is closed, or is in the middle of a step.
        MemoryError
            If memory does not suffice for a copy.
        """
        ids = _ids(tokens)
        if not isinstance(cache, type(self._nothing)):
            wanted, got = type(self._nothing).__name__, type(cache).__name__
            raise TypeError(f"cache must be a {wanted}, got {got}")
        number = arguments.entry_number("entry", entry, cache.batch)
        length = int(cache.lengths[number])
        if len(ids) != length:
            raise ValueError(f"tokens must be the {length} tokens of the entry, got {len(ids)}")
        text = self._nothing.fork()
        text.adopt(cache.fork([number]))
        self._texts.pop(ids.tobytes(), None)
        self._texts[ids.tobytes()] = text

    def find(self, tokens: ArrayLike) -> Cache:
        """Return a cache with the first tokens of a text, as many as any text of the index has.

        Parameters
        ----------
        tokens : array_like of int, shape (length,)
            All tokens of the new text.

        Returns
        -------
        KVCache or KVCaches
            A cache of one entry, which may be empty. It never has the last token, whose output the
            model must compute. It shares the pages of the index: append the remaining tokens to it,
            and `adopt` it in a batch.

        Raises
        ------
        TypeError
            If `tokens` are not integers.
        ValueError
            If `tokens` do not have one axis.
        """
        ids = _ids(tokens)[:-1]
        shared = {text: _shared(text, ids) for text in self._texts}
        for text in sorted(self._texts, key=shared.__getitem__, reverse=True):
            found = self._texts[text].fork()
            try:
                found.truncate(shared[text])
            except ValueError:  # a window would contain evicted tokens
                continue
            if shared[text]:
                self._texts[text] = self._texts.pop(text)
            return found
        return self._nothing.fork([-1])

    def evict(self) -> None:
        """Remove the text that was added or found longest ago.

        Its pages are used again if no other text has them. A server calls this when an append
        raises MemoryError because of `max_bytes`.

        Raises
        ------
        IndexError
            If the index is empty.
        """
        if not self._texts:
            raise IndexError("the index is empty")
        self._texts.pop(next(iter(self._texts))).close()


def _ids(tokens: ArrayLike) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    ids = integers("tokens", tokens, "a sequence of integers")
    if ids.ndim != 1:
        raise ValueError(f"tokens must have one axis, got shape {ids.shape}")
    return ids.astype(np.int64)


def _shared(text: bytes, ids: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> int:
    """Return how many first tokens two texts share."""
    own = np.frombuffer(text, np.int64)
    length = min(len(own), len(ids))
    differ = own[:length] != ids[:length]
    return int(differ.argmax()) if differ.any() else length
