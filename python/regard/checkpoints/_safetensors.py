"""Read parameters from safetensors files."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.numbers import file_path, listed, text
from regard._runtime.public import needed
from regard.checkpoints._file import (
    ParameterFile,
    Tensor,
    UnreadableTensorError,
    json_object,
    weight_dtype_name,
)

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from regard._weights.quantized import Weight

# The types of the format: types that NumPy reads, and types that ml_dtypes adds.
_NUMPY = {
    "F64": "f8",
    "F32": "f4",
    "F16": "f2",
    "BF16": "u2",
    "C64": "c8",
    "BOOL": "?",
    **{f"{kind}{8 * size}": f"{kind.lower()}{size}" for kind in "IU" for size in (1, 2, 4, 8)},
}
_ML_DTYPES = {
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}
_BITS = {kind: 8 * np.dtype(dtype).itemsize for kind, dtype in _NUMPY.items()}
_BITS |= dict.fromkeys(_ML_DTYPES, 8) | {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
_FLOATS = {"F64", "F32", "F16", "BF16", *_ML_DTYPES}


def load_safetensors(
    path: str | os.PathLike[str], prefix: str = "", *, weight_dtype: DTypeLike | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the model parameters and the metadata of a safetensors file, or of several shards.

    Parameters
    ----------
    path : str or path
        A safetensors file; the index of several, such as ``model.safetensors.index.json``; or a
        folder with ``model.safetensors`` or its index.
    prefix, weight_dtype
        As for `load_gguf`.

    Returns
    -------
    parameters : dict of str to ndarray or QuantizedWeight
        The parameters by full name. Float32, float64, complex64, integers and bools are returned as
        stored; float16, bfloat16 and the float8 types become float32. With `weight_dtype`, float
        matrices have that type.
    metadata : dict of str to str
        The metadata entries of the file; often none. The entries of an index have any JSON type.

    Raises
    ------
    ImportError
        If the safetensors package is missing, or ml_dtypes for ``weight_dtype="bfloat16"``;
        ``pip install ".[models]"`` installs both.
    TypeError, OSError, ValueError
        As for `load_gguf`; also if a shard is missing, or lacks a tensor that the index names.

    Warns
    -----
    UserWarning
        If some of the tensors to be read have an unsupported type: a type that neither NumPy nor
        ml_dtypes provides, such as F4, or a float8 type if the ml_dtypes package is missing. The
        warning names these tensors. They are skipped, and the others are returned.

    See Also
    --------
    load_gguf : reads GGUF files.
    regard.MultiHeadAttention.load_state_dict : loads a layer from these parameters.

    Notes
    -----
    The safetensors package checks the file: tensors that extend beyond it, overlap or leave gaps
    are rejected. The data is read, not mapped: later changes to the file do not change the arrays.

    Examples
    --------
    >>> import pathlib
    >>> import tempfile
    >>> import numpy as np
    >>> import regard
    >>> from safetensors.numpy import save_file
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name) / "small.safetensors"
    >>> save_file({"norm.weight": np.ones(4, np.float16)}, path, {"epoch": "3"})
    >>> regard.checkpoints.load_safetensors(path)
    ({'norm.weight': array([1., 1., 1., 1.], dtype=float32)}, {'epoch': '3'})

    One layer of a model:

    >>> layer = regard.MultiHeadAttention(4, 2, rng=0)
    >>> save_file(layer.state_dict("llama", "layers.3.self_attn"), path)
    >>> state, _ = regard.checkpoints.load_safetensors(path, "layers.3.")
    >>> layer.load_state_dict(state, "layers.3.self_attn")
    >>> folder.cleanup()
    """
    name = file_path(path)
    prefix = text("prefix", prefix)
    kept = weight_dtype_name(weight_dtype)
    file = open_safetensors(name)
    return file.parameters(prefix, kept), file.metadata


def open_safetensors(name: str) -> ParameterFile:
    """Open a safetensors file, an index of shards, or what a folder contains of the two."""
    if os.path.isdir(name):
        index = os.path.join(name, "model.safetensors.index.json")
        name = index if os.path.exists(index) else index.removesuffix(".index.json")
    return Shards(name) if name.endswith(".index.json") else SafetensorsFile(name)


class SafetensorsFile(ParameterFile):
    """A safetensors file."""

    def __init__(self, name: str) -> None:
        safetensors = needed("safetensors", "a safetensors file", "models")
        super().__init__(name)
        try:
            with safetensors.safe_open(name, framework="numpy") as file:
                self.metadata = file.metadata() or {}
                parts = {each: file.get_slice(each) for each in file.offset_keys()}
                found = {each: (part.get_dtype(), part.get_shape()) for each, part in parts.items()}
        except safetensors.SafetensorError as error:
            raise ValueError(f"{name}: is not a readable safetensors file: {error}") from None
        # The package reads no float8 for NumPy. It has checked that the data has no gaps, so the
        # order of the tensors gives their places.
        sizes = [math.prod(shape) * _BITS[kind] // 8 for kind, shape in found.values()]
        offset = os.path.getsize(name) - sum(sizes)
        self.tensors = {}
        for (tensor, (kind, shape)), size in zip(found.items(), sizes, strict=True):
            self.tensors[tensor] = Tensor(kind, tuple(shape), offset, kind in _FLOATS)
            offset += size

    def rows(self, tensor: str, part: slice) -> NDArray[Any]:
        """Return rows of a tensor; floats of fewer bits become float32."""
        kind = self.tensors[tensor].kind
        array = self.stored_rows(tensor, part)
        if kind == "BF16":  # the upper half of a float32
            return (array.astype(np.uint32) << 16).view(np.float32)
        if kind == "F16" or kind in _ML_DTYPES:
            with np.errstate(invalid="ignore"):  # a signaling NaN remains a NaN
                return array.astype(np.float32)
        return array

    def stored(self, tensor: str) -> NDArray[Any]:
        """Return a tensor in the type in which it is stored."""
        kind, shape, *_ = self.tensors[tensor]
        array = self.stored_rows(tensor, slice(0, math.prod(shape[:-1]))).reshape(shape)
        if kind != "BF16":
            return array
        return array.view(needed("ml_dtypes", "a tensor in bfloat16", "models").bfloat16)

    def stored_rows(self, tensor: str, part: slice) -> NDArray[Any]:
        """Return rows of a tensor as they are stored, bfloat16 as integers."""
        kind, shape, offset, _ = self.tensors[tensor]
        dtype = _dtype(kind)
        columns = shape[-1] if shape else 1
        count = part.stop - part.start
        begin = offset + part.start * columns * dtype.itemsize
        return self.numbers(tensor, begin, dtype, count * columns).reshape(count, columns)


class Shards(ParameterFile):
    """The safetensors files of an index, which names the file of each tensor."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        index = json_object(name)
        names, self.metadata = index.get("weight_map"), index.get("metadata") or {}
        if not isinstance(names, dict) or not all(isinstance(part, str) for part in names.values()):
            raise ValueError(f"{name}: weight_map must name the file of each tensor")
        folder = os.path.dirname(name)
        files = {
            part: SafetensorsFile(os.path.join(folder, os.path.basename(part)))
            for part in dict.fromkeys(names.values())
        }
        self._files = {tensor: files[part] for tensor, part in names.items()}
        absent = [
            f"{each} in {file.name}"
            for each, file in self._files.items()
            if each not in file.tensors
        ]
        if absent:
            raise ValueError(
                f"{name}: weight_map names tensors that do not exist: {listed(absent)}"
            )
        self.tensors = {tensor: file.tensors[tensor] for tensor, file in self._files.items()}

    def read(self, tensor: str, weight_dtype: str | None) -> Weight:
        """Return a tensor of the shard that contains it."""
        return self._files[tensor].read(tensor, weight_dtype)


def _dtype(kind: str) -> np.dtype[Any]:
    if kind in _NUMPY:
        return np.dtype(_NUMPY[kind])
    if kind not in _ML_DTYPES:
        raise UnreadableTensorError(f"has type {kind}, which neither NumPy nor ml_dtypes provides")
    try:
        ml_dtypes = needed("ml_dtypes", f"type {kind}", "models")
    except ImportError as error:
        raise UnreadableTensorError(f"cannot be read: {error}") from None
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _ML_DTYPES[kind]))
    return dtype
