"""Gradients of gradients, from whole weights in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._attention.dense import scaled_dot_product_attention
from regard._gradients.sums import summed_to

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Array = NDArray[Any]


def double_backward(given: dict[str, Array], options: dict[str, Any]) -> list[Array]:
    r"""Return the gradients with respect to grad_output, query, key and value.

    The gradients of a, b and w are along the gradients of query, key and value. With the weights P,
    the factors Z of dropout, the capped scores' derivatives f and f' and G for grad_output,

    .. math:: T = f\,\mathrm{scale}\,(a\,\mathrm{key}^T + \mathrm{query}\,b^T), \qquad
              r = \mathrm{rowsum}(P T), \qquad dS = P\,(Z\,(G\,\mathrm{value}^T) - D), \\
              W = P\,(T - r), \qquad Y = dS\,(T - r) + P Z\,(G\,w^T), \qquad
              X = f\,(Y - P\,\mathrm{rowsum}(Y)) + f'\,dS\,T / f

    in which a sink is one more key, whose value is 0.
    """
    names = ("query", "key", "value", "grad_output", "output")
    query, key, value, grads, output = (given[name].astype(np.float64) for name in names)
    a, b, w = (given[f"grad_grad_{name}"].astype(np.float64) for name in names[:3])
    dropout = {name: each for name, each in options.items() if name.startswith("dropout")}
    others = {name: each for name, each in options.items() if name not in dropout}
    arrays = query, key, value[..., :0]
    _, weights = scaled_dot_product_attention(*arrays, **others, return_weights=True)
    kept: Any = 1.0
    if dropout.get("dropout_p"):
        _, dropped = scaled_dot_product_attention(*arrays, **options, return_weights=True)
        kept = (dropped != 0) / (1 - dropout["dropout_p"])
    group = query.shape[-3] // max(key.shape[-3], 1) if query.ndim > 2 else 1
    keys, values, moved, w = (_shown(each, weights, group) for each in (key, value, b, w))
    scale = query.shape[-1] ** -0.5 if options.get("scale") is None else options["scale"]
    factor = np.asarray(scale)[..., None, None]
    with np.errstate(all="ignore"):
        tangent = factor * (a @ _flip(keys) + query @ _flip(moved))
        slope: Any = 1.0
        bend: Any = 0.0
        if options.get("softcap") is not None:
            cap = np.asarray(options["softcap"], np.float64)[..., None, None]
            tanh = np.tanh(factor * (query @ _flip(keys)) / cap)
            slope = 1 - tanh**2
            bend = -2 / cap * tanh * slope * tangent
            tangent = slope * tangent
        delta = (grads * output).sum(-1, keepdims=True)
        if "grad_lse" in given:
            delta = delta - given["grad_lse"][..., None]
        seen = weights != 0
        mean = np.where(seen, weights * tangent, 0).sum(-1, keepdims=True)
        centered = np.where(seen, weights * (tangent - mean), 0)
        of_scores = np.where(seen, weights * (kept * (grads @ _flip(values)) - delta), 0)
        along = np.where(seen, weights * kept * (grads @ _flip(w)), 0)
        curved = along + np.where(seen, of_scores * (tangent - mean), 0)
        sink = 1 - weights.sum(-1, keepdims=True) if options.get("sinks") is not None else 0.0
        curved = curved - weights * (curved.sum(-1, keepdims=True) + sink * delta * mean)
        curved, of_scores = slope * curved + bend * of_scores, slope * of_scores
    curved, of_scores = (np.where(seen, factor * each, 0) for each in (curved, of_scores))
    results = {
        "grad_output": (centered * kept) @ values + (weights * kept) @ w,
        "query": curved @ keys + of_scores @ moved,
        "key": _flip(curved) @ query + _flip(of_scores) @ a,
        "value": _flip(centered * kept) @ grads,
    }
    return [_folded(x, given[name].shape, group) for name, x in results.items()]


def _shown(array: Array, weights: Array, group: int) -> Array:
    """Return the rows of a key head for each query head, with 0 for keys that no query sees."""
    rows = np.repeat(array, group, axis=-3) if group > 1 else array
    return np.where((weights != 0).any(axis=-2)[..., None], rows, 0)


def _flip(array: Array) -> Array:
    return array.swapaxes(-1, -2)


def _folded(gradient: Array, shape: Iterable[int], group: int) -> Array:
    """Sum a gradient over the heads of a group, and over broadcast axes."""
    shape = tuple(shape)
    if len(shape) > 2 and group > 1 and gradient.shape[-3] == group * shape[-3]:
        heads = (*gradient.shape[:-3], shape[-3], group, *gradient.shape[-2:])
        gradient = gradient.reshape(heads).sum(axis=-3)
    return summed_to(gradient, shape)
