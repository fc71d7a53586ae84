"""Plot attention weights, their statistics and masks with matplotlib.

Queries go down and keys go right. Each function draws on the given axes or figure, or on a new
pyplot figure, and returns the artists that it has drawn.
"""

from regard._runtime.public import needed as _needed
from regard._runtime.public import publish as _publish

_needed("matplotlib", "regard.plot", "plot")

from regard.plot._attention import attention, compare  # noqa: E402
from regard.plot._heads import heads  # noqa: E402
from regard.plot._layer_heads import layer_heads  # noqa: E402
from regard.plot._pattern import pattern  # noqa: E402
from regard.plot._statistics import statistics  # noqa: E402

__all__ = ["attention", "compare", "heads", "layer_heads", "pattern", "statistics"]

_publish(globals())
