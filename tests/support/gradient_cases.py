"""The problems whose gradients are tested, and the calls for them."""

import dataclasses
import functools
import zlib

import numpy as np

import cases
import gradient_reference
import regard
from data_kinds import Drawn
from reference import arithmetic, judge


@dataclasses.dataclass(frozen=True)
class GradientProblem(cases.Problem):
    """A problem, and the gradients from which its gradients start. Dropout is among the options."""

    grad_output: np.ndarray
    grad_lse: np.ndarray

    @property
    def inputs(self):
        """Return the inputs with a gradient, by name; for a pair of masks, the float mask."""
        named = dict(zip(("query", "key", "value"), self.arrays, strict=True))
        mask = self.options.get("mask")
        for part in mask if isinstance(mask, tuple) else (mask,):
            if part is not None and part.dtype != bool:
                named["mask"] = part
        more = ("alibi_slopes", "distance_bias", "sinks")
        return named | {name: self.options[name] for name in more if name in self.options}

    def attend(self, **extra):
        """Return the output and lse."""
        options = self.options | {"return_lse": True} | extra
        return regard.scaled_dot_product_attention(*self.arrays, **options)

    def gradients(self, state=None, **extra):
        """Return the gradient of every input that has one. `state` is the forward call's output and
        lse."""
        state = self.attend() if state is None else state
        options = {"grad_lse": self.grad_lse, "with_respect_to": tuple(self.inputs)}
        return regard.scaled_dot_product_attention_backward(
            self.grad_output, *self.arrays, *state, **self.options | options | extra
        )

    def expected(self):
        """Return the exact gradients, and their limits."""
        grads = {"grad_lse": self.grad_lse}
        return judge(gradient_reference.backward, self, self.grad_output, *self.arrays, **grads)

    def whole(self):
        """Return the problem without broadcasting of the arrays or a float mask."""
        arrays = [np.broadcast_to(x, self.batch + x.shape[-3:]).copy() for x in self.arrays]
        shape = (*self.grad_lse.shape, self.key.shape[-2])
        options = self.with_masks(
            lambda mask: mask if mask.dtype == bool else np.broadcast_to(mask, shape).copy()
        )
        return GradientProblem(*arrays, options, self.grad_output, self.grad_lse)

    def entry(self, index):
        alone, grads = super().entry(index), (self.grad_output[index], self.grad_lse[index])
        return GradientProblem(*alone.arrays, alone.options, *grads)

    def rows(self, start, stop):
        some, rows = super().rows(start, stop), slice(start, stop)
        grads = self.grad_output[..., rows, :], self.grad_lse[..., rows]
        return GradientProblem(*some.arrays, some.options, *grads)


def drawn(shape, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class More:
    """A case that the table of `cases` cannot express."""

    name: str
    case: cases.Case
    options: dict

    def build(self, dtype):
        problem = self.case.build(dtype)
        random = np.random.default_rng(zlib.crc32(self.name.encode()))
        drawn = {k: f(random, dtype) if callable(f) else f for k, f in self.options.items()}
        return dataclasses.replace(problem, options=problem.options | drawn)


def gaussian(case):
    """Return the case with Gaussian numbers, whose scores are near 0: there, differences are
    precise."""
    if isinstance(case, More):
        return dataclasses.replace(case, case=gaussian(case.case))
    return dataclasses.replace(case, data=Drawn())


@functools.lru_cache(maxsize=16)
def build(case, dtype, dropout=None):
    """Build the problem of a case. Every second problem has a gradient of lse that matters, and
    every third one dropout, unless `dropout` specifies the probability."""
    problem, number = case.build(dtype), zlib.crc32(case.name.encode())
    options = dict(problem.options)
    if dropout is None:
        dropout = (0.0, 0.0, 0.35)[number % 3]
    if dropout:
        options |= {"dropout_p": dropout, "dropout_seed": number * 2**30 + 7}
        if number % 2:
            options["dropout_origin"] = (number % 7, number % 5, number % 2**34)
    shape = np.broadcast_shapes(*(x.shape[:-3] for x in problem.arrays))
    is_flat = all(x.ndim == 2 for x in problem.arrays)
    heads = problem.query.shape[-3:-2] or (1,)
    shape = (*shape, *(() if is_flat else heads), problem.query.shape[-2])
    grad_output = drawn((*shape, problem.value.shape[-1]), dtype, number)
    grad_lse = (number % 2) * drawn(shape, arithmetic(dtype), number + 1)
    return GradientProblem(*problem.arrays, options, grad_output, grad_lse)
