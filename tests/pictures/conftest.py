import pytest


@pytest.fixture
def pyplot():
    """Yield pyplot without a screen, with matplotlib's defaults, and without figures."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.use("Agg")
        yield pyplot
        pyplot.close("all")
