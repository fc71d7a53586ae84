"""Read parameters from GGUF files, including quantized parameters."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.numbers import file_path, text
from regard._runtime.public import needed
from regard.checkpoints._file import (
    ParameterFile,
    Tensor,
    UnreadableTensorError,
    weight_dtype_name,
)

if TYPE_CHECKING:
    import os

    from numpy.typing import DTypeLike, NDArray

# Tensor types that NumPy supports; the gguf package converts all others to float32.
_INTEGERS = {"I8": "i1", "I16": "i2", "I32": "i4", "I64": "i8"}
_PLAIN = {"F32": "f4", "F64": "f8", **_INTEGERS}


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
    The gguf package reads the file [1]_, and the returned arrays are copies. Llama files order the
    rows of query and key projections for a rotary embedding of neighboring columns:
    ``regard.positional.rotary(..., interleaved=True)``.

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


class GgufFile(ParameterFile):
    """A GGUF file."""

    def __init__(self, name: str) -> None:
        self._gguf = needed("gguf", "a GGUF file", "models")
        super().__init__(name)
        try:
            # Offsets that wrap around are errors.
            with np.errstate(over="raise"):
                reader = _reader(self._gguf)(name)
                if reader.byte_order != "I":
                    raise ValueError("it is big-endian; only little-endian files can be read")
                self.metadata = {
                    key: field.contents()
                    for key, field in reader.fields.items()
                    if not key.startswith("GGUF.")
                }
        except (ArithmeticError, LookupError, RecursionError, ValueError) as error:
            reason = error.args[0] if isinstance(error, KeyError) else error
            raise ValueError(f"{name}: is not a readable GGUF file: {reason}") from None
        # Parts of the mapped file would count as memory of the process.
        self.tensors = {
            each.name: Tensor(
                each.tensor_type.name,
                tuple(map(int, reversed(each.shape))),  # GGUF lists the axes in reverse
                int(each.data_offset),
                each.tensor_type.name not in _INTEGERS,
            )
            for each in reader.tensors
        }

    def rows(self, tensor: str, part: slice) -> NDArray[Any]:
        """Return rows of a tensor; quantized rows become float32."""
        kind, shape, offset, _ = self.tensors[tensor]
        count = part.stop - part.start
        if 0 in shape:
            return np.empty((count, shape[-1]), _PLAIN.get(kind, "f4"))
        encoding = self._gguf.GGMLQuantizationType[kind]
        numbers, size = self._gguf.GGML_QUANT_SIZES[encoding]  # of a block
        row_bytes = math.prod(shape[-1:]) // numbers * size  # a single number has no axes
        dtype = np.dtype(_PLAIN.get(kind, "u1"))
        stored = self.numbers(
            tensor, offset + part.start * row_bytes, dtype, count * row_bytes // dtype.itemsize
        ).reshape(count, -1)
        if kind in _PLAIN:
            return stored
        try:
            # Infinite scales produce infinite numbers without a warning.
            with np.errstate(all="ignore"):
                floats: NDArray[Any] = self._gguf.quants.dequantize(stored, encoding)
        except NotImplementedError:
            raise UnreadableTensorError(f"has type {kind}, which gguf cannot decode") from None
        return floats


def _reader(gguf: Any) -> Any:
    """Return the package's class of readers, which refuses values beyond the end of the file.

    The package would return the part that exists, and read an array of any length from nothing. Its
    views of a mapped file need several times the memory of NumPy's for each token of a vocabulary.
    """

    class Reader(gguf.GGUFReader):  # type: ignore[misc]
        def _get(self, offset: int, dtype: Any, count: int = 1, *_: Any, **__: Any) -> Any:
            end = int(offset) + int(count) * np.dtype(dtype).itemsize
            if end > self.data.nbytes and count:
                raise ValueError(
                    f"bytes {offset} to {end} are needed, but the file ends at {self.data.nbytes}"
                )
            return np.asarray(self.data)[int(offset) : end].view(dtype)

    return Reader
