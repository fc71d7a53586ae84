"""Parameters from safetensors files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


def read_safetensors(path: str | os.PathLike[str], prefix: str = "") -> dict[str, NDArray[Any]]:
    """Read the arrays of a safetensors file.

    Needs the package safetensors, and for bfloat16 the package ml_dtypes:
    ``pip install "regard[models]"``.

    Parameters
    ----------
    path : str or path-like
        The file.
    prefix : str, optional
        Read only what has a name that begins so.

    Returns
    -------
    dict of str to numpy.ndarray
        Under their full names, in the types of the file.

    Raises
    ------
    ImportError
        If safetensors is not installed.
    OSError
        If the file cannot be opened.
    TypeError
        If an argument has the wrong type.
    ValueError
        If it is no safetensors file or not a whole one, with the reason; or if no name begins with
        `prefix`.

    See Also
    --------
    MultiHeadAttention.load_state_dict : takes the same `prefix`.

    Examples
    --------
    >>> import regard
    >>> layer = regard.MultiHeadAttention(384, 12, qkv_bias=True, out_bias=True)
    >>> prefix = "encoder.layer.0.attention."
    >>> state = regard.read_safetensors("model.safetensors", prefix)  # doctest: +SKIP
    >>> layer.load_state_dict(state, prefix)  # doctest: +SKIP
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path must be a str or path-like, got {type(path).__name__}")
    if not isinstance(prefix, str):
        raise TypeError(f"prefix must be a str, got {type(prefix).__name__}")
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise ImportError(
            "read_safetensors needs the package safetensors: pip install 'regard[models]'"
        ) from error
    # A missing file, a folder and a forbidden file are Python's own errors, with the path in them.
    with open(path, "rb"):
        pass
    try:
        with safe_open(path, framework="numpy") as file:
            names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
            arrays = {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise ValueError(f"{os.fspath(path)} is no readable safetensors file: {error}") from None
    if not arrays and prefix:
        raise ValueError(f"{os.fspath(path)} has no name that begins with {prefix!r}")
    return arrays
