"""Parameters from GGUF files, quantised ones included."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.checkpoints._bounded_file import BoundedFile, checked_path
from regard.checkpoints._gguf_header import Header, TensorInfo, read_header
from regard.checkpoints._packages import needed

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Tensor types that NumPy has itself; all others are the package's to turn into float32.
PLAIN = {"F32": "<f4", "F64": "<f8", "I8": "<i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}


def load_gguf(path: str | os.PathLike[str]) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read a GGUF file: the parameters of a model, and what the file tells about it.

    Parameters
    ----------
    path : str or path
        A GGUF file of version 2 or 3, little-endian.

    Returns
    -------
    parameters : dict of str to ndarray
        By name, with axes in NumPy's order (GGUF lists them the other way round): a linear layer
        is ``(out_features, in_features)``. Float32, float64 and integers as stored; float16,
        bfloat16 and quantised tensors as float32.
    metadata : dict of str to object
        The file's entries as Python's int, float, bool, str and lists of these: the architecture's
        sizes, the vocabulary.

    Raises
    ------
    ImportError
        If the package gguf, which knows the quantised formats, is missing; it comes with
        ``pip install 'regard[models]'``.
    TypeError
        If `path` is not a path.
    OSError
        If the file cannot be opened or read.
    ValueError
        If it is not a GGUF file, is truncated, or contradicts itself. The message names the file
        and the reason.

    See Also
    --------
    load_safetensors : the same for safetensors files.

    Notes
    -----
    Lengths and offsets [1]_ are checked against the file's size before anything is read or
    allocated for them. Llama files store the rows of query and key projections so that rotary
    embedding turns neighbours: ``regard.positional.rotary(..., interleaved=True)``.

    References
    ----------
    .. [1] https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

    Examples
    --------
    >>> import pathlib
    >>> import tempfile
    >>> import gguf
    >>> import numpy as np
    >>> import regard
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name) / "small.gguf"
    >>> writer = gguf.GGUFWriter(path, "llama")
    >>> writer.add_block_count(2)
    >>> writer.add_tensor("output_norm.weight", np.ones(4, np.float16))
    >>> writer.write_header_to_file()
    >>> writer.write_kv_data_to_file()
    >>> writer.write_tensors_to_file()
    >>> writer.close()
    >>> parameters, metadata = regard.checkpoints.load_gguf(path)
    >>> parameters
    {'output_norm.weight': array([1., 1., 1., 1.], dtype=float32)}
    >>> metadata
    {'general.architecture': 'llama', 'llama.block_count': 2}
    >>> folder.cleanup()
    """
    name = checked_path(path)
    gguf = needed("gguf", "load_gguf")
    with open(name, "rb") as opened:
        file = BoundedFile(opened, name)
        header = read_header(file)
        sizes = _sizes(file, header, gguf)
        parameters = {
            tensor.name: _tensor(file, header.data + tensor.offset, tensor, size, gguf)
            for tensor, size in zip(header.tensors, sizes, strict=True)
        }
    return parameters, header.metadata


def _sizes(file: BoundedFile, header: Header, gguf: Any) -> list[int]:
    """Return each tensor's bytes, having checked that the file holds all of them, once each."""
    sizes = [_bytes(file, tensor, gguf) for tensor in header.tensors]
    if len({tensor.name for tensor in header.tensors}) != len(sizes):
        file.refuse("has two tensors of one name")
    end, before = 0, ""
    order = sorted(zip(header.tensors, sizes, strict=True), key=lambda entry: entry[0].offset)
    for tensor, size in order:
        if tensor.offset % header.alignment:
            file.refuse(
                f"tensor {tensor.name!r} begins at {tensor.offset}, no multiple of the alignment "
                f"{header.alignment}"
            )
        if tensor.offset < end:
            file.refuse(f"tensors {before!r} and {tensor.name!r} overlap")
        end, before = tensor.offset + size, tensor.name
        if header.data + end > file.size:
            file.refuse(
                f"tensor {tensor.name!r} ends at offset {header.data + end}, but the file ends at "
                f"{file.size}"
            )
    return sizes


def _bytes(file: BoundedFile, tensor: TensorInfo, gguf: Any) -> int:
    try:
        items, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(tensor.type_number)]
    except (KeyError, ValueError):
        file.refuse(f"tensor {tensor.name!r} has the unknown type {tensor.type_number}")
    if (tensor.shape or (1,))[-1] % items:
        file.refuse(f"tensor {tensor.name!r} of shape {tensor.shape} has rows of broken blocks")
    return int(math.prod(tensor.shape) // items * size)


def _tensor(
    file: BoundedFile, start: int, tensor: TensorInfo, size: int, gguf: Any
) -> NDArray[Any]:
    kind = gguf.GGMLQuantizationType(tensor.type_number)
    if kind.name in PLAIN:
        dtype = np.dtype(PLAIN[kind.name])
        array = file.array(start, dtype, size // dtype.itemsize, tensor.name)
        return array.reshape(tensor.shape)
    rows = math.prod(tensor.shape[:-1])
    data = file.array(start, np.dtype(np.uint8), size, tensor.name).reshape(rows, -1)
    try:
        # Infinite scales are results, not warnings.
        with np.errstate(all="ignore"):
            floats = gguf.quants.dequantize(data, kind)
    except NotImplementedError:
        file.refuse(f"tensor {tensor.name!r} has type {kind.name}, which gguf cannot decode")
    result: NDArray[Any] = floats.reshape(tensor.shape)
    return result
