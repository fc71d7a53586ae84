"""The attention of many layers and heads as one HTML file to explore in a browser."""

from regard._explore._function import explore
from regard._explore._page import Explorer
from regard._runtime.saving import check_place

__all__ = ["Explorer", "check_place", "explore"]
