"""The cache methods for memory and files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from regard._arguments.numbers import choice, file_path
from regard._cache import file
from regard._cache.opened import opened_content

if TYPE_CHECKING:
    import os
    from types import TracebackType

    from regard._cache.content import Content


class Opening:
    """A cache that owns its memory or file."""

    _content: Content
    _layers: int | None = None  # of the files that the class opens, or None for any number

    @classmethod
    def _of(cls, content: Content) -> Self:
        cache = cls.__new__(cls)
        cache._set(content)
        return cache

    def _set(self, content: Content) -> None:
        self._content = content

    @classmethod
    def open(cls, path: str | os.PathLike[str], mode: Literal["r", "r+"] = "r+") -> Self:
        """Open the file of a cache that was created with `path`.

        Parameters
        ----------
        path : path-like
            File of the cache.
        mode : {"r+", "r"}
            Whether to read and write the file, or only to read it.

        Returns
        -------
        KVCache or KVCaches
            A cache with the content of the file.

        Raises
        ------
        ValueError
            If the file is not a cache file, has another version, is truncated or is damaged (the
            message states which), or has several layers and this is `KVCache`; if `mode` is
            unknown.
        BlockingIOError
            If the file is open elsewhere: it may have one writer or many readers.
        OSError
            If the file cannot be opened.
        """
        choice("mode", mode, ("r", "r+"))
        name = file_path(path)
        return cls._of(file.opened(name, is_writable=mode == "r+", layers=cls._layers))

    @property
    def nbytes(self) -> int:
        """Number of bytes of the used pages, scales included, and of the page table.

        A page counts from its first use on, even after it has been given back and waits for reuse.
        All caches that share pages count them in full.
        """
        return opened_content(self, "nbytes").nbytes

    def flush(self) -> None:
        """Wait until the content of the file is on the disk."""
        opened_content(self, "flush").flush()

    def close(self) -> None:
        """Unlock the file, if there is one, and free the memory. A closed cache cannot be used.

        The content of forks of a cache in a file is copied to memory.

        Raises
        ------
        MemoryError, OSError
            If there is not enough memory for the forks of a cache in a file, or another program has
            truncated the file. The cache then stays open.
        """
        self._content.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        """Refuse to copy, because a copy would silently share keys and values."""
        raise TypeError(f"a {type(self).__name__} is copied with fork(), and kept with path=")
