"""JAX's attention, whose layout is (batch, length, heads, head_dim), mode by mode.

It computes in float32 and nothing wider, so it and regard are compared with the oracle's limits:
two results within a limit of the exact one differ by at most two limits. They differ on purpose for
fully masked queries (JAX returns the mean of the values, regard 0). No case has such a row, except
the padding queries that JAX sets to 0 and whose rows mean nothing.
"""

import dataclasses
import functools
import zlib

import numpy as np
import pytest

import error_limits
import gradient_reference
import reference
import regard
from error_limits import judge
from problem import Problem, drawn

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Mode:
    """Options named as in `jax.nn.dot_product_attention`; shapes stand for drawn arrays."""

    name: str
    query: Shape = (2, 9, 4, 8)
    key: Shape = (2, 9, 4, 8)
    bias: Shape | None = None
    mask: Shape | None = None
    is_causal: bool = False
    scale: float | None = None
    query_seq_lengths: tuple | None = None
    key_value_seq_lengths: tuple | None = None
    local_window_size: int | tuple | None = None

    def build(self):
        random = np.random.default_rng(zlib.crc32(self.name.encode()))
        shapes = self.query, self.key, self.key
        arrays = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
        options = {}
        if self.bias is not None:
            options["bias"] = random.standard_normal(self.bias).astype(np.float32)
        if self.mask is not None:
            options["mask"] = random.random(self.mask) < 0.6
            options["mask"][..., 0] = True  # the key that every window and causality show
            if self.local_window_size is not None:
                options["mask"] |= np.eye(*self.mask[-2:], dtype=bool)
        if self.is_causal:
            options["is_causal"] = True
        if self.scale is not None:
            options["scale"] = self.scale
        for name in ("query_seq_lengths", "key_value_seq_lengths"):
            if getattr(self, name) is not None:
                options[name] = np.array(getattr(self, name), np.int32)
        if self.local_window_size is not None:
            options["local_window_size"] = self.local_window_size
        return arrays, options


def in_our_words(options):
    """Translate the options of JAX's function to regard's, except `query_seq_lengths`."""
    options = dict(options)
    bias, mask = options.pop("bias", None), options.pop("mask", None)
    if bias is not None or mask is not None:
        given = [x for x in (mask, bias) if x is not None]
        options["mask"] = tuple(given) if len(given) == 2 else given[0]
    window = options.pop("local_window_size", None)
    if window is not None:  # around position i itself: query_offset stays 0
        options["window"] = (window, window) if isinstance(window, int) else window
    options.pop("query_seq_lengths", None)
    lengths = options.pop("key_value_seq_lengths", None)
    return options if lengths is None else options | {"key_lengths": lengths}


SHORT, LONG = (2, 5, 4, 8), (2, 12, 4, 8)
MODES = [
    Mode("plain-cross", query=SHORT, key=LONG),
    Mode("bias-of-heads", query=SHORT, key=LONG, bias=(1, 4, 1, 12)),
    Mode("custom-of-keys", mask=(2, 1, 1, 9)),
    Mode("causal-wide", query=SHORT, key=LONG, is_causal=True),
    Mode("causal-tall", query=LONG, key=SHORT, is_causal=True),
    Mode("custom-causal", mask=(2, 1, 9, 9), is_causal=True),
    Mode("without-batch", query=(9, 4, 8), key=(7, 2, 8), is_causal=True),
    Mode("group-of-all", query=(2, 9, 4, 8), key=(2, 7, 1, 8), bias=(2, 4, 9, 7)),
    Mode("padding", query=SHORT, key=LONG, query_seq_lengths=(5, 2), key_value_seq_lengths=(1, 7)),
    Mode("padding-causal", is_causal=True, query_seq_lengths=(6, 9), key_value_seq_lengths=(6, 9)),
    Mode("padding-bias-group", key=(2, 9, 2, 8), bias=(2, 4, 9, 9), key_value_seq_lengths=(2, 9)),
    Mode("window-of-itself", local_window_size=(0, 0)),
    Mode("window-int", local_window_size=2),
    Mode("window-causal-wide", query=SHORT, key=LONG, is_causal=True, local_window_size=(2, 0)),
    Mode("window-custom", mask=(1, 4, 9, 9), local_window_size=(2, 1)),
    Mode(
        "everything",
        query=(2, 9, 6, 8),
        key=(2, 9, 3, 8),
        bias=(2, 6, 9, 9),
        mask=(1, 1, 9, 9),
        is_causal=True,
        scale=0.7,
        query_seq_lengths=(7, 9),
        key_value_seq_lengths=(9, 8),
        local_window_size=(8, 1),
    ),
]


def problem_of(mode):
    """Return regard's problem, and which queries mean something: JAX sets the output of others to
    0."""
    arrays, options = mode.build()
    arrays = [swapped(x) for x in arrays]
    words = in_our_words(options)
    rows = np.ones(arrays[0].shape[:-1], bool)
    if "query_seq_lengths" in options:
        rows &= np.arange(rows.shape[-1]) < options["query_seq_lengths"][:, None, None]
    grad_output = rows[..., None] * drawn(arrays[0].shape, np.float32)
    return Problem(*arrays, words, grad_output, np.zeros(rows.shape, np.float32)), rows


def swapped(array):
    """Return (batch, length, heads, dim) in regard's order, or the reverse, as a view."""
    return array.swapaxes(-3, -2)


def directions_of(problem):
    return [drawn(x.shape, np.float32, 3 + i) for i, x in enumerate(problem.arrays)]


@functools.cache
def of_jax(mode):
    """Return JAX's output, lse, gradients by name and tangent of the output.

    They are compiled together: operation by operation they take seconds.
    """
    jax = pytest.importorskip("jax", reason="pip install '.[conformance]'")
    arrays, options = mode.build()
    bias = options.pop("bias", None)
    inputs = dict(zip(("query", "key", "value"), arrays, strict=True))
    if bias is not None:
        inputs["bias"] = bias
    problem, _ = problem_of(mode)
    directions = tuple(map(swapped, directions_of(problem)))

    def attention(inputs):
        return jax.nn.dot_product_attention(**inputs, **options)

    @jax.jit
    def everything():
        _, pull = jax.vjp(attention, inputs)
        three = [inputs[name] for name in ("query", "key", "value")]
        _, tangent = jax.jvp(
            lambda *three: attention(inputs | dict(zip(inputs, three, strict=False))),
            tuple(three), directions,
        )  # fmt: skip
        results = jax.nn.dot_product_attention(**inputs, **options, return_residual=True)
        return *results, pull(swapped(problem.grad_output))[0], tangent

    output, lse, gradients, tangent = jax.tree.map(np.asarray, everything())
    found = {n: swapped(x) if n != "bias" else x for n, x in gradients.items()}
    if "bias" in found:
        found["mask"] = found.pop("bias")
    return swapped(output), lse.swapaxes(-2, -1), found, swapped(tangent)


def assert_alike(name, actual, theirs, limit):
    assert actual.dtype == theirs.dtype, name
    assert actual.shape == theirs.shape, name
    off = reference.error(actual, theirs)
    assert off <= 2 * limit, f"{name}: differs by {off:.3g}, allowed {2 * limit:.3g}"


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_jax(mode, target):
    """JAX's lse has no derivatives."""
    output, lse, gradients, tangent = of_jax(mode)
    problem, rows = problem_of(mode)
    want, attended = error_limits.expected(*problem.arrays, **problem.options), problem.attend()
    assert want.seen.any(axis=-1).all()
    assert_alike("output", attended[0][rows], output[rows], want.limit.output)
    assert_alike("lse", attended[1][rows], lse[rows], want.limit.lse)
    actual, judged = problem.gradients(), problem.expected()
    for name, theirs in gradients.items():
        assert_alike(name, getattr(actual, name), theirs, getattr(judged, name).limit)
    arrays = *problem.arrays, *directions_of(problem)
    _, along = regard.scaled_dot_product_attention_jvp(*arrays, **problem.options)
    judged = judge(gradient_reference.jvp, problem, *arrays).tangent_output
    assert_alike("tangent", along[rows], tangent[rows], judged.limit)
