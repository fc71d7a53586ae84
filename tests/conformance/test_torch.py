"""PyTorch's attention on the CPU: drawn problems against its float64 path.

PyTorch's float64 result stands for the exact one, and its float32 result on the same numbers shows
the precision of float32. regard may be twice as far away, plus the eps terms of
`error_limits.expected`, because PyTorch may be exact by luck where the form of the fused call is
not.
"""

import hypothesis
import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st

import error_limits
import reference
import regard

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: pip install '.[conformance]'"
)
bias = pytest.importorskip("torch.nn.attention.bias")


def as_torch_says(query, key, value, mask=None, *, precision, lower_right=False, **options):
    """Compute PyTorch's plain formula, its kernel that accepts everything, in one precision."""

    def tensor(array):
        array = np.array(array)  # PyTorch needs writable memory
        return torch.from_numpy(array if array.dtype == bool else array.astype(precision))

    if lower_right:
        mask = bias.causal_lower_right(query.shape[-2], key.shape[-2])
    elif mask is not None:
        mask = tensor(mask)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        arrays = (tensor(array) for array in (query, key, value))
        return torch.nn.functional.scaled_dot_product_attention(*arrays, mask, **options).numpy()


def floor(*arrays, **options):
    """Return what `error_limits.expected` allows in addition to twice the error of a plain float32
    formula."""
    arrays = [array.astype(np.float32) for array in arrays]
    want = error_limits.expected(*arrays, **options)
    plain = reference.naive(*arrays, **options, precision=np.float32)
    errors = (reference.error(p, e) for p, e in zip(plain, want.exact, strict=True))
    return reference.Result(*(limit - 2 * e for limit, e in zip(want.limit, errors, strict=True)))


def assert_as_close(name, actual, *, exact, plain, least):
    """Check `actual`, which is float32, or float32 stored in 16 bits; `least` is the floor of its
    allowance."""
    assert type(actual) is np.ndarray, name
    assert actual.shape == exact.shape, name
    allowed = 2 * reference.error(plain.astype(np.float64), exact) + least
    with np.errstate(invalid="ignore"):
        off = np.where(actual == exact, 0, np.abs(actual.astype(np.float64) - exact))
        off = off - error_limits.half_ulp(np.abs(exact) + allowed, actual.dtype)
    off = np.max(off, initial=0)
    assert off <= allowed, f"{name}: error {off:.3g}, allowed {allowed:.3g}"


def check(arrays, ours, theirs):
    """Compare regard with PyTorch. `ours` and `theirs` are the options with each project's
    names."""
    actual = regard.scaled_dot_product_attention(*arrays, **ours)
    assert actual.dtype == arrays[0].dtype
    exact = as_torch_says(*arrays, **theirs, precision=np.float64)
    if actual.dtype == np.float64:  # nothing here is wider: both are near the exact result
        limit = error_limits.expected(*arrays, **ours).limit.output
        assert actual.shape == exact.shape
        assert reference.error(actual, exact) <= 2 * limit
        return
    plain = as_torch_says(*arrays, **theirs, precision=np.float32)
    least = floor(*arrays, **ours).output
    assert_as_close("output", actual, exact=exact, plain=plain, least=least)


@st.composite
def problems(draw):
    """Draw arrays, options for regard and options for PyTorch that mean the same to both.

    PyTorch refuses a mask together with causality, and a mask for a batch that only the value has.
    It promises nothing for fully masked lower-right rows, and does not broadcast the batch of empty
    arrays.
    """
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dtype = draw(st.sampled_from([np.float32, np.float64, np.float16, ml_dtypes.bfloat16]))
    batch = draw(st.lists(st.integers(1, 3), max_size=2).map(tuple))
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    q_len, kv_len = draw(st.integers(1, 40)), draw(st.integers(1, 200))
    head_dim, value_dim = draw(st.integers(1, 33)), draw(st.integers(1, 33))

    def cut(axes):
        """Return a shape that broadcasts to `axes`."""
        axes = tuple(draw(st.sampled_from([1, n])) for n in axes)
        return axes[draw(st.integers(0, len(axes))) :]

    heads = kv_heads * group
    shapes = (heads, q_len, head_dim), (kv_heads, kv_len, head_dim), (kv_heads, kv_len, value_dim)
    shapes = [cut(batch) + shape for shape in shapes]
    batch = np.broadcast_shapes(*(shape[:-3] for shape in shapes[:2]))
    arrays = [random.standard_normal(shape).astype(dtype) for shape in shapes]
    ours, theirs = {}, {"enable_gqa": True} if group > 1 else {}
    kinds = ["plain", "bool", "float", "causal", *["lower right"] * (q_len <= kv_len)]
    kind = draw(st.sampled_from(kinds))
    if kind in ("bool", "float"):
        shape = cut((*batch, heads, q_len, kv_len))
        mask = np.asarray(random.random(shape) < draw(st.sampled_from([0.1, 0.7, 1.0])))
        if kind == "float":
            mask = np.where(mask, random.standard_normal(shape), -np.inf).astype(dtype)
        ours["mask"] = theirs["mask"] = mask
    elif kind != "plain":
        ours["is_causal"] = True
        if kind == "causal":
            theirs["is_causal"] = True
        else:
            theirs["lower_right"], ours["query_offset"] = True, kv_len - q_len
    if draw(st.booleans()):
        ours["scale"] = theirs["scale"] = draw(st.floats(0, 2, width=32, allow_subnormal=False))
    return arrays, ours, theirs


@hypothesis.given(problem=problems())
@hypothesis.settings(
    derandomize=True,
    deadline=None,
    max_examples=200,
    suppress_health_check=[
        hypothesis.HealthCheck.function_scoped_fixture,
        hypothesis.HealthCheck.too_slow,
    ],
)
def test_drawn_problems(target, problem):
    check(*problem)
