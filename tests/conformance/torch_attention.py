"""Attention in PyTorch: regard behind its autograd, and the formula that its autograd derives.

A test module that imports this one is skipped where PyTorch is not installed.
"""

import numpy as np
import pytest

import regard
from gradient_reference import offset_of
from reference import lay_out

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: pip install '.[conformance]'"
)
INPUTS = ("query", "key", "value", "mask", "alibi_slopes", "sinks")


class Attention(torch.autograd.Function):
    """The output and lse of regard's forward call, whose derivatives are regard's too.

    It takes the six inputs in order, None for those that are not there, and the options. A bool
    mask is an option, also if the float one beside it is an input.
    """

    @staticmethod
    def forward(*given):
        *inputs, options = given
        arrays, words = in_our_words(inputs, options)
        results = regard.scaled_dot_product_attention(*arrays, **words, return_lse=True)
        return tuple(map(torch.from_numpy, results))

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, ctx.options = inputs
        ctx.save_for_backward(*tensors, *output)
        ctx.save_for_forward(*tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, grad_output, grad_lse):
        *inputs, output, lse = ctx.saved_tensors
        if grad_output is None:
            grad_output = torch.zeros_like(output)
        wanted = [n for n, w in zip(INPUTS, ctx.needs_input_grad, strict=False) if w]
        given = grad_output, grad_lse, *inputs, output, lse, wanted, ctx.options
        return *Gradients.apply(*given), None

    @staticmethod
    def jvp(ctx, *tangents):
        return along(ctx.saved_tensors, tangents, ctx.options)


class Gradients(torch.autograd.Function):
    """Regard's gradients, and theirs. The output and lse count as functions of the inputs there.

    The gradient of `grad_lse` is the derivative of lse along the cotangents, because <cotangents,
    gradients> is <derivative of the output, grad_output> + <derivative of lse, grad_lse>.
    """

    @staticmethod
    def forward(ctx, grad_output, grad_lse, *given):
        *inputs, output, lse, wanted, ctx.options = given
        ctx.save_for_backward(grad_output, grad_lse, *inputs, output, lse)
        ctx.set_materialize_grads(False)
        arrays, words = in_our_words(inputs, ctx.options)
        results = regard.scaled_dot_product_attention_backward(
            as_array(grad_output),
            *arrays,
            as_array(output),
            as_array(lse),
            **words,
            grad_lse=as_array(grad_lse),
            with_respect_to=wanted,
        )
        return tuple(None if array is None else torch.from_numpy(array) for array in results)

    @staticmethod
    def backward(ctx, *cotangents):
        if any(ctx.needs_input_grad[5:8]):
            raise NotImplementedError("double gradients take mask, slopes and sinks as constants")
        grad_output, grad_lse, *inputs, output, lse = ctx.saved_tensors
        arrays, words = in_our_words(inputs, ctx.options)
        results = regard.scaled_dot_product_attention_double_backward(
            *map(as_array, cotangents[:3]),
            as_array(grad_output),
            *arrays,
            as_array(output),
            as_array(lse),
            **words,
            grad_lse=as_array(grad_lse),
        )
        of_output, *of_inputs = map(torch.from_numpy, results)
        of_lse = None if grad_lse is None else along(inputs, cotangents, ctx.options)[1]
        return of_output, of_lse, *of_inputs, *(None,) * 7


def along(inputs, tangents, options):
    """The derivatives of the output and lse."""
    if any(tangent is not None for tangent in tangents[3:]):
        raise NotImplementedError("only query, key and value have tangents")
    arrays, words = in_our_words(inputs, options)
    _, of_output, _, of_lse = regard.scaled_dot_product_attention_jvp(
        *arrays, *map(as_array, tangents[:3]), **words, return_lse=True
    )
    return torch.from_numpy(of_output), torch.from_numpy(of_lse)


def in_our_words(inputs, options):
    """The three arrays of a call, and its options."""
    *arrays, mask, alibi_slopes, sinks = map(as_array, inputs)
    shown = options.get("mask")
    if mask is None:
        mask = shown
    elif shown is not None:
        mask = shown, mask
    return arrays, options | {"mask": mask, "alibi_slopes": alibi_slopes, "sinks": sinks}


def as_array(tensor):
    return None if tensor is None else tensor.detach().numpy()


def as_tensors(problem, precision=torch.float64):
    """The six inputs of a problem, None for those that are not there."""
    arrays = map(problem.inputs.get, INPUTS)
    # PyTorch wants arrays that it may write to, and knows no bfloat16 of NumPy.
    return [None if x is None else torch.tensor(x.astype(np.float64)).to(precision) for x in arrays]


def other_options(problem):
    """What a problem's call takes beside the six inputs."""
    options = {k: v for k, v in problem.options.items() if k not in INPUTS[3:]}
    mask = problem.options.get("mask")
    if isinstance(mask, tuple):
        options["mask"] = mask[0]
    elif mask is not None and mask.dtype == bool:
        options["mask"] = mask
    return options


def formula(problem, query, key, value, mask, alibi_slopes, sinks):
    """The output and lse of these tensors with a problem's options, as whole matrices.

    The sink is one more column of the scores. A row that sees nothing has a score of 0 there: the
    gradients of its softmax are 0 then, and not NaN.
    """
    seen, distances, factors = _constants(problem)
    is_flat = all(x.ndim == 2 for x in (query, key, value))
    query, key, value = (x if x.ndim > 2 else x[None] for x in (query, key, value))
    heads, kv_heads = query.shape[-3], key.shape[-3]
    key, value = (x.repeat_interleave(heads // max(kv_heads, 1), dim=-3) for x in (key, value))
    scale, softcap = problem.options.get("scale"), problem.options.get("softcap")
    scores = (query.shape[-1] ** -0.5 if scale is None else scale) * (query @ key.mT)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if alibi_slopes is not None:
        scores = scores - alibi_slopes[..., None, None] * distances.to(scores.dtype)
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
    return (output[0], lse[0]) if is_flat else (output, lse)


def _constants(problem):
    """What is seen, how far keys are from queries, and what dropout multiplies the weights by."""
    options = {k: v for k, v in problem.options.items() if not k.startswith("dropout")}
    options |= {"query_offset": offset_of(*problem.arrays[:2], options)}
    options |= {"alibi_slopes": np.ones(()), "sinks": None}  # so that the biases are the distances
    laid = lay_out(*problem.arrays, **options, precision=np.float64)
    factors = np.ones(laid.seen.shape)
    p = problem.options.get("dropout_p", 0)
    if p:
        _, weights = regard.scaled_dot_product_attention(
            *problem.arrays, **problem.options, return_weights=True
        )
        factors = (weights != 0).reshape(laid.seen.shape) / (1 - p)
    return torch.tensor(laid.seen), torch.tensor(laid.alibi), torch.tensor(factors)
