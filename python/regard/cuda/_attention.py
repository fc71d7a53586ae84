"""The attention calls for arrays on a CUDA device."""

from __future__ import annotations

from typing import Any, Unpack

from regard._arguments.options import CudaOptions, takes_options
from regard.cuda._problem import Call


@takes_options(CudaOptions, reference="as in `regard.scaled_dot_product_attention`")
def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    *,
    stream: Any = None,
    **options: Unpack[CudaOptions],
) -> Any:
    """Compute scaled-dot-product attention on a GPU, fused.

    It computes what `regard.scaled_dot_product_attention` computes, from arrays that lie on a CUDA
    device, without copying them, and returns without waiting for the result.

    Parameters
    ----------
    query : array, shape (..., heads, q_len, head_dim)
        An array on a CUDA device with ``__dlpack__`` or ``__cuda_array_interface__``: of PyTorch,
        CuPy, JAX, Numba, or a `DeviceArray`. Of float16, bfloat16 or float32, with elements of the
        last axis side by side. `head_dim` is at most 256. Leading axes broadcast as in NumPy. A
        2-D array has no heads axis.
    key : array, shape (..., kv_heads, kv_len, head_dim)
        Of the type of `query`, on its device. ``heads`` is a multiple of ``kv_heads``.
    value : array, shape (..., kv_heads, kv_len, value_dim)
        Of the type of `query`, on its device. `value_dim` is at most 256.
    mask : array of bool or float, or a pair (bool, float) of both, optional
        On the device too; any strides. Float16, bfloat16 or float32 is added to the scores.
    stream : int or stream, optional
        What the work is put on: an integer (a handle, or 0, 1 or 2 for CUDA's default streams), or
        a stream of PyTorch, CuPy, Numba or cuda.core. Default: the current stream of PyTorch or
        CuPy where `query` is theirs, the stream that its ``__cuda_array_interface__`` names, or
        else the legacy default stream.
    query_offset, key_lengths, left_padding : int or array of int, optional
        Arrays of the host, which are checked and copied; or int32 arrays on the device, one for
        each batch entry and side by side, which are not checked: a number out of range is taken as
        the nearest one within it. `query_offset` may be ``"end"``.
    alibi_slopes, sinks : array of float, optional
        Arrays of the host, or float32 arrays on the device.
    {options}
    out : array, optional
        Where to write the output: on the device, of the type of `query` and the shape of the
        output, without overlap with another argument.

    Returns
    -------
    output : array, shape (..., heads, q_len, value_dim)
        A tensor of PyTorch or an array of CuPy where `query` is one, else a `DeviceArray`.
    lse : array, shape (..., heads, q_len)
        If `return_lse`, of the same kind and of float32.

    Raises
    ------
    TypeError
        If an argument is of the wrong type, is not on a device, or the types of query, key and
        value differ; for float64, and for what the kernels do not have: `return_weights`,
        `precision`, `threads`.
    ValueError
        If shapes disagree, a number is out of range, arrays are on different devices, `out`
        overlaps another argument, or a dim is above 256.
    MemoryError
        If the device has not enough memory.
    RuntimeError
        If CUDA is not available (`status` says why), or reports an error.

    See Also
    --------
    regard.scaled_dot_product_attention : for NumPy arrays; it hands arrays on a device to this one.
    scaled_dot_product_attention_ragged : for packed sequences of different lengths.

    Notes
    -----
    Batch axes that all arrays step through alike are computed in one launch. Others, such as axes
    that are broadcast between two that are not, take a launch for each of their entries.

    While a stream is captured into a graph, pass lengths, offsets, slopes and sinks as integers or
    as arrays on the device: copies from the host are not repeated with new numbers.

    Examples
    --------
    >>> import numpy as np
    >>> import regard.cuda
    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal((8, 100, 64), dtype=np.float32)
    >>> if regard.cuda.is_available():
    ...     on_device = regard.cuda.to_device(x)
    ...     output = regard.cuda.scaled_dot_product_attention(
    ...         on_device, on_device, on_device, is_causal=True
    ...     )
    ...     assert output.to_numpy().shape == (8, 100, 64)
    """
    arrays = query, key, value
    return Call("scaled_dot_product_attention", arrays, options, stream).dense(mask)


@takes_options(CudaOptions)
def scaled_dot_product_attention_ragged(
    query: Any,
    key: Any,
    value: Any,
    query_starts: Any,
    key_starts: Any,
    mask: Any = None,
    *,
    stream: Any = None,
    **options: Unpack[CudaOptions],
) -> Any:
    """Compute attention on a GPU over sequences of different lengths, packed one after another.

    It computes what `regard.scaled_dot_product_attention_ragged` computes.

    Parameters
    ----------
    query : array, shape (total, heads, head_dim)
        All sequences' queries, on a CUDA device, as in `scaled_dot_product_attention`.
    key : array, shape (total_keys, kv_heads, head_dim)
        ``heads`` is a multiple of ``kv_heads``.
    value : array, shape (total_keys, kv_heads, value_dim)
        All sequences' values.
    query_starts, key_starts : array_like of int, shape (sequences + 1,)
        Where each sequence begins, and last where all end, on the host: the lengths decide what is
        launched.
    mask : array of bool or float, or a pair (bool, float) of both, optional
        Broadcasts to ``(total, heads, longest)`` with the longest sequence of keys.
    query_offset, key_lengths, left_padding : int or array of int, optional
        One number, or one per sequence.
    {options}
    stream
        As in `scaled_dot_product_attention`.

    Returns
    -------
    output : array, shape (total, heads, value_dim)
        Of the kind and type of `query`.
    lse : array, shape (total, heads)
        If `return_lse`, of float32.

    Raises
    ------
    TypeError, ValueError, MemoryError, RuntimeError
        As `scaled_dot_product_attention`; ValueError too if starts do not begin with 0, decrease or
        do not end at the total.

    Examples
    --------
    >>> import numpy as np
    >>> import regard.cuda
    >>> words = np.ones((5, 4, 16), np.float16)
    >>> if regard.cuda.is_available():
    ...     words = regard.cuda.to_device(words)
    ...     starts = [0, 2, 5]
    ...     output = regard.cuda.scaled_dot_product_attention_ragged(
    ...         words, words, words, starts, starts
    ...     )
    ...     assert output.shape == (5, 4, 16)
    """
    name, arrays = "scaled_dot_product_attention_ragged", (query, key, value)
    return Call(name, arrays, options, stream).ragged(mask, query_starts, key_starts)
