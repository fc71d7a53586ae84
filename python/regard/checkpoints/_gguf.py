"""Read parameters from GGUF files, including quantized parameters."""

from __future__ import annotations

import math
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.numbers import file_path, text
from regard._runtime.optional import needed
from regard._weights.narrow import weight_dtype_name
from regard.checkpoints._bounded_file import BoundedFile, open_plain
from regard.checkpoints._gguf_header import Header, TensorInfo, read_header
from regard.checkpoints._tensors import UnreadableTensorError, read_tensors, stored_tensor

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from regard._weights.narrow import Weight

# Tensor types that NumPy supports; the gguf package converts all others to float32.
INTEGERS = {"I8": "<i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}
PLAIN = {"F32": "<f4", "F64": "<f8", **INTEGERS}


def load_gguf(
    path: str | os.PathLike[str], prefix: str = "", *, weight_dtype: DTypeLike | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the model parameters and the metadata of a GGUF file.

    Parameters
    ----------
    path : str or path
        A GGUF file of version 2 or 3, little-endian.
    prefix : str, optional
        Read only the parameters whose names begin with this prefix, such as ``"blk.3."`` for one
        layer of a model.
    weight_dtype : {"float16", "bfloat16", "int8"}, optional
        Store float matrices in 16 bits, or in 8 bits as `regard.QuantizedWeight`. A matrix is read
        and rounded a few rows at a time, without a complete float32 copy.

    Returns
    -------
    parameters : dict of str to ndarray or QuantizedWeight
        The parameters by full name, with axes in NumPy order (GGUF lists them in reverse): a linear
        layer is ``(out_features, in_features)``. Float32, float64 and integers are returned as
        stored; float16, bfloat16 and quantized tensors become float32. With `weight_dtype`, float
        matrices have that type.
    metadata : dict of str to object
        The metadata entries, such as the sizes of the architecture and the vocabulary, as Python
        int, float, bool, str and lists of these types.

    Raises
    ------
    ImportError
        If the gguf package, which decodes the quantized formats, is missing, or ml_dtypes for
        ``weight_dtype="bfloat16"``; ``pip install ".[models]"`` installs both.
    TypeError
        If `path` is not a path, `prefix` is not a str or `weight_dtype` is not a dtype.
    OSError
        If the file cannot be opened or read.
    ValueError
        If the file is not a GGUF file, or is a device or a pipe; if it is truncated or
        inconsistent, or no name begins with `prefix`; if none of the tensors to be read has a type
        that the gguf package can decode. The message names the file and the reason. Also if
        `weight_dtype` is unknown, or a matrix cannot be stored in it.

    Warns
    -----
    UserWarning
        If the gguf package cannot decode the types of some of the tensors to be read. The warning
        names these tensors. They are skipped, and the others are returned.

    See Also
    --------
    load_safetensors : reads safetensors files.

    Notes
    -----
    Lengths and offsets [1]_ are checked against the file size before anything is read or allocated
    for them. Llama files order the rows of query and key projections for a rotary embedding of
    neighboring columns: ``regard.positional.rotary(..., interleaved=True)``.

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
    kept = weight_dtype_name(weight_dtype)
    file = GgufFile(name)
    return file.parameters(prefix, kept), file.metadata


class GgufFile:
    """A GGUF file, whose header is read once, however often parameters are read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._gguf = needed("gguf", "load_gguf", "models")
        with open_plain(name) as opened:
            file = BoundedFile(opened, name)
            self._header = read_header(file)
            self._sizes = _sizes(file, self._header, self._gguf)

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata entries."""
        return self._header.metadata

    @property
    def names(self) -> list[str]:
        """The names of the parameters."""
        return list(self._sizes)

    def parameters(self, prefix: str = "", weight_dtype: str | None = None) -> dict[str, Any]:
        """Return the parameters whose names begin with a prefix.

        Warnings are attributed to the caller's caller.
        """
        header, sizes = self._header, self._sizes
        tensors = {tensor.name: tensor for tensor in header.tensors}
        with open_plain(self.name) as opened:
            file = BoundedFile(opened, self.name)

            def read(name: str) -> Weight:
                own = tensors[name], sizes[name], self._gguf, weight_dtype
                return _tensor(file, header.data, *own)

            return read_tensors(file, tensors, prefix, read, stacklevel=4)


def _sizes(file: BoundedFile, header: Header, gguf: Any) -> dict[str, int]:
    """Return the size of each tensor in bytes, after checking that the file contains each once."""
    sizes = {tensor.name: _bytes(file, tensor, gguf) for tensor in header.tensors}
    if len(sizes) != len(header.tensors):
        names = Counter(tensor.name for tensor in header.tensors)
        file.refuse(f"the file has two tensors named {names.most_common(1)[0][0]!r}")
    end, before = 0, ""
    for tensor in sorted(header.tensors, key=lambda tensor: tensor.offset):
        if 0 in tensor.shape:
            continue  # it contains no bytes, wherever it begins
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
        file.refuse(
            f"tensor {tensor.name!r} of shape {tensor.shape} has rows that are not whole blocks"
        )
    return int(math.prod(tensor.shape) // items * size)


def _tensor(
    file: BoundedFile,
    data: int,
    tensor: TensorInfo,
    size: int,
    gguf: Any,
    weight_dtype: str | None,
) -> Weight:
    start = data + tensor.offset
    kind = gguf.GGMLQuantizationType(tensor.type_number)
    rows = math.prod(tensor.shape[:-1])
    row_bytes = size // max(rows, 1)
    if kind.name in INTEGERS:
        weight_dtype = None

    def read(part: slice) -> NDArray[Any]:
        count = part.stop - part.start
        if 0 in tensor.shape:
            return np.empty((count, tensor.shape[-1]), PLAIN.get(kind.name, "<f4"))
        begin = start + part.start * row_bytes
        if kind.name in PLAIN:
            dtype = np.dtype(PLAIN[kind.name])
            items = count * row_bytes // dtype.itemsize
            return file.array(begin, dtype, items, tensor.name).reshape(count, -1)
        blocks = file.array(begin, np.dtype(np.uint8), count * row_bytes, tensor.name)
        try:
            # Infinite scales produce infinite numbers without a warning.
            with np.errstate(all="ignore"):
                floats: NDArray[Any] = gguf.quants.dequantize(blocks.reshape(count, -1), kind)
        except NotImplementedError:
            raise UnreadableTensorError(f"has type {kind.name}, which gguf cannot decode") from None
        return floats

    return stored_tensor(file, tensor.name, tensor.shape, weight_dtype, read)
