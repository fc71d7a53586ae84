"""JAX's and Keras' attention, whose layout is (batch, length, heads, head_dim), mode by mode.

They compute in float32 and nothing wider, so they and regard are compared with the oracle's limits:
two results within a limit of the exact one differ by at most two limits. They differ on purpose for
fully masked queries (JAX and Keras return the mean of the values, regard 0). No case has such a
row, except the padding queries that JAX sets to 0 and whose rows mean nothing.
"""

import dataclasses
import functools
import zlib

import numpy as np
import pytest

import reference
import regard

Shape = tuple[int, ...]
WHERE = "not installed: pip install '.[conformance]'"


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
    if bias is not None and mask is not None:
        options["mask"] = np.where(mask, bias, np.float32(-np.inf))
    elif bias is not None or mask is not None:
        options["mask"] = mask if bias is None else bias
    window = options.pop("local_window_size", None)
    if window is not None:  # around position i itself: query_offset stays 0
        options["window"] = (window, window) if isinstance(window, int) else window
    options.pop("query_seq_lengths", None)
    lengths = options.pop("key_value_seq_lengths", None)
    return options if lengths is None else options | {"key_lengths": lengths}


SHORT, LONG = (2, 5, 4, 8), (2, 12, 4, 8)
KERAS = [
    Mode("plain"),
    Mode("plain-cross", query=SHORT, key=LONG),
    Mode("scale", scale=0.3),
    Mode("bias", bias=(2, 4, 9, 9)),
    Mode("bias-of-all", bias=(1, 1, 9, 9)),
    Mode("bias-of-heads", query=SHORT, key=LONG, bias=(1, 4, 1, 12)),
    Mode("custom", mask=(2, 4, 9, 9)),
    Mode("custom-of-keys", mask=(2, 1, 1, 9)),
    Mode("causal", is_causal=True),
    Mode("causal-wide", query=SHORT, key=LONG, is_causal=True),
    Mode("causal-tall", query=LONG, key=SHORT, is_causal=True),
    Mode("bias-causal", bias=(2, 4, 9, 9), is_causal=True),
    Mode("bias-custom", bias=(2, 4, 9, 9), mask=(1, 1, 9, 9)),
    Mode("custom-causal", mask=(2, 1, 9, 9), is_causal=True),
    Mode("bias-custom-causal-scale", bias=(1, 4, 9, 9), mask=(2, 1, 9, 9), is_causal=True, scale=1),
]
JAX = [
    *KERAS,
    Mode("without-batch", query=(9, 4, 8), key=(7, 2, 8), is_causal=True),
    Mode("group", query=(2, 9, 6, 8), key=(2, 7, 2, 8)),
    Mode("group-of-all", query=(2, 9, 4, 8), key=(2, 7, 1, 8), bias=(2, 4, 9, 7)),
    Mode("group-custom-causal", key=(2, 9, 2, 8), mask=(1, 4, 9, 9), is_causal=True),
    Mode("padding-keys", key_value_seq_lengths=(9, 4)),
    Mode("padding-queries", query_seq_lengths=(3, 9)),
    Mode("padding", query=SHORT, key=LONG, query_seq_lengths=(5, 2), key_value_seq_lengths=(1, 7)),
    Mode("padding-causal", is_causal=True, query_seq_lengths=(6, 9), key_value_seq_lengths=(6, 9)),
    Mode("padding-custom", mask=(2, 1, 9, 9), key_value_seq_lengths=(8, 3)),
    Mode("padding-bias-group", key=(2, 9, 2, 8), bias=(2, 4, 9, 9), key_value_seq_lengths=(2, 9)),
    Mode("window", local_window_size=(3, 2)),
    Mode("window-of-itself", local_window_size=(0, 0)),
    Mode("window-ahead", local_window_size=(0, 4)),
    Mode("window-int", local_window_size=2),
    Mode("window-wide", query=SHORT, key=LONG, local_window_size=(1, 1)),
    Mode("window-causal", is_causal=True, local_window_size=(2, 2)),
    Mode("window-causal-wide", query=SHORT, key=LONG, is_causal=True, local_window_size=(2, 0)),
    Mode("window-custom", mask=(1, 4, 9, 9), local_window_size=(2, 1)),
    Mode("window-bias-causal", bias=(2, 1, 9, 9), is_causal=True, local_window_size=4),
    Mode("window-padding", local_window_size=(8, 1), key_value_seq_lengths=(9, 5)),
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


@pytest.fixture(scope="session")
def jax_attention():
    jax = pytest.importorskip("jax", reason=f"JAX is {WHERE}")

    @functools.cache
    def attention(mode):
        arrays, options = mode.build()
        results = jax.nn.dot_product_attention(*arrays, **options, return_residual=True)
        output, lse = (np.asarray(x) for x in results)
        return output, lse

    return attention


@pytest.fixture(scope="session")
def keras_attention(tmp_path_factory):
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("KERAS_BACKEND", "numpy")
        environment.setenv("KERAS_HOME", str(tmp_path_factory.mktemp("keras")))
        keras = pytest.importorskip("keras", reason=f"Keras is {WHERE}")
    assert keras.backend.backend() == "numpy"

    @functools.cache
    def attention(mode):
        arrays, options = mode.build()
        return (keras.ops.dot_product_attention(*arrays, **options),)

    return attention


@functools.cache
def problem(mode):
    """Return regard's arrays and options, the oracle's result, and which rows mean something."""
    arrays, options = mode.build()
    arrays = [x.swapaxes(-3, -2) for x in arrays]  # views: regard reads any strides
    words = in_our_words(options)
    want = reference.expected(*arrays, **words)
    assert want.seen.any(axis=-1).all()
    rows = np.ones(want.exact.lse.shape, bool)
    if "query_seq_lengths" in options:
        rows &= np.arange(rows.shape[-1]) < options["query_seq_lengths"][:, None, None]
    return arrays, words, want, rows


def check(theirs, mode):
    arrays, words, want, rows = problem(mode)
    ours = regard.scaled_dot_product_attention(*arrays, **words, return_lse=True)
    for name, actual, other in zip(("output", "lse"), ours, theirs, strict=False):
        other = other.swapaxes(*(-3, -2) if name == "output" else (-2, -1))
        limit = getattr(want.limit, name)
        assert actual.shape == other.shape
        assert actual.dtype == other.dtype
        off = reference.error(actual[rows], other[rows])
        assert off <= 2 * limit, f"{name}: differs by {off:.3g}, allowed {2 * limit:.3g}"


@pytest.mark.parametrize("mode", JAX, ids=lambda mode: mode.name)
def test_jax(mode, target, jax_attention):
    check(jax_attention(mode), mode)


@pytest.mark.parametrize("mode", KERAS, ids=lambda mode: mode.name)
def test_keras(mode, target, keras_attention):
    check(keras_attention(mode), mode)
