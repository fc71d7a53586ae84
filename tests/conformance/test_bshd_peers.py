"""JAX's attention, whose layout is (batch, length, heads, head_dim), mode by mode.

It computes in float32 and nothing wider, so it and regard are compared with the oracle's limits:
two results within a limit of the exact one differ by at most two limits. They differ on purpose for
fully masked queries (JAX returns the mean of the values, regard 0). No case has such a row, except
the padding queries that JAX sets to 0 and whose rows mean nothing.
"""

import zlib

import numpy as np
import pytest

import error_limits
import reference
import regard

SHORT, SAME, LONG = (2, 5, 4, 8), (2, 9, 4, 8), (2, 12, 4, 8)
# Query, key and the options of `jax.nn.dot_product_attention`; shapes stand for drawn arrays.
MODES = {
    "plain-cross": (SHORT, LONG, {}),
    "bias-of-heads": (SHORT, LONG, {"bias": (1, 4, 1, 12)}),
    "custom-of-keys": (SAME, SAME, {"mask": (2, 1, 1, 9)}),
    "causal-wide": (SHORT, LONG, {"is_causal": True}),
    "causal-tall": (LONG, SHORT, {"is_causal": True}),
    "custom-causal": (SAME, SAME, {"mask": (2, 1, 9, 9), "is_causal": True}),
    "without-batch": ((9, 4, 8), (7, 2, 8), {"is_causal": True}),
    "group-of-all": (SAME, (2, 7, 1, 8), {"bias": (2, 4, 9, 7)}),
    "padding": (
        *(SHORT, LONG),
        {"query_seq_lengths": (5, 2), "key_value_seq_lengths": (1, 7)},
    ),
    "padding-causal": (
        *(SAME, SAME),
        {"is_causal": True, "query_seq_lengths": (6, 9), "key_value_seq_lengths": (6, 9)},
    ),
    "padding-bias-group": (
        *(SAME, (2, 9, 2, 8)),
        {"bias": (2, 4, 9, 9), "key_value_seq_lengths": (2, 9)},
    ),
    "window-of-itself": (SAME, SAME, {"local_window_size": (0, 0)}),
    "window-int": (SAME, SAME, {"local_window_size": 2}),
    "window-causal-wide": (SHORT, LONG, {"is_causal": True, "local_window_size": (2, 0)}),
    "window-custom": (SAME, SAME, {"mask": (1, 4, 9, 9), "local_window_size": (2, 1)}),
    "everything": (
        *((2, 9, 6, 8), (2, 9, 3, 8)),
        {
            **{"bias": (2, 6, 9, 9), "mask": (1, 1, 9, 9), "is_causal": True, "scale": 0.7},
            **{"query_seq_lengths": (7, 9), "key_value_seq_lengths": (9, 8)},
            "local_window_size": (8, 1),
        },
    ),
}


def built(name):
    """Return the arrays and options of JAX's call."""
    random = np.random.default_rng(zlib.crc32(name.encode()))
    query, key, options = MODES[name]
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in (query, key, key)]
    options = dict(options)
    if "bias" in options:
        options["bias"] = random.standard_normal(options["bias"]).astype(np.float32)
    if "mask" in options:
        mask = random.random(options["mask"]) < 0.6
        mask[..., 0] = True  # the key that every window and causality show
        if "local_window_size" in options:
            mask |= np.eye(*mask.shape[-2:], dtype=bool)
        options["mask"] = mask
    for each in {"query_seq_lengths", "key_value_seq_lengths"} & options.keys():
        options[each] = np.array(options[each], np.int32)
    return arrays, options


def in_our_words(options):
    """Translate the options of JAX's function to regard's, except `query_seq_lengths`."""
    options = dict(options)
    given = [options.pop(name) for name in ("mask", "bias") if name in options]
    if given:
        options["mask"] = tuple(given) if len(given) == 2 else given[0]
    window = options.pop("local_window_size", None)
    if window is not None:  # around position i itself: query_offset stays 0
        options["window"] = (window, window) if isinstance(window, int) else window
    lengths = options.pop("key_value_seq_lengths", None)
    options.pop("query_seq_lengths", None)
    return options if lengths is None else options | {"key_lengths": lengths}


@pytest.mark.parametrize("name", MODES)
def test_jax(name, target):
    jax = pytest.importorskip("jax", reason="pip install '.[conformance]'")
    arrays, options = built(name)
    function = jax.jit(
        lambda *arrays: jax.nn.dot_product_attention(*arrays, **options, return_residual=True)
    )
    output, lse = (np.asarray(x) for x in function(*arrays))
    arrays, words = [x.swapaxes(-3, -2) for x in arrays], in_our_words(options)
    rows = np.ones(arrays[0].shape[:-1], bool)
    if "query_seq_lengths" in options:
        rows &= np.arange(rows.shape[-1]) < options["query_seq_lengths"][:, None, None]
    want = error_limits.expected(*arrays, **words)
    assert want.seen.any(axis=-1).all()
    actual = regard.scaled_dot_product_attention(*arrays, **words, return_lse=True)
    theirs = output.swapaxes(-3, -2), lse.swapaxes(-2, -1)
    for mine, other, limit in zip(actual, theirs, (want.limit.output, want.limit.lse), strict=True):
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
        assert reference.error(mine[rows], other[rows]) <= 2 * limit
