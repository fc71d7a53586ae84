"""Attention over arrays on a CUDA device."""

from __future__ import annotations

from typing import Any, Unpack

from regard._arguments.options import CudaOptions, takes_options
from regard.cuda._problem import attend


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
    """Compute fused scaled-dot-product attention on a GPU.

    This is `regard.scaled_dot_product_attention` for arrays on a CUDA device. The arrays are not
    copied, and the call returns without waiting for the result.

    Parameters
    ----------
    query : array, shape (..., heads, q_len, head_dim)
        An array on a CUDA device with ``__dlpack__`` or ``__cuda_array_interface__``: a PyTorch,
        CuPy, JAX or Numba array, or a `DeviceArray`. Float16, bfloat16 or float32. The last axis
        must be contiguous. `head_dim` is at most 256. Leading axes broadcast as in NumPy. A 2-D
        array has no heads axis.
    key : array, shape (..., kv_heads, kv_len, head_dim)
        Must have the type and device of `query`. ``heads`` is a multiple of ``kv_heads``.
    value : array, shape (..., kv_heads, kv_len, value_dim)
        Must have the type and device of `query`. `value_dim` is at most 256.
    mask : array of bool or float, or a pair (bool, float) of both, optional
        Must be on the device of `query`, with any strides. Bool: True = may attend. Float16,
        bfloat16 or float32: added to the scores.
    stream : int or stream, optional
        The stream to use: an integer (a handle, or 0, 1 or 2 for CUDA's default streams), or a
        PyTorch, CuPy, Numba or cuda.core stream. Default: the current PyTorch or CuPy stream if
        `query` is a PyTorch or CuPy array, the stream in its ``__cuda_array_interface__``, or else
        the legacy default stream.
    query_offset, key_lengths, left_padding : int or array of int, optional
        Host arrays, which are checked and copied, or contiguous int32 arrays on the device, with
        one number per batch entry. Device arrays are not checked: a number out of range is clamped
        to the range. `query_offset` may be ``"end"``.
    alibi_slopes, sinks : array of float, optional
        Host arrays, or float32 arrays on the device.
    {options}
    out : array, optional
        Array on the device to which the output is written. It must have the type of `query` and the
        shape of the output, and must not overlap another argument.

    Returns
    -------
    output : array, shape (..., heads, q_len, value_dim)
        A PyTorch tensor or a CuPy array if `query` is one, otherwise a `DeviceArray`.
    lse : array, shape (..., heads, q_len)
        Returned if `return_lse`; float32, and of the same kind as `output`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or is not on a device, or the types of query, key and
        value differ. Float64 and the options `return_weights`, `precision` and `threads` are not
        supported.
    ValueError
        If shapes disagree, a number is out of range, arrays are on different devices, `out`
        overlaps another argument, or a dim is above 256.
    MemoryError
        If the device does not have enough memory.
    RuntimeError
        If CUDA is not available (`status` reports the reason), or reports an error.

    See Also
    --------
    regard.scaled_dot_product_attention : for NumPy arrays; calls this function for device arrays.
    scaled_dot_product_attention_ragged : for packed sequences of different lengths.

    Notes
    -----
    Batch axes with strides that can be merged in all arrays are computed in one launch. Other axes,
    such as a broadcast axis between two axes that are not broadcast, need one launch per entry.

    While a stream is captured into a graph, pass lengths, offsets, slopes and sinks as integers or
    as arrays on the device. A replayed graph does not copy new numbers from the host.

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
    return attend("scaled_dot_product_attention", arrays, (), mask, options, stream)


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
    """Compute attention on a GPU over packed sequences of different lengths.

    This is `regard.scaled_dot_product_attention_ragged` for arrays on a CUDA device.

    Parameters
    ----------
    query : array, shape (total, heads, head_dim)
        The queries of all sequences, on a CUDA device, as in `scaled_dot_product_attention`.
    key : array, shape (total_keys, kv_heads, head_dim)
        ``heads`` is a multiple of ``kv_heads``.
    value : array, shape (total_keys, kv_heads, value_dim)
        The values of all sequences.
    query_starts, key_starts : array_like of int, shape (sequences + 1,)
        The start of each sequence, followed by the total length. Must be on the host, since the
        launches depend on the lengths.
    mask : array of bool or float, or a pair (bool, float) of both, optional
        Broadcasts to ``(total, heads, longest)``, where ``longest`` is the length of the longest
        key sequence.
    query_offset, key_lengths, left_padding : int or array of int, optional
        Scalar, or one per sequence.
    {options}
    stream
        As in `scaled_dot_product_attention`.

    Returns
    -------
    output : array, shape (total, heads, value_dim)
        Has the kind and type of `query`.
    lse : array, shape (total, heads)
        Returned if `return_lse`; float32.

    Raises
    ------
    TypeError, ValueError, MemoryError, RuntimeError
        As in `scaled_dot_product_attention`. ValueError is also raised if starts do not begin with
        0, decrease, or do not end with the total.

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
    name, starts = "scaled_dot_product_attention_ragged", (query_starts, key_starts)
    return attend(name, (query, key, value), starts, mask, options, stream)
