"""Texts that wait in files, so that other texts can use their pages."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from regard._cache import file

if TYPE_CHECKING:
    from regard._cache.content import Content


def preempt(content: Content, entry: int, path: str) -> None:
    """Write an entry to a new file, and remove it from its cache."""
    moved = content.fork(np.array([entry]))
    try:
        written = file.create(path, content.geometry, 0, 0, None)
        try:
            written.copy_from(moved)
            written.flush()
        except BaseException:
            written.close()
            os.unlink(path)
            raise
        written.close()
    finally:
        moved.close()
    assert content.state is not None
    content.reorder(np.delete(np.arange(content.state.batch), entry))


def resume(content: Content, path: str) -> int:
    """Bring the entry of a file back, remove the file, and return the number of the entry."""
    path = os.path.realpath(path)  # the file of a symbolic link is removed
    opened = file.opened(path, is_writable=False)
    try:
        assert opened.state is not None
        if opened.state.batch != 1:
            raise ValueError(
                f"path must be a file that preempt has written, with one entry, got "
                f"{opened.state.batch} entries"
            )
        own, theirs = content.geometry._asdict(), opened.geometry._asdict()
        for name, value in own.items():
            if theirs[name] != value and name == "scales":
                raise ValueError(
                    "path must be a file of a cache with the same key_scales and value_scales"
                )
            if theirs[name] != value:
                raise ValueError(
                    f"path must be a file of a cache with {name} {value}, got {theirs[name]}"
                )
        number = content.copy_from(opened)
    finally:
        opened.close()
    os.unlink(path)
    return number
