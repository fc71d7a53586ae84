"""Caches in safetensors files.

The metadata describe the cache. The tensor ``lengths`` has the length of each entry and, for each
pool of pages (`Geometry.pools`), ``table.N`` the pages of each entry, ``evicted.N`` the number of
evicted pages of each, and ``pages.N`` the pages as bytes, as they are in memory.
"""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from regard._arguments.numbers import file_path, flag
from regard._cache import arguments
from regard._cache.geometry import Geometry
from regard._cache.sizes import Sizes
from regard._runtime.public import needed
from regard._runtime.saving import write_tensors

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from regard import _core

    Array = NDArray[Any]

_FORMAT, _VERSION = "regard.KVCache", 1
_EARLIER = b"regardKV"  # the beginning of files that were mapped and changed in place
_OPTIONS = (
    *("num_kv_heads", "head_dim", "value_dim", "dtype", "keep_last", "keep_first"),
    *("page_size", "key_scales", "value_scales", "key_means", "value_from_key"),
)


class SavedCache(Sizes):
    """The cache methods that save and load."""

    _layers: int | None = None  # of the files that the class loads, or None for any number

    @classmethod
    def _of_pages(cls, pages: _core.PageTable, geometry: Geometry) -> Self:
        cache = cls.__new__(cls)
        cache._set(pages, geometry)
        return cache

    def _set(self, pages: _core.PageTable, geometry: Geometry) -> None:
        self._pages, self._geometry = pages, geometry

    def save(self, path: str | os.PathLike[str], entries: ArrayLike | None = None) -> None:
        """Write the cache, or some of its entries, to a safetensors file.

        Parameters
        ----------
        path : path-like
            Name of the file. A file of this name is replaced when the new file is complete, so that
            its readers, and a process that dies, leave the old or the new file.
        entries : int or array_like of int, optional
            Numbers of the entries to write, for example of a text that waits in a file so that
            other texts can use its pages: `drop` removes it here, and `adopt` brings it back. All
            entries by default.

        Raises
        ------
        ImportError
            If the safetensors package is missing.
        TypeError
            If an argument has the wrong type.
        ValueError
            If an entry does not exist; if the cache is closed, or in the middle of a step.
        OSError
            If the file cannot be written.

        Notes
        -----
        The file has the pages as they are in memory, each once, however many entries share it, and
        the sizes, types and limits of the cache, except `max_bytes`.

        Examples
        --------
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> import regard
        >>> cache = regard.KVCache(2, 1, 4)
        >>> cache.append_ragged(*np.ones((2, 5, 1, 4)), starts=[0, 2, 5])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     waiting = Path(folder) / "text.safetensors"
        ...     cache.save(waiting, 0)
        ...     cache.drop(0)
        ...     rest = cache.lengths
        ...     number = cache.adopt(regard.KVCache.load(waiting))
        >>> rest, number, cache.lengths
        (array([3]), 1, array([3, 2]))
        """
        name = file_path(path)
        chosen = np.arange(self.batch)
        if entries is not None:
            chosen = arguments.existing_entries(entries, self.batch)
        saved = self._pages.fork(chosen)
        try:
            _write(name, saved, self._geometry)
        finally:
            saved.close()

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, mmap: bool = False) -> Self:
        """Read a cache from a file that `save` has written.

        Parameters
        ----------
        path : path-like
            Name of the file.
        mmap : bool, default False
            Whether to map the pages into memory instead of reading them. The system then reads
            them when they are used, and processes that map the same file share the memory. The
            cache may change: what is written stays in memory and never reaches the file.

        Returns
        -------
        KVCache or KVCaches
            A cache with the content of the file.

        Raises
        ------
        ImportError
            If the safetensors package is missing.
        TypeError
            If an argument has the wrong type.
        ValueError
            If the file is not a cache, is damaged, or was written by a newer or an earlier regard
            (the message states which), or has several layers and this is `KVCache`.
        MemoryError, OSError
            If memory does not suffice, or the file cannot be read.

        Notes
        -----
        A mapped file must not become shorter or be written to. To replace it, write another file
        and rename it, as `save` does: caches that have mapped the old file keep it.
        """
        return cls._of_pages(*_read(file_path(path), flag("mmap", mmap), cls._layers))


def _write(path: str, pages: _core.PageTable, geometry: Geometry) -> None:
    """Write the pages to a file, which takes the place of an existing file when it is complete."""
    lengths = pages.lengths
    tensors: dict[str, Array] = {"lengths": lengths}
    for number, (page_size, _, _) in enumerate(geometry.pools):
        table, evicted = pages.table(number), pages.evicted(number)
        is_held = _is_held(table, lengths, evicted, page_size)
        held, places = np.unique(table[is_held], return_inverse=True)
        table[...] = 0
        table[is_held] = places.reshape(-1)
        # In 64 bits, so that the pages begin at a multiple of 8 bytes.
        tensors |= {f"table.{number}": table.astype(np.int64), f"evicted.{number}": evicted}
        tensors[f"pages.{number}"] = pages.memory(number)[held]
    layers = [layer._replace(dtype=layer.dtype.name) for layer in geometry.layers]  # type: ignore[arg-type]
    description = {
        "capacity": geometry.capacity,
        "layers": [dict(zip(_OPTIONS, layer, strict=True)) for layer in layers],
    }
    metadata = {
        "format": _FORMAT,
        "version": f"{_VERSION}",
        "description": json.dumps(description),
    }
    write_tensors("KVCache.save", path, tensors, metadata, overwrite=True)


def _read(path: str, is_mapped: bool, layers: int | None) -> tuple[_core.PageTable, Geometry]:
    """Return the pages in a file, or raise a ValueError that describes the defect."""
    safetensors = needed("safetensors", "KVCache.load", "models")
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError(f"{path} is not a file")
    with open(path, "rb") as file:
        start = file.read(8)
        if start == _EARLIER:
            raise ValueError(
                f"{path} has a format of an earlier regard, which this regard does not read: "
                "CHANGELOG.md says how to convert it"
            )
        try:
            with safetensors.safe_open(path, framework="np") as opened:
                metadata = opened.metadata() or {}
                geometry = _described(metadata, path)
                names = {"lengths"}
                for number in range(len(geometry.pools)):
                    names |= {f"{kind}.{number}" for kind in ("table", "evicted", "pages")}
                if set(opened.keys()) != names:
                    raise ValueError(
                        f"{path} is damaged: it has the tensors {sorted(opened.keys())}"
                    )
                tables = {n: opened.get_tensor(n) for n in names if not n.startswith("pages")}
        except safetensors.SafetensorError as error:
            raise ValueError(f"{path} is not a readable safetensors file: {error}") from None
        if not os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
            return _read(path, is_mapped, layers)  # another file took its place in the meantime
        size = int.from_bytes(start, "little")
        header = json.loads(file.read(size))
        if layers is not None and len(geometry.layers) != layers:
            raise ValueError(
                f"{path} has {len(geometry.layers)} layers: load it with KVCaches.load()"
            )
        lengths = tables["lengths"]
        if lengths.ndim != 1 or lengths.dtype != np.int64 or (lengths < 0).any():
            raise ValueError(f"{path} is damaged: its lengths are not numbers of tokens")
        pages, pools = geometry.new_pages(len(lengths), None), []
        for number, (pool, page_bytes) in enumerate(
            zip(geometry.pools, pages.page_bytes.tolist(), strict=True)
        ):
            entry = header[f"pages.{number}"]
            count, width = entry["shape"] if len(entry["shape"]) == 2 else (0, -1)
            if entry["dtype"] != "U8" or width != page_bytes:
                raise ValueError(
                    f"{path} is damaged: its pages must have {page_bytes} bytes, got "
                    f"{entry['dtype']} of shape {entry['shape']}"
                )
            table, evicted = tables[f"table.{number}"], tables[f"evicted.{number}"]
            _check_entries(path, geometry, pool, lengths, table, evicted, count)
            offset = 8 + size + entry["data_offsets"][0]
            pools.append((table.astype(np.int32), evicted, offset, count))
        pages.restore(lengths, pools, file.fileno(), is_mapped)
    return pages, geometry


def _described(metadata: dict[str, str], path: str) -> Geometry:
    """Return the geometry that the metadata describe, or raise ValueError."""
    if metadata.get("format") != _FORMAT:
        raise ValueError(f"{path} is not a cache: its format is {metadata.get('format')!r}")
    version = metadata.get("version", "")
    if version != f"{_VERSION}":
        raise ValueError(
            f"{path} has version {version}, and this regard reads version {_VERSION}: load it with "
            "the regard that saved it"
        )
    try:
        description = json.loads(metadata["description"])
        # Files of earlier versions do not have these.
        layers = [
            {"value_from_key": False, "key_means": None, **layer} for layer in description["layers"]
        ]
        options: dict[str, Any] = {name: [layer[name] for layer in layers] for name in _OPTIONS}
        for name in ("key_scales", "value_scales", "key_means"):
            if all(each is None for each in options[name]):
                options[name] = None
        sizes = [options.pop(name) for name in _OPTIONS[:3]]
        return Geometry.of(len(layers), *sizes, capacity=description["capacity"], **options)
    except (KeyError, TypeError, ValueError, MemoryError, RecursionError) as error:
        raise ValueError(f"{path} is damaged, or cannot be loaded here: {error}") from None


def _is_held(table: Array, lengths: Array, evicted: Array, page_size: int) -> Array:
    """Return which columns of the table have a page."""
    columns = -(-lengths // page_size) - evicted
    held: Array = np.arange(table.shape[1]) < columns[:, None]
    return held


def _check_entries(
    path: str,
    geometry: Geometry,
    pool: tuple[int, int | None, int],
    lengths: Array,
    table: Array,
    evicted: Array,
    count: int,
) -> None:
    """Raise ValueError if lengths, evicted pages or the table are impossible."""
    page_size, keep_last, keep_first = pool
    batch = len(lengths)
    are_integers = table.dtype == evicted.dtype == np.int64
    if not are_integers or table.ndim != 2 or len(table) != batch or evicted.shape != (batch,):
        raise ValueError(f"{path} is damaged: its table does not have {batch} entries")
    most_evicted = np.zeros(batch, np.int64)
    if keep_last is not None:
        most_evicted = np.maximum(0, lengths // page_size - -(-keep_first // page_size))
    if ((evicted < 0) | (evicted > most_evicted)).any():
        raise ValueError(
            f"{path} is damaged: entries of {lengths.tolist()} tokens cannot have lost "
            f"{evicted.tolist()} pages"
        )
    most = (table.shape[1] + evicted) * page_size
    if geometry.capacity is not None and keep_last is None:
        most = np.minimum(most, geometry.capacity)
    if (lengths > most).any():
        raise ValueError(
            f"{path} is damaged: its lengths must be at most {most.tolist()}, got "
            f"{lengths.tolist()}"
        )
    named = table[_is_held(table, lengths, evicted, page_size)]
    if ((named < 0) | (named >= count)).any():
        raise ValueError(f"{path} is damaged: it has {count} pages, and its table names others")
