"""The gradients of linear attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Never

from regard import _core
from regard._arguments.arrays import as_computed, as_stored_arrays
from regard._arguments.foreign import readable
from regard._arguments.keywords import check_options
from regard._arguments.options import takes_options
from regard._attention.linear import computed_inputs, stored_inputs
from regard._gradients.wanted import summed_to
from regard._runtime.public import public

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from regard._arguments.arrays import Array


@public
class LinearAttentionGradients(NamedTuple):
    """The gradients of a loss with respect to the inputs of linear attention.

    Each gradient has the shape and the type of its input (float64 for integers), or is None if
    there is no such input.
    """

    query: Array
    key: Array
    value: Array
    decay: Array | None
    beta: Array | None
    state: Array | None


@public
@takes_options()
def linear_attention_backward(
    grad_output: ArrayLike,
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    decay: ArrayLike | None = None,
    beta: ArrayLike | None = None,
    state: ArrayLike | None = None,
    scale: float | None = None,
    starts: ArrayLike | None = None,
    grad_state: ArrayLike | None = None,
    threads: int | None = None,
    **options: Never,
) -> LinearAttentionGradients:
    r"""Compute the exact gradients of linear attention.

    With the rule of `linear_attention` in the form :math:`S_t = e^{g_t} S_{t-1} + k_t u_t^\top`,
    :math:`u_t = \beta_t (v_t - e^{g_t} S_{t-1}^\top k_t)`, and :math:`G_t` for the rows of
    `grad_output`, the gradient :math:`dS` of the state goes from the last token to the first:

    .. math::

        dS_t &= \mathrm{scale}\; q_t G_t^\top + e^{g_{t+1}} (dS_{t+1} - k_{t+1} dv_{t+1}^\top) \\
        dq_t &= \mathrm{scale}\; S_t G_t, \qquad
        dv_t = \beta_t\, dS_t^\top k_t, \qquad
        dk_t = dS_t u_t - e^{g_t} S_{t-1} dv_t, \\
        d\beta_t &= (v_t - e^{g_t} S_{t-1}^\top k_t) \cdot dS_t^\top k_t, \qquad
        dg_t = \langle e^{g_t} S_{t-1},\; dS_t - k_t dv_t^\top \rangle

    where `grad_state` is added to :math:`dS` of the last token. Without `beta`,
    :math:`u_t = v_t` and :math:`dv_t = dS_t^\top k_t`, and the terms with
    :math:`- k_t dv_t^\top` and :math:`- e^{g_t} S_{t-1} dv_t` are absent.

    Parameters
    ----------
    grad_output : array_like, shape (..., heads, q_len, value_dim)
        The gradient of the loss with respect to the output. A float64 array is rounded if the call
        computes in float32.
    query, key, value, decay, beta, state, scale, starts
        As passed to `linear_attention`.
    grad_state : array_like, shape (..., kv_heads, head_dim, value_dim), optional
        The gradient of the loss with respect to the returned state, if the loss depends on it.
        Default: zero.
    threads : int, optional
        Maximum number of threads. Default: see `set_num_threads`. The bits of the result do not
        depend on it.

    Returns
    -------
    LinearAttentionGradients
        Named tuple of `query`, `key`, `value`, `decay`, `beta` and `state`.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ValueError
        If shapes disagree, or a number is out of range.
    MemoryError
        If a result or the workspace cannot be allocated.

    See Also
    --------
    linear_attention : the forward call.

    Notes
    -----
    The states at the starts of all chunks of 64 tokens are computed again, and then the gradients,
    chunk by chunk. A thread keeps these states of one key head, 64 KB for each chunk if head_dim
    and value_dim are 128. Key heads are the unit of work: a call uses at most as many threads as
    the batch has key heads.

    The gradient of a key head is the sum over the query heads that read it. The gradient of an
    input with broadcast axes is the sum over these axes. NaN or inf in a text may show in all
    gradients of the text, but in those of no other text.

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> rng = np.random.default_rng(0)
    >>> query, key, value = rng.standard_normal((3, 4, 100, 16))
    >>> decay = -rng.random((4, 100))
    >>> output = regard.linear_attention(query, key, value, decay=decay)
    >>> grad_output = 2 * output  # of the loss (output ** 2).sum()
    >>> gradients = regard.linear_attention_backward(grad_output, query, key, value, decay=decay)
    >>> gradients.key.shape, gradients.decay.shape, gradients.beta
    ((4, 100, 16), (4, 100), None)

    The loss decreases along the negative gradient:

    >>> smaller = regard.linear_attention(
    ...     query, key, value - 0.01 * gradients.value, decay=decay
    ... )
    >>> bool((smaller**2).sum() < (output**2).sum())
    True
    """
    if options:
        check_options("linear_attention_backward", options, ())
    if starts is not None:
        starts = readable("starts", starts)
    call = _core.linear_attention_backward
    inputs = [query, key, value, decay, beta, state]
    results = call(grad_output, *inputs, scale, starts, grad_state, threads)
    dtypes: list[Any] = [None] * len(inputs)
    if results is NotImplemented:
        stored = stored_inputs(query, key, value, decay=decay, beta=beta, state=state)
        dtypes = [None if x is None else x.dtype for x in stored]
        given = computed_inputs(stored)
        (grad_output,) = as_stored_arrays(grad_output=grad_output)
        grad_output = as_computed(grad_output, *given[:3])
        if grad_state is not None:
            (grad_state,) = as_stored_arrays(grad_state=grad_state)
            grad_state = as_computed(grad_state, *given[:3])
        results = call(grad_output, *given, scale, starts, grad_state, threads)
    gradients: list[Any] = [
        None if found is None else summed_to(found[0], found[1].shape, dtype or found[1].dtype)
        for found, dtype in zip(results, dtypes, strict=True)
    ]
    return LinearAttentionGradients(*gradients)
