"""Read parameters from GGUF files, including quantised ones."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments import file_path, text
from regard._packages import needed
from regard.checkpoints._bounded_file import BoundedFile
from regard.checkpoints._gguf_header import Header, TensorInfo, read_header
from regard.checkpoints._tensors import UnreadableTensorError, read_tensors

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Tensor types that NumPy has; the package turns all others into float32.
PLAIN = {"F32": "<f4", "F64": "<f8", "I8": "<i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}


def load_gguf(
    path: str | os.PathLike[str], prefix: str = ""
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read a GGUF file: the parameters of a model, and the metadata beside them.

    Parameters
    ----------
    path : str or path
        A GGUF file of version 2 or 3, little-endian.
    prefix : str, optional
        Read only the parameters whose names begin with this: ``"blk.3."`` for one layer of a model.

    Returns
    -------
    parameters : dict of str to ndarray
        By their full names, with axes in NumPy's order (GGUF lists them the other way round): a
        linear layer is ``(out_features, in_features)``. Float32, float64 and integers are returned
        as stored; float16, bfloat16 and quantised tensors become float32.
    metadata : dict of str to object
        The file's entries as Python's int, float, bool, str and lists of these: the sizes of the
        architecture, the vocabulary.

    Raises
    ------
    ImportError
        If the package gguf, which decodes the quantised formats, is missing; ``pip install
        'regard[models]'`` installs it.
    TypeError
        If `path` is not a path or `prefix` is not a str.
    OSError
        If the file cannot be opened or read.
    ValueError
        If it is not a GGUF file, is truncated, contradicts itself, or no name begins with `prefix`;
        if none of the tensors to be read has a type that the package can decode. The message names
        the file and the reason.

    Warns
    -----
    UserWarning
        If the package cannot decode the types of some of the tensors to be read, which it names.
        These are skipped, and the others are returned.

    See Also
    --------
    load_safetensors : the same for safetensors files.

    Notes
    -----
    Lengths and offsets [1]_ are checked against the file's size before anything is read or
    allocated for them. Llama files order the rows of query and key projections for a
    rotary embedding of neighbouring columns: ``regard.positional.rotary(..., interleaved=True)``.

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
    name, prefix = file_path(path), text("prefix", prefix)
    gguf = needed("gguf", "load_gguf", "models")
    with open(name, "rb") as opened:
        file = BoundedFile(opened, name)
        header = read_header(file)
        sizes = _sizes(file, header, gguf)
        tensors = {tensor.name: tensor for tensor in header.tensors}
        parameters = read_tensors(
            file,
            tensors,
            prefix,
            lambda tensor: _tensor(file, header.data, tensors[tensor], sizes[tensor], gguf),
        )
    return parameters, header.metadata


def _sizes(file: BoundedFile, header: Header, gguf: Any) -> dict[str, int]:
    """Return the bytes of each tensor, after checking that the file holds each of them once."""
    sizes = {tensor.name: _bytes(file, tensor, gguf) for tensor in header.tensors}
    if len(sizes) != len(header.tensors):
        file.refuse("the file has two tensors of one name")
    end, before = 0, ""
    for tensor in sorted(header.tensors, key=lambda tensor: tensor.offset):
        if tensor.offset % header.alignment:
            file.refuse(
                f"tensor {tensor.name!r} begins at {tensor.offset}, which is not a multiple of the "
                f"alignment {header.alignment}"
            )
        if tensor.offset < end:
            file.refuse(f"tensors {before!r} and {tensor.name!r} overlap")
        end, before = tensor.offset + sizes[tensor.name], tensor.name
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


def _tensor(file: BoundedFile, data: int, tensor: TensorInfo, size: int, gguf: Any) -> NDArray[Any]:
    start = data + tensor.offset
    kind = gguf.GGMLQuantizationType(tensor.type_number)
    if kind.name in PLAIN:
        dtype = np.dtype(PLAIN[kind.name])
        array = file.array(start, dtype, size // dtype.itemsize, tensor.name)
        return array.reshape(tensor.shape)
    rows = math.prod(tensor.shape[:-1])
    blocks = file.array(start, np.dtype(np.uint8), size, tensor.name).reshape(rows, -1)
    try:
        # Infinite scales give infinite numbers, not warnings.
        with np.errstate(all="ignore"):
            floats = gguf.quants.dequantize(blocks, kind)
    except NotImplementedError:
        raise UnreadableTensorError(f"has type {kind.name}, which gguf cannot decode") from None
    result: NDArray[Any] = floats.reshape(tensor.shape)
    return result
