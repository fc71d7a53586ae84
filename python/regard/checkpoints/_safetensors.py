"""Parameters from safetensors files."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments import text
from regard.checkpoints._bounded_file import BoundedFile, checked_path
from regard.checkpoints._packages import needed

if TYPE_CHECKING:
    from numpy.typing import NDArray

STORED = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "BOOL": "?",
    **{f"{kind}{8 * size}": f"<{kind.lower()}{size}" for kind in "IU" for size in (1, 2, 4, 8)},
}


def load_safetensors(
    path: str | os.PathLike[str], prefix: str = ""
) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Read a safetensors file: the parameters of a model, and what the file tells about it.

    Parameters
    ----------
    path : str or path
        A safetensors file.
    prefix : str, optional
        Read only the parameters with names that begin so: one layer of a model.

    Returns
    -------
    parameters : dict of str to ndarray
        By their full names. Float32, float64, integers and bools as stored; float16 and bfloat16 as
        float32.
    metadata : dict of str to str
        What the file's writer added; often empty.

    Raises
    ------
    ImportError
        If the package safetensors is missing; it comes with ``pip install 'regard[models]'``.
    TypeError
        If `path` is not a path or `prefix` not a str.
    OSError
        If the file cannot be opened or read.
    ValueError
        If it is not a safetensors file, is truncated, contradicts itself, or no name begins with
        `prefix`; if a tensor to be read has a type that NumPy lacks. The message names the file
        and the reason.

    See Also
    --------
    load_gguf : the same for GGUF files.
    regard.MultiHeadAttention.load_state_dict : takes a layer out of these parameters.

    Notes
    -----
    The package judges the header: tensors that leave the file, overlap or leave holes are refused.
    The data is then read, not mapped: a file that changes later changes no array.

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
    name = checked_path(path)
    prefix = text("prefix", prefix)
    import json  # Here, not above: it would be a tenth of the time of `import regard`.

    safetensors = needed("safetensors", "load_safetensors")
    with open(name, "rb") as opened:
        try:
            with safetensors.safe_open(name, framework="numpy"):
                pass
        except safetensors.SafetensorError as error:
            raise ValueError(f"{name}: is not a readable safetensors file: {error}") from None
        file = BoundedFile(opened, name)
        length = file.number("Q", "the header's length")
        header = json.loads(file.take(length, "the header"))
        metadata = header.pop("__metadata__", {})
        parameters = {
            tensor: _tensor(file, 8 + length, tensor, entry)
            for tensor, entry in header.items()
            if tensor.startswith(prefix)
        }
        if prefix and not parameters:
            file.refuse(f"has no parameter whose name begins with {prefix!r}")
    return parameters, metadata


def _tensor(file: BoundedFile, data: int, name: str, entry: dict[str, Any]) -> NDArray[Any]:
    kind, shape = entry["dtype"], entry["shape"]
    if kind not in STORED:
        file.refuse(f"tensor {name!r} has type {kind}, for which NumPy has none")
    start = data + entry["data_offsets"][0]
    array = file.array(start, np.dtype(STORED[kind]), math.prod(shape), name).reshape(shape)
    if kind == "BF16":  # The upper half of a float32.
        return (array.astype(np.uint32) << 16).view(np.float32)
    if kind == "F16":
        with np.errstate(invalid="ignore"):  # A signalling NaN is a NaN.
            return array.astype(np.float32)
    return array
