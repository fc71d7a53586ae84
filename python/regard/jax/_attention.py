"""Attention over JAX arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from regard._arguments.keywords import check_options
from regard._arguments.numbers import flag
from regard._arguments.options import JaxOptions, names_of, takes_options
from regard.jax._gradients import attention
from regard.jax._inputs import prepare

if TYPE_CHECKING:
    import jax

    from regard.masks import SparseMask


@takes_options(JaxOptions, reference="as in `regard.scaled_dot_product_attention`")
def scaled_dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array | SparseMask | tuple[jax.Array | SparseMask, jax.Array] | None = None,
    **options: Unpack[JaxOptions],
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Compute exact scaled-dot-product attention over JAX arrays on the CPU.

    The result is the same as from `regard.scaled_dot_product_attention` with the same options. The
    function can be transformed by `jax.jit`, `jax.grad`, `jax.jvp` and `jax.vmap`.

    Parameters
    ----------
    query : jax.Array, shape (..., heads, q_len, head_dim)
        Float16, bfloat16, float32 or float64. NumPy arrays are also accepted. The heads axis
        precedes the length axis; `jax.nn.dot_product_attention` has the reverse order, so its
        arrays need ``query.swapaxes(-3, -2)``. A 2-D array ``(q_len, head_dim)`` has no heads axis.
        Leading axes broadcast.
    key : jax.Array, shape (..., kv_heads, kv_len, head_dim)
        ``heads`` is a multiple of ``kv_heads``.
    value : jax.Array, shape (..., kv_heads, kv_len, value_dim)
        ``value_dim`` may differ from ``head_dim``.
    mask : jax.Array of bool or float, SparseMask, or a pair (bool, float), optional
        Broadcasts to ``(..., heads, q_len, kv_len)``. Bool: True = may attend. Float: added to the
        scores. A `regard.masks.SparseMask` is a constant of the program, and not an argument of a
        transformed function.
    {options}
    dropout_seed : int or jax.Array of an integer, optional
        As in `regard.scaled_dot_product_attention`. It may be traced, so that every run of a
        compiled training step can drop different weights: ``jax.random.bits(key, (), "uint32")``
        creates a seed from a JAX key.
    return_lse : bool, default False
        Also return the natural log-sum-exp of every row's visible scores, including the sink.

    Returns
    -------
    output : jax.Array, shape (..., heads, q_len, value_dim)
        Has the result type of query, key and value, and no heads axis if all three are 2-D.
    lse : jax.Array, shape (..., heads, q_len)
        Returned if `return_lse`, in float64 if the output is float64, else in float32.

    Raises
    ------
    TypeError
        If an argument has the wrong type, is not on the CPU, or is traced although it must not be.
    ValueError
        If shapes disagree or a number is out of range.
    NotImplementedError
        If a derivative is requested with ``precision="int8"`` or with respect to `scale` or
        `softcap`, or forward mode or a derivative of derivatives with a `precision`.

    See Also
    --------
    regard.scaled_dot_product_attention : documents all options.

    Notes
    -----
    Types, shapes and all known numbers are checked when a function is traced. The values of traced
    arrays are checked when the compiled program runs. If a value is invalid, the program fails with
    a JAX error.

    Derivatives are available with respect to query, key, value, a float mask, `alibi_slopes`,
    `distance_bias` and `sinks`, through the output and lse. Only requested gradients are computed.
    `scale` and `softcap` have no derivatives. A single number is a constant of the program; an
    array with one number per head may be traced.

    Gradients are fused, and so is forward mode (`jax.jvp`, `jax.jacfwd`) along query, key and
    value. Forward mode along other inputs, and derivatives of derivatives such as `jax.hessian`,
    are those of JAX's own operations, which need memory for all scores.

    A compiled program calls Python in this process, so it cannot be serialized, and JAX does not
    keep it in its compilation cache. Before the process exits, wait for programs that other threads
    started (`jax.block_until_ready`): one that is still running aborts the process, as JAX's own
    programs in daemon threads do. Programs of the main thread are waited for.

    Regard reads and writes XLA's arrays in place: neither inputs nor results are copied.
    ``jax.vmap`` merges all mapped calls into one call, with the same bits as separate calls, except
    that calls with sinks or dropout are computed one after another. With `dropout_p`, every mapped
    call drops the same weights as a separate call. To drop different weights, map `dropout_seed`
    too.

    Examples
    --------
    >>> import jax
    >>> import regard.jax
    >>> keys = jax.random.split(jax.random.key(0), 3)
    >>> query, key, value = (jax.random.normal(k, (2, 4, 6, 16)) for k in keys)
    >>> @jax.jit
    ... def loss(query, key, value):
    ...     output = regard.jax.scaled_dot_product_attention(query, key, value, is_causal=True)
    ...     return (output**2).sum()
    >>> gradients = jax.grad(loss, argnums=(0, 1, 2))(query, key, value)
    >>> [gradient.shape for gradient in gradients]
    [(2, 4, 6, 16), (2, 4, 6, 16), (2, 4, 6, 16)]
    """
    name = "regard.jax.scaled_dot_product_attention"
    check_options(name, options, names_of(JaxOptions))
    given: dict[str, Any] = {**options}
    return_lse = flag("return_lse", given.pop("return_lse", False))
    arrays = {"query": query, "key": key, "value": value}
    call, inputs, is_flat = prepare(arrays, mask, given, return_lse)
    results = attention(call, inputs)
    if is_flat:
        results = tuple(result[0] for result in results)
    return results if return_lse else results[0]
