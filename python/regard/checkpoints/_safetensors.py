"""Read parameters from safetensors files."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.numbers import file_path, text
from regard._runtime.optional import needed
from regard._weights.narrow import weight_dtype_name
from regard.checkpoints._bounded_file import BoundedFile, open_plain
from regard.checkpoints._tensors import UnreadableTensorError, read_tensors, stored_tensor

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from regard._weights.narrow import Weight

# Types of the format: types that NumPy reads, types that ml_dtypes adds, and types that widen.
_NUMPY = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "C64": "<c8",
    "BOOL": "?",
    **{f"{kind}{8 * size}": f"<{kind.lower()}{size}" for kind in "IU" for size in (1, 2, 4, 8)},
}
_ML_DTYPES = {
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}
_FLOATS = {"F64", "F32", "F16", "BF16", *_ML_DTYPES}


def load_safetensors(
    path: str | os.PathLike[str], prefix: str = "", *, weight_dtype: DTypeLike | None = None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Read the model parameters and the metadata of a safetensors file.

    Parameters
    ----------
    path : str or path
        A safetensors file.
    prefix : str, optional
        Read only the parameters whose names begin with this prefix, such as one layer of a model.
    weight_dtype : {"float16", "bfloat16", "int8"}, optional
        Store float matrices in 16 bits, or in 8 bits as `regard.QuantizedWeight`. A matrix is read
        and rounded a few rows at a time, without a complete float32 copy.

    Returns
    -------
    parameters : dict of str to ndarray or QuantizedWeight
        The parameters by full name. Float32, float64, complex64, integers and bools are returned as
        stored; float16, bfloat16 and the float8 types become float32. With `weight_dtype`, float
        matrices have that type.
    metadata : dict of str to str
        The metadata entries of the file; often none.

    Raises
    ------
    ImportError
        If the safetensors package is missing, or ml_dtypes for ``weight_dtype="bfloat16"``;
        ``pip install ".[models]"`` installs both.
    TypeError
        If `path` is not a path, `prefix` is not a str or `weight_dtype` is not a dtype.
    OSError
        If the file cannot be opened or read.
    ValueError
        If the file is not a safetensors file, or is a device or a pipe; if it is truncated or
        inconsistent, or no name begins with `prefix`; if none of the tensors to be read has a
        supported type. The message names the file and the reason. Also if `weight_dtype` is
        unknown, or a matrix cannot be stored in it.

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
    Tensors that extend beyond the file, overlap or leave gaps are rejected, as are duplicate names.
    The data is read, not mapped: later changes to the file do not change the arrays.

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
    safetensors = needed("safetensors", "load_safetensors", "models")
    with open_plain(name) as opened:
        try:
            with safetensors.safe_open(name, framework="numpy"):
                pass
        except safetensors.SafetensorError as error:
            raise ValueError(f"{name}: is not a readable safetensors file: {error}") from None
        file = BoundedFile(opened, name)
        length = file.number("Q", "the header's length")
        header = json.loads(
            file.take(length, "the header"),
            object_pairs_hook=lambda pairs: _without_repeats(file, pairs),
        )
        metadata = header.pop("__metadata__", None) or {}  # null is allowed
        parameters = read_tensors(
            file,
            header,
            prefix,
            lambda tensor: _tensor(file, 8 + length, tensor, header[tensor], kept),
        )
    return parameters, metadata


def _without_repeats(file: BoundedFile, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the names and values of a JSON object, or reject the file if a name is repeated.

    The safetensors package keeps the last value, and other readers may keep the first.
    """
    found = dict(pairs)
    if len(found) != len(pairs):
        name = Counter(name for name, _ in pairs).most_common(1)[0][0]
        file.refuse(f"the header has the name {name!r} twice")
    return found


def _tensor(
    file: BoundedFile, data: int, name: str, entry: dict[str, Any], weight_dtype: str | None
) -> Weight:
    kind, shape = entry["dtype"], tuple(entry["shape"])
    start = data + entry["data_offsets"][0]
    try:
        np.broadcast_to(0, shape)
    except ValueError as error:  # more axes than NumPy supports
        file.refuse(f"tensor {name!r} has the impossible shape {list(shape)}: {error}")
    dtype = _dtype(kind)
    if kind not in _FLOATS:
        return file.array(start, dtype, math.prod(shape), name).reshape(shape)
    columns = shape[-1] if shape else 1

    def read(part: slice) -> NDArray[Any]:
        count = part.stop - part.start
        begin = start + part.start * columns * dtype.itemsize
        array = file.array(begin, dtype, count * columns, name)
        return _as_floats(kind, array).reshape(count, columns)

    return stored_tensor(file, name, shape, weight_dtype, read)


def _as_floats(kind: str, array: NDArray[Any]) -> NDArray[Any]:
    if kind == "BF16":  # the upper half of a float32
        return (array.astype(np.uint32) << 16).view(np.float32)
    if kind == "F16" or kind in _ML_DTYPES:
        with np.errstate(invalid="ignore"):  # a signaling NaN remains a NaN
            return array.astype(np.float32)
    return array


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
