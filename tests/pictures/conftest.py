import pytest


@pytest.fixture
def pyplot():
    """matplotlib without a screen, with its own defaults, and without figures."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.use("Agg")
        yield pyplot
        pyplot.close("all")
