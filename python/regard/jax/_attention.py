"""The call on JAX arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard._arguments.keywords import check_options
from regard._arguments.numbers import flag
from regard._arguments.options import JaxOptions, names_of, takes_options
from regard.jax._gradients import attention
from regard.jax._inputs import prepared

if TYPE_CHECKING:
    import jax


@takes_options(JaxOptions, reference="as in `regard.scaled_dot_product_attention`")
def scaled_dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array | tuple[jax.Array, jax.Array] | None = None,
    **options: Any,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Compute exact scaled-dot-product attention of JAX arrays on the CPU.

    It computes what `regard.scaled_dot_product_attention` does, with the same options, and may be
    part of functions that `jax.jit`, `jax.grad` and `jax.vmap` transform.

    Parameters
    ----------
    query : jax.Array, shape (..., heads, q_len, head_dim)
        Float16, bfloat16, float32 or float64, NumPy arrays included. Heads come before the length;
        `jax.nn.dot_product_attention` has them after it, so its arrays need
        ``query.swapaxes(-3, -2)``. A 2-D array ``(q_len, head_dim)`` has no heads axis. Leading
        axes broadcast.
    key : jax.Array, shape (..., kv_heads, kv_len, head_dim)
        ``heads`` is a multiple of ``kv_heads``.
    value : jax.Array, shape (..., kv_heads, kv_len, value_dim)
        ``value_dim`` may differ from ``head_dim``.
    mask : jax.Array of bool or float, or a pair (bool, float) of both, optional
        Broadcasts to ``(..., heads, q_len, kv_len)``. Bool: True = may attend. Float: added to the
        scores.
    {options}
    dropout_seed : int or jax.Array of an integer, optional
        As there. It may be traced, so that a compiled step of a training loop can drop other
        weights each time: ``jax.random.bits(key, (), "uint32")`` makes one of a JAX key.
    return_lse : bool, default False
        Also return the natural log-sum-exp of every row's visible scores, sink included.

    Returns
    -------
    output : jax.Array, shape (..., heads, q_len, value_dim)
        Of the result type of query, key and value. No heads axis if all three are 2-D.
    lse : jax.Array, shape (..., heads, q_len)
        If `return_lse`; float32, or float64 if the output is.

    Raises
    ------
    TypeError
        If an argument has the wrong type, lies on another device than the CPU, or is traced and may
        not be.
    ValueError
        If shapes disagree or a number is out of range.
    NotImplementedError
        If a gradient is asked for with ``precision="int8"``, or a gradient of gradients of what is
        not query, key or value.

    See Also
    --------
    regard.scaled_dot_product_attention : describes all options.

    Notes
    -----
    Types, shapes and all numbers that are known are checked when a function is traced. Numbers of
    traced arrays are checked when the compiled program runs, which then fails with JAX's error.

    Gradients exist with respect to query, key, value, a float mask, `alibi_slopes` and `sinks`,
    through the output and lse, and only those that are asked for are computed. Gradients of
    gradients exist with respect to query, key and value, as `jax.grad` of `jax.grad` and
    `jax.jacrev` of `jax.jacrev` take them; the others must be constants there. Forward mode
    (`jax.jvp`, `jax.jacfwd`, `jax.hessian`) and ``precision="int8"`` under `jax.grad` raise an
    error.

    A program that is compiled for another device than the CPU is refused by XLA, which finds no
    "regard_attention" there.

    XLA hands its arrays to regard, which reads and writes them in place: neither inputs nor results
    are copied. ``jax.vmap`` makes one call of all mapped ones, with the same bits as each alone,
    except that calls with sinks or dropout are computed one after the other. With `dropout_p`, all
    mapped calls drop the weights that each would drop alone: map `dropout_seed` too where they
    should differ.

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
    check_options(name, options, names_of(JaxOptions), kind="jax")
    return_lse = flag("return_lse", options.pop("return_lse", False))
    arrays = {"query": query, "key": key, "value": value}
    call, inputs, is_flat = prepared(arrays, mask, options, return_lse)
    results = attention(call, inputs)
    if is_flat:
        results = tuple(result[0] for result in results)
    return results if return_lse else results[0]
