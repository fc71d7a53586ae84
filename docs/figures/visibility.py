"""What causality, offsets and windows make visible."""

from __future__ import annotations

from typing import Any

import numpy as np
from drawing import canvas, label, visibility
from matplotlib.figure import Figure

import regard

CASES = [
    ("is_causal=True", (6, 6), {"is_causal": True}),
    ("is_causal=True", (3, 6), {"is_causal": True}),
    ('is_causal=True,\nquery_offset="end"', (3, 6), {"is_causal": True, "query_offset": "end"}),
    ("window=(2, 0)", (6, 6), {"window": (2, 0)}),
    ("window=(1, 1),\nquery_offset=3", (3, 6), {"window": (1, 1), "query_offset": 3}),
]
CELL = 0.18


def seen(q_len: int, kv_len: int, options: dict[str, Any]) -> np.ndarray:
    """Ask the call itself which keys each query sees: those that have a weight."""
    query, key = np.ones((q_len, 1)), np.ones((kv_len, 1))
    _, weights = regard.scaled_dot_product_attention(
        query, key, key, **options, return_weights=True
    )
    return weights > 0


def draw() -> Figure:
    """Draw a grid for each case, side by side."""
    step = 1.5
    figure, axes = canvas(step * len(CASES) + 0.1, 2.15)
    for number, (name, (q_len, kv_len), options) in enumerate(CASES):
        x = 0.35 + step * number
        visibility(axes, x, 1.5, seen(q_len, kv_len, options), cell=CELL)
        label(axes, x + 3 * CELL, 1.6, "keys", muted=True, va="bottom")
        label(
            axes, x - 0.06, 1.5 - q_len * CELL / 2, "queries", muted=True, ha="right", rotation=90
        )
        label(axes, x + 3 * CELL, 0.34, name, fontsize=8, family="monospace", va="top")
        label(axes, x + 3 * CELL, 1.85, f"{q_len} queries, {kv_len} keys", fontsize=8, va="bottom")
    return figure
