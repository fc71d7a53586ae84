"""Causal attention in tiles: which are computed, and which compare positions."""

import style
from matplotlib.figure import Figure

TILES, QUERIES, KEYS = 8, 2, 1  # a tile's queries and keys, in cells


def draw() -> Figure:
    """Draw the tiles of a causal score matrix in three kinds."""
    figure, axes = style.canvas(16, 6.8)
    cell = 0.36
    for i in range(TILES):
        for j in range(2 * TILES):
            first, last = QUERIES * i, QUERIES * (i + 1) - 1
            corner = (1.6 + j * KEYS * cell, 0.9 + i * QUERIES * cell)
            size = (KEYS * cell, QUERIES * cell)
            if j > last:
                style.box(axes, corner, size, fill=0, line=0.6)
            elif j >= first:
                style.box(axes, corner, size, color=style.ORANGE, fill=0.6, line=0.6)
            else:
                style.box(axes, corner, size, color=style.BLUE, fill=0.45, line=0.6)
    style.label(axes, (4.5, 0.45), "keys")
    style.label(axes, (0.8, 3.8), "queries")
    legend = (
        (style.BLUE, 0.45, "computed, nothing to compare"),
        (style.ORANGE, 0.6, "at the diagonal: positions compared"),
        (style.INK, 0.0, "beyond the interval: never touched"),
    )
    for i, (color, fill, text) in enumerate(legend):
        style.box(axes, (8.0, 2.2 + 0.9 * i), (0.5, 0.5), color=color, fill=fill)
        style.label(axes, (8.7, 2.45 + 0.9 * i), text, align="left")
    return figure
