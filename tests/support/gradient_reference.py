"""The gradients of attention, its derivatives along tangents, and the gradients of its gradients,
as whole arrays. They are the oracle for the fused functions.

With S the scores before the cap and the biases, P the weights before dropout, Z the dropout factors
of the weights, O the output, L the lse, G the gradient of the output and c the scale:

    O = (P Z) V                       D = rowsum(G O) - grad_lse
    dP = Z (G V^T)                    dS = P (dP - D)
    dQ = c (dS cap'(S)) K             dK = c (dS cap'(S))^T Q             dV = (P Z)^T G

The gradients are summed over what was laid out repeatedly.
"""

from typing import NamedTuple

import numpy as np

from reference import solve


class Gradients(NamedTuple):
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    mask: np.ndarray | None = None
    alibi_slopes: np.ndarray | None = None
    distance_bias: np.ndarray | None = None
    sinks: np.ndarray | None = None


class Tangents(NamedTuple):
    output: np.ndarray
    tangent_output: np.ndarray
    lse: np.ndarray
    tangent_lse: np.ndarray


class DoubleGradients(NamedTuple):
    grad_output: np.ndarray
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray


def _columns(matrix):
    return matrix.swapaxes(-1, -2)


def _folded(full, shape):
    """Sum over what was repeated: the heads of a group, and axes that are 1 or missing."""
    if len(shape) > 2 and shape[-3] not in (1, full.shape[-3]):
        group = full.shape[-3] // shape[-3]
        full = full.reshape((*full.shape[:-3], shape[-3], group, *full.shape[-2:])).sum(axis=-3)
    return _folded_axes(full, shape)


def _folded_axes(full, shape):
    """Sum over axes that are 1 or missing."""
    full = full.sum(axis=tuple(range(full.ndim - len(shape))))
    ones = tuple(i for i, n in enumerate(shape) if n == 1 and full.shape[i] != 1)
    return full.sum(axis=ones, keepdims=True).reshape(shape)


def _of_scores(s, grad_output, grad_lse):
    """Return G, dP, D and dS. A fully masked row has no output that could have a gradient."""
    grads = s.read(grad_output, s.laid.value.shape[-1])
    grad_sums = 0 if grad_lse is None else s.read(grad_lse)
    inner = np.where(s.sees_any, (grads * s.output).sum(axis=-1, keepdims=True), 0)
    inner = s.less(inner, grad_sums)
    of_weights = s.factors * (grads @ _columns(s.laid.value))
    return grads, of_weights, inner, s.weights * s.less(of_weights, inner)


def backward(grad_output, query, key, value, mask=None, *, grad_lse=None, **options):
    """Return the gradients with respect to all inputs that have one."""
    with np.errstate(all="ignore"):
        s = solve(query, key, value, mask, **options)
        grads, _, inner, of_scores = _of_scores(s, grad_output, grad_lse)
        of_products = s.laid.factor * of_scores * s.slope
        gradients = Gradients(
            _folded(s.over_keys(of_products, s.laid.key), np.shape(query)),
            _folded(s.over_queries(of_products, s.laid.query), np.shape(key)),
            _folded(s.over_queries(s.weights * s.factors, grads), np.shape(value)),
        )
        of_scores = np.where(s.seen, of_scores * s.share, 0)
        has_sink = s.laid.sinks.real > -np.inf
        of_sinks = np.where(has_sink, s.sink_weight * inner * s.share, 0).sum(axis=(-2, -1))
        more = {}
        for part in mask if isinstance(mask, tuple) else (mask,):
            if part is not None and part.dtype != bool:
                more["mask"] = _folded(of_scores, part.shape)
        if options.get("alibi_slopes") is not None:
            of_slopes = s.less(0, (of_scores * s.laid.distance).sum(axis=(-2, -1)))
            more["alibi_slopes"] = _folded(of_slopes, np.shape(options["alibi_slopes"]))
        if options.get("distance_bias") is not None:
            shape = np.shape(options["distance_bias"])
            full = np.zeros((*s.laid.columns.shape[:-2], shape[-1]), of_scores.dtype)
            for head in np.ndindex(full.shape[:-1]):
                np.add.at(full[head], s.laid.columns[head].ravel(), of_scores[head].ravel())
            more["distance_bias"] = _folded_axes(full, shape)
        if options.get("sinks") is not None:
            more["sinks"] = _folded(s.less(0, of_sinks), np.shape(options["sinks"]))
    return gradients._replace(**more)


def _along(s, to_query, to_key):
    """Return how scores move, before and after the cap, and how lse moves, if query and key move
    along these."""
    turned = to_query @ _columns(s.laid.key) + s.laid.query @ _columns(to_key)
    scaled = s.laid.factor * turned
    return scaled, s.slope * scaled, s.row_sum(s.weights * s.slope * scaled)


def jvp(query, key, value, tangent_query, tangent_key, tangent_value, mask=None, **options):
    """Return the output, lse, and their derivatives as the inputs move along the tangents.

    T = c cap'(S) (tQ K^T + Q tK^T), r = rowsum(P T): tO = (P Z T) V - r O + (P Z) tV and tL = r.
    """
    with np.errstate(all="ignore"):
        s = solve(query, key, value, mask, **options)
        to_query, to_key, to_value = s.read_like_inputs(tangent_query, tangent_key, tangent_value)
        _, of_scores, of_lse = _along(s, to_query, to_key)
        of_output = _output_along(s, of_scores, of_lse, to_value)
        results = s.output * s.share, of_output, s.lse * s.share, of_lse * s.share
    output, of_output, lse, of_lse = map(s.shaped, results)
    return Tangents(output, of_output, lse[..., 0], of_lse[..., 0])


def _output_along(s, of_scores, of_lse, to_value):
    dropped = s.weights * s.factors
    through_lse = np.where(s.sees_any, s.share * of_lse * s.output, 0)
    moved = s.less(s.over_keys(dropped * of_scores, s.laid.value), through_lse)
    return moved + s.over_keys(dropped, to_value)


def double_backward(
    grad_grad_query,
    grad_grad_key,
    grad_grad_value,
    grad_output,
    query,
    key,
    value,
    mask=None,
    *,
    grad_lse=None,
    **options,
):
    """Return the gradients of <a, dQ> + <b, dK> + <w, dV>, where None stands for zeros: with

        T0 = c (a K^T + Q b^T)        T = cap'(S) T0        r = rowsum(P T)        U = Z (G w^T)
        X0 = (dP - D) T - r dP + U    X = P (X0 - rowsum(P X0)) cap'(S) + dS T0 cap''(S)

    dG = (P Z T) V - r O + (P Z) w                  dQ = c (X K + dS cap'(S) b)
    dV = (P Z (T - r))^T G                          dK = c (X^T Q + (dS cap'(S))^T a)
    """
    given = (grad_grad_query, query), (grad_grad_key, key), (grad_grad_value, value)
    given = [np.zeros(np.shape(like)) if x is None else x for x, like in given]
    with np.errstate(all="ignore"):
        s = solve(query, key, value, mask, **options)
        a, b, w = s.read_like_inputs(*given)
        grads, of_weights, inner, of_scores = _of_scores(s, grad_output, grad_lse)
        straight, along, sums = _along(s, a, b)
        x = s.less(of_weights, inner) * along
        x = s.less(x, sums * of_weights) + s.factors * (grads @ _columns(w))
        x = s.weights * s.less(x, s.row_sum(s.weights * x))
        x = s.laid.factor * (x * s.slope + of_scores * straight * s.bend)
        of_products = s.laid.factor * of_scores * s.slope
        of_value = s.weights * s.factors * s.less(along, sums)
        return DoubleGradients(
            s.shaped(_output_along(s, along, sums, w)),
            _folded(s.over_keys(x, s.laid.key) + s.over_keys(of_products, b), np.shape(query)),
            _folded(
                s.over_queries(x, s.laid.query) + s.over_queries(of_products, a), np.shape(key)
            ),
            _folded(s.over_queries(of_value, grads), np.shape(value)),
        )


def merge_backward(grad_output, outputs, lses, *, grad_lse=None, precision=np.float64):
    """Return the gradients of `merge_attention_states`, for each part. With w = exp(its lse - lse),
    they are w G for its output O, and w (rowsum(G (O - output)) + grad_lse) for its lse. A row of a
    part that saw nothing has no gradient."""
    outputs, lses = ([np.asarray(x).astype(precision) for x in xs] for xs in (outputs, lses))
    grad_output = np.asarray(grad_output).astype(precision)
    grad_lse = precision(0) if grad_lse is None else np.asarray(grad_lse).astype(precision)
    with np.errstate(all="ignore"):
        lse = np.logaddexp.reduce(np.broadcast_arrays(*lses), axis=0)
        blind = [part == -np.inf for part in lses]
        shares = [np.where(b, 0, np.exp(part - lse)) for b, part in zip(blind, lses, strict=True)]
        seen = [np.where(b[..., None], 0, o) for b, o in zip(blind, outputs, strict=True)]
        output = sum(share[..., None] * o for share, o in zip(shares, seen, strict=True))
        grad_outputs, grad_lses = [], []
        for b, share, o in zip(blind, shares, seen, strict=True):
            of_output = np.where(b[..., None], 0, share[..., None] * grad_output)
            of_lse = share * ((grad_output * (o - output)).sum(axis=-1) + grad_lse)
            grad_outputs.append(_folded(of_output, o.shape))
            grad_lses.append(_folded(np.where(b, 0, of_lse), b.shape))
    return grad_outputs, grad_lses
