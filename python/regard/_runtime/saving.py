"""Write a file completely or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.numbers import file_path, flag
from regard._runtime.public import needed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray


def check_place(path: str | os.PathLike[str], overwrite: bool) -> str:
    """Return a path as a str, or raise the error that writing the file would raise."""
    name = file_path(path)
    if os.path.isdir(name) or not os.path.basename(name):
        raise IsADirectoryError(f"path must name a file, got the folder {name!r}")
    folder = os.path.dirname(name) or "."
    if not os.path.isdir(folder):
        advice = "expand ~ with os.path.expanduser" if name.startswith("~") else "create it"
        raise FileNotFoundError(f"path must be in a folder that exists, got {name!r}: {advice}")
    if os.path.islink(name) and not os.path.exists(name):
        raise FileNotFoundError(f"path must not be a symbolic link to nothing, got {name!r}")
    if os.path.lexists(name) and not flag("overwrite", overwrite):
        raise FileExistsError(
            f"path must name a new file, got {name!r}, which exists: pass overwrite=True, or "
            "another path"
        )
    return name


def write_whole(
    path: str | os.PathLike[str],
    content: Iterable[bytes] | Callable[[str], object],
    overwrite: bool,
) -> str:
    """Write a temporary file next to the target, and move it there when it is complete.

    The content is the parts of the file, or a function that writes a file of a given name. After a
    failure, no new file remains. Parts are written directly to a device such as /dev/stdout.
    """
    name = check_place(path, overwrite)
    is_file = os.path.isfile(name)
    is_device = os.path.exists(name) and not is_file
    if is_device and callable(content):
        raise ValueError(f"path must name a plain file, got {name!r}")
    try:
        if is_device:
            with open(name, "wb") as device:
                device.writelines(content)  # type: ignore[arg-type]
        else:
            _write_temporary(name, content, overwrite)
    except FileExistsError:
        raise
    except OSError as error:
        unchanged = "; the existing file is unchanged" if is_file else ""
        reason = f"cannot write {name!r}: {error.strerror or error}{unchanged}"
        raise OSError(error.errno, reason) from error
    return name


def write_tensors(
    caller: str,
    path: str | os.PathLike[str],
    arrays: Mapping[str, NDArray[Any]],
    metadata: dict[str, str],
    overwrite: bool,
) -> None:
    """Write arrays to a safetensors file, completely or not at all."""
    safetensors = needed("safetensors", caller, "models")
    # The package reads the memory of contiguous arrays, in little-endian order.
    stored = {
        name: np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
        for name, array in arrays.items()
    }
    tensors = {
        name: safetensors.TensorSpec(
            dtype=array.dtype.name,
            shape=arrays[name].shape,
            data_ptr=array.ctypes.data,
            data_len=array.nbytes,
        )
        for name, array in stored.items()
    }

    def write_to(name: str) -> None:
        try:
            safetensors.serialize_file(tensors, name, metadata=metadata)
        except safetensors.SafetensorError as error:
            raise OSError(str(error)) from error

    write_whole(path, write_to, overwrite)


def _write_temporary(
    name: str, content: Iterable[bytes] | Callable[[str], object], overwrite: bool
) -> None:
    place = os.path.realpath(name)  # the target of a symbolic link is replaced, not the link
    temporary = os.path.join(os.path.dirname(place), f".regard-{os.urandom(8).hex()}.part")
    try:
        # An interrupt may come as soon as the file exists.
        if callable(content):
            content(temporary)
        else:
            with open(temporary, "xb", opener=_private) as file:
                file.writelines(content)
        os.chmod(temporary, _mode(place))
        with open(temporary, "r+b") as file:
            os.fsync(file.fileno())
        check_place(place, overwrite)  # again, since another process may have created the file
        os.replace(temporary, place)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _private(name: str, flags: int) -> int:
    """Open a file that other users cannot read while it is written."""
    return os.open(name, flags, 0o600)


def _mode(place: str) -> int:
    """Return the permissions of an existing file, or the permissions of a new file."""
    with suppress(FileNotFoundError):
        return os.stat(place).st_mode & 0o7777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
