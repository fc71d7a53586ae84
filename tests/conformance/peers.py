"""How close regard must come to the results of another project.

A peer's float64 result stands for the exact one, and its float32 result on the same numbers shows
the precision of float32. regard may be twice as far away, plus the eps terms of
`reference.expected`, because the peer may be exact by luck where the form of the fused call is not.
"""

import numpy as np

import reference


def floor(*arrays, **options):
    """Return what `reference.expected` allows in addition to twice the error of a plain float32
    formula."""
    arrays = [array.astype(np.float32) for array in arrays]
    want = reference.expected(*arrays, **options)
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
        off = off - reference.half_ulp(np.abs(exact) + allowed, actual.dtype)
    off = np.max(off, initial=0)
    assert off <= allowed, f"{name}: error {off:.3g}, allowed {allowed:.3g}"
