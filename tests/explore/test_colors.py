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
def test_larger_weights_are_darker_on_light_pages_and_lighter_on_dark_ones(theme, sign):
    steps = sign * np.diff(lightness(sequential(theme)[:255]))
    assert (steps > -0.3).all()  # rounding to 8 bits
    assert (sign * np.diff(lightness(sequential(theme)[:255:6])) > 0.5).all()
    assert abs(lightness(sequential(theme)[254]) - lightness(sequential(theme)[0])) > 70


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_differences_are_symmetric_in_lightness(theme):
    of = lightness(diverging(theme)[:255])
    assert np.abs(of - of[::-1]).max() < 6
    assert np.ptp(diverging(theme)[127].astype(int)) <= 2
    away = np.abs(of - of[127])
    assert (np.diff(away[127::8]) > 0).all()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nan_has_a_color_of_its_own(theme):
    for table in (sequential(theme), diverging(theme)):
        distance = np.abs(table[:255].astype(int) - table[255]).sum(axis=1)
        assert distance.min() > 60
