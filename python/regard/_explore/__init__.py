"""Attention of many layers and heads as one HTML file that a browser explores."""

from regard._explore._function import explore
from regard._explore._page import Explorer

__all__ = ["Explorer", "explore"]
