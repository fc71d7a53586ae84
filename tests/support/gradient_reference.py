"""The gradients of attention, its derivatives along tangents, and the gradients of its gradients,
as whole arrays. They are the oracle for the fused functions.

With S the scores before the cap and the biases, P the weights before dropout, Z the dropout factors
of the weights, O the output, L the lse, G the gradient of the output and c the scale:

    O = (P Z) V                       D = rowsum(G O) - grad_lse
    dP = Z (G V^T)                    dS = P (dP - D)
    dQ = c (dS cap'(S)) K             dK = c (dS cap'(S))^T Q             dV = (P Z)^T G

Everything is laid out in full first (one key head for each query head, one batch, all scores), and
the gradients are summed over what was repeated. Hidden elements are removed by selection: they may
be NaN and change nothing.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from philox import dropout_factors
from reference import Laid, Result, lay_out, movement, score_movement


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


@dataclasses.dataclass(frozen=True)
class Solved:
    """A forward pass with every score. Arrays of rows have shape (..., q_len, 1).

    Values subtract, and count unchanged. Magnitudes are the same arrays without their signs, and
    the same formulas with a plus for every minus; the contribution of a row to a sum counts by the
    share of it that rounding may move. The result then bounds the errors of any program.
    """

    laid: Laid
    weights: np.ndarray
    factors: np.ndarray  # of dropout
    slope: np.ndarray  # the first derivative of the cap
    bend: np.ndarray  # the second one
    distance: np.ndarray  # |p - j|
    output: np.ndarray
    lse: np.ndarray
    sink_weight: np.ndarray
    is_flat: bool
    less: np.ufunc = np.subtract
    share: np.ndarray | float = 1.0

    @property
    def seen(self):
        return self.laid.seen

    @property
    def sees_any(self):
        return self.seen.any(axis=-1, keepdims=True)

    @property
    def precision(self):
        return self.weights.dtype.type

    @property
    def is_magnitude(self):
        return self.less is np.add

    def read(self, array, columns=1):
        """Return an array with a row for each query: the gradient of the output, or of lse."""
        array = np.asarray(array).astype(self.precision)
        array = array.reshape((*self.seen.shape[:-1], columns))
        return np.abs(array) if self.is_magnitude else array

    def read_like_inputs(self, query, key, value):
        """Return arrays with the shapes of the inputs, laid out like the inputs."""
        laid = lay_out(query, key, value, precision=self.precision)
        three = laid.query, laid.key, laid.value
        return map(np.abs, three) if self.is_magnitude else three

    def over_keys(self, a, b):
        return _sum_of_seen(self.seen, a * self.share, b)

    def over_queries(self, a, b):
        return _sum_of_seen(*(x.swapaxes(-1, -2) for x in (self.seen, a * self.share)), b)

    def row_sum(self, scores):
        return np.sum(scores, axis=-1, keepdims=True, where=self.seen)

    def shaped(self, rows):
        """Return rows as the caller gets them: without a heads axis if no input had one."""
        return rows[0] if self.is_flat else rows


def _sum_of_seen(seen, a, b):
    """Return sum_j a[i, j] b[j] over the j that i sees: the others are not read."""
    a = np.where(seen, a, 0)
    if np.isfinite(b).all():
        return a @ b
    return np.where(seen[..., None], a[..., None] * b[..., None, :, :], 0).sum(axis=-2)


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


def offset_of(query, key, options):
    """Return the query_offset of a call, with "end" replaced by numbers."""
    offset = options.get("query_offset", 0)
    if not isinstance(offset, str):
        return offset
    lengths = options.get("key_lengths")
    return np.asarray(key.shape[-2] if lengths is None else lengths) - query.shape[-2]


def solve(
    query,
    key,
    value,
    mask=None,
    *,
    dropout_p=0.0,
    dropout_seed=None,
    dropout_origin=(0, 0, 0),
    entries=None,
    precision=np.float64,
    stored=None,
    magnitudes=None,
    **options,
):
    """Compute the forward pass in this precision, with the output rounded to the type `stored`, if
    any.

    `entries` are the numbers by which dropout identifies the batch entries. With `magnitudes`, the
    eps of the judged arithmetic, everything is a magnitude (see `Solved`).
    """
    options["query_offset"] = offset_of(query, key, options)
    laid = lay_out(query, key, value, mask, **options, precision=precision)
    seen, sinks = laid.seen, laid.sinks[:, None, None]
    with np.errstate(all="ignore"):
        scores = laid.factor * (laid.query @ _columns(laid.key))
        tanh = np.tanh(scores / laid.softcap)
        total = laid.cap(scores) - laid.alibi + laid.bias
        top = np.max(total, axis=-1, keepdims=True, initial=-np.inf, where=seen)
        top = np.maximum(top, sinks)
        is_empty = ~seen.any(axis=-1, keepdims=True) & (sinks == -np.inf)
        top = np.where(is_empty, 0, top)
        terms = np.where(seen, np.exp(total - top), 0).sum(axis=-1, keepdims=True)
        lse = top + np.log(terms + np.exp(sinks - top))
        weights = np.where(seen, np.exp(total - lse), 0)
        sink_weight = np.where(sinks > -np.inf, np.exp(sinks - lse), 0)
        slope = 1 - tanh**2
        bend = -2 / laid.softcap * tanh * slope
    factors = np.ones(seen.shape, precision)
    if dropout_p > 0:
        places = {"query_offset": options["query_offset"], "entries": entries}
        places |= {"origin": dropout_origin}
        shape, numbers = seen.shape, {"p": dropout_p, "seed": dropout_seed}
        factors = dropout_factors(shape, **numbers, precision=precision, **places)
    output = _sum_of_seen(seen, weights * factors, laid.value)
    if stored is not None:
        output = output.astype(stored).astype(precision)
    solved = Solved(
        laid,
        weights,
        factors,
        slope,
        bend,
        _distances(seen.shape, options["query_offset"]).astype(precision),
        output,
        lse,
        sink_weight,
        is_flat=all(np.ndim(x) == 2 for x in (query, key, value)),
    )
    return solved if magnitudes is None else _magnitudes(solved, magnitudes)


def _distances(shape, query_offset):
    batch, (q_len, kv_len) = shape[:-3], shape[-2:]
    offset = np.broadcast_to(np.asarray(query_offset, np.int64), batch)[..., None, None, None]
    ahead = np.arange(kv_len) - np.arange(q_len)[:, None] - offset
    return np.broadcast_to(np.abs(ahead), shape)


def _magnitudes(solved, eps):
    """Return the share of each row's weights that rounding may move: twice the movement of the
    scores (see `reference.movement`), since lse moves with them; 2 eps of lse, which is a float,
    and from which the scores are subtracted; and 8 eps for exp, the products, differences and sums.

    The derivatives of the cap move with its argument (see `reference.score_movement`), and lose 4
    eps in 1 - tanh^2.
    """
    laid, precision = solved.laid, solved.precision
    moved = movement(laid, solved.weights, eps)[..., None]
    share = 2 * moved + eps * (8 + 2 * np.nan_to_num(np.abs(solved.lse), posinf=0))
    query, key, value = (np.abs(x) for x in (laid.query, laid.key, laid.value))
    factor, slope, bend = np.abs(laid.factor), np.abs(solved.slope), np.abs(solved.bend)
    if np.isfinite(laid.softcap).any():
        moved = score_movement(laid, eps)
        turn = (2 * slope**2 + 4 * (1 - slope) * slope) / laid.softcap**2
        slope = slope + (bend * moved + 4 * eps) / share
        bend = bend + (turn * moved + 4 * eps / laid.softcap) / share
    return dataclasses.replace(
        solved,
        laid=laid._replace(query=query, key=key, value=value, factor=factor.astype(precision)),
        slope=slope,
        bend=bend,
        output=_sum_of_seen(laid.seen, solved.weights * solved.factors, value),
        lse=np.ones_like(solved.lse),
        less=np.add,
        share=share,
    )


def forward(query, key, value, mask=None, **options):
    """Compute output, weights and lse. Dropout changes the weights, but not lse."""
    s = solve(query, key, value, mask, **options)
    weights = np.where(s.seen, s.weights * s.factors * s.share, 0)
    return Result(*map(s.shaped, (s.output * s.share, weights, (s.lse * s.share)[..., 0])))


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
        has_sink = s.laid.sinks[:, None, None] > -np.inf
        of_sinks = np.where(has_sink, s.sink_weight * inner * s.share, 0).sum(axis=(-2, -1))
        more = {}
        for part in mask if isinstance(mask, tuple) else (mask,):
            if part is not None and part.dtype != bool:
                more["mask"] = _folded(of_scores, part.shape)
        if options.get("alibi_slopes") is not None:
            of_slopes = s.less(0, (of_scores * s.distance).sum(axis=(-2, -1)))
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
