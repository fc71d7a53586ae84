"""What causality, offsets and windows make visible."""

from typing import Any

import numpy as np
import style
from matplotlib.figure import Figure

import regard

CASES: list[tuple[str, tuple[int, int], dict[str, Any]]] = [
    ("is_causal=True", (6, 6), {"is_causal": True}),
    ("is_causal=True", (3, 6), {"is_causal": True}),
    ('is_causal=True,\nquery_offset="end"', (3, 6), {"is_causal": True, "query_offset": "end"}),
    ("window=(2, 0)", (6, 6), {"window": (2, 0)}),
    ("window=(1, 1),\nquery_offset=3", (3, 6), {"window": (1, 1), "query_offset": 3}),
]
CELL, STEP, TOP = 0.46, 3.95, 1.7


def seen(q_len: int, kv_len: int, options: dict[str, Any]) -> np.ndarray:
    """Ask the call itself which keys each query sees: those that have a weight."""
    query, key = np.ones((q_len, 1)), np.ones((kv_len, 1))
    _, weights = regard.scaled_dot_product_attention(
        query, key, key, **options, return_weights=True
    )
    return weights > 0


def draw() -> Figure:
    """Draw a grid for each case, side by side."""
    figure, axes = style.canvas(STEP * len(CASES), 5.9)
    for number, (name, (q_len, kv_len), options) in enumerate(CASES):
        x = 0.9 + STEP * number
        visible = seen(q_len, kv_len, options)
        colors = [[style.BLUE if key else None for key in query] for query in visible]
        style.grid(axes, (x, TOP), colors, cell=CELL, fill=0.6)
        middle = x + kv_len * CELL / 2
        style.label(axes, (middle, 0.5), f"{q_len} queries, {kv_len} keys", font_size=9)
        style.label(axes, (middle, TOP - 0.35), "keys", font_size=style.SMALL)
        style.label(axes, (x - 0.35, TOP + q_len * CELL / 2), "queries", font_size=style.SMALL)
        axes.texts[-1].set_rotation(90)
        style.label(axes, (middle, 5.2), name, font_size=style.SMALL)
        axes.texts[-1].set_fontfamily("monospace")
    return figure
