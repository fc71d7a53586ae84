"""Colors say how large a weight is to everybody: by their lightness."""

import numpy as np
import pytest

from regard._show.colors import diverging, sequential


def lightness(colors):
    """Return CIELAB's L*, by the definitions of sRGB and CIE 1976."""
    part = colors / 255
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    y = linear @ [0.2126729, 0.7151522, 0.0721750]
    return np.where(y > 216 / 24389, 116 * np.cbrt(y) - 16, 24389 / 27 * y)


@pytest.mark.parametrize(("theme", "sign"), [("light", -1), ("dark", 1)])
def test_lightness_says_how_large_a_weight_is(theme, sign):
    """Larger weights are darker on light pages and lighter on dark ones. Of a difference, both
    signs are equally far from the middle. NaN has a color of its own."""
    of = lightness(sequential(theme)[:255])
    assert (sign * np.diff(of) > -0.3).all()  # rounding to 8 bits
    assert (sign * np.diff(of[::6]) > 0.5).all()
    assert abs(of[254] - of[0]) > 70
    of = lightness(diverging(theme)[:255])
    assert np.abs(of - of[::-1]).max() < 6
    assert np.ptp(diverging(theme)[127].astype(int)) <= 2
    assert (np.diff(np.abs(of - of[127])[127::8]) > 0).all()
    for table in (sequential(theme), diverging(theme)):
        assert np.abs(table[:255].astype(int) - table[255]).sum(axis=1).min() > 60
