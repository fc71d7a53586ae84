"""The formula of attention in PyTorch operators, which its autograd differentiates.

A test module that imports this module is skipped if PyTorch is not installed.
"""

import numpy as np
import pytest

from reference import solve

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: pip install '.[conformance]'"
)
INPUTS = ("query", "key", "value", "mask", "alibi_slopes", "distance_bias", "sinks")


def as_tensors(problem, precision=torch.float64):
    """Return the inputs of a problem, None for missing inputs."""
    arrays = map(problem.inputs.get, INPUTS)
    # PyTorch needs writable arrays, and does not know NumPy's bfloat16.
    return [None if x is None else torch.tensor(x.astype(np.float64)).to(precision) for x in arrays]


def formula(problem, query, key, value, mask, alibi_slopes, distance_bias, sinks):
    """Return the output and lse of these tensors with a problem's options, as whole matrices.

    The sink is one more column of the scores. In a fully masked row it has a score of 0, so that
    the gradients of the row's softmax are 0, and not NaN.
    """
    solved = solve(*problem.arrays, **problem.options)
    laid, (seen, factors) = solved.laid, map(torch.tensor, (solved.seen, solved.factors))
    scale, softcap, distance = map(torch.tensor, (laid.factor, laid.softcap, laid.distance))
    query, key, value = (x if x.ndim > 2 else x[None] for x in (query, key, value))
    heads, kv_heads = query.shape[-3], key.shape[-3]
    key, value = (x.repeat_interleave(heads // max(kv_heads, 1), dim=-3) for x in (key, value))
    scores = scale * (query @ key.mT)
    finite = torch.where(softcap == torch.inf, 1, softcap)
    scores = torch.where(softcap == torch.inf, scores, finite * torch.tanh(scores / finite))
    if alibi_slopes is not None:
        scores = scores - alibi_slopes[..., None, None] * distance.to(scores.dtype)
    if distance_bias is not None:
        columns = torch.tensor(laid.columns)
        table = distance_bias.expand(*columns.shape[:-2], distance_bias.shape[-1])
        scores = scores + table[..., None, :].expand(*columns.shape[:-1], -1).gather(-1, columns)
    if mask is not None:
        scores = scores + mask
    nothing = scores.new_tensor(-torch.inf)
    scores = torch.where(seen, scores, nothing)
    sinks = nothing.expand(heads) if sinks is None else sinks
    sinks = sinks[:, None, None].expand(*scores.shape[:-1], 1)
    is_empty = ~seen.any(dim=-1, keepdim=True) & (sinks == nothing)
    columns = torch.cat([scores, torch.where(is_empty, 0, sinks)], dim=-1)
    weights = torch.softmax(columns, dim=-1)[..., :-1] * factors.to(scores.dtype)
    output = weights @ value
    lse = torch.where(is_empty[..., 0], nothing, torch.logsumexp(columns, dim=-1))
    return (output[0], lse[0]) if solved.is_flat else (output, lse)
