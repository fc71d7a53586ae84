"""The content of a page for each head: pictures, top keys and statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard._explore._encoding import Halves, halves, levels, packed, places, short_halves
from regard._explore._layers import scored
from regard._explore._tiles import tiles_of
from regard._show.weights import edges, pooled
from regard._statistics.attention_map import pictures_of
from regard._statistics.calls import lse_of
from regard._statistics.result import OF_HEADS, OF_KEYS, OF_QUERIES, TopKeys
from regard._statistics.summary import summary_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from regard._arguments.arrays import Array
    from regard._attention.check import CheckedCall
    from regard._explore._layers import Layer
    from regard._explore._plan import Plan
    from regard._explore._tiles import Tile
    from regard._runtime.progress import Progressed
    from regard._statistics.summary import SummaryRequest


THUMBNAIL = 64


class Head(NamedTuple):
    """The content of a page for one head."""

    picture: tuple[bytes, list[list[Any]]]
    rows: tuple[bytes, list[list[Any]]]
    thumbnails: tuple[Array, Array]  # levels of the largest and the mean weights
    numbers: dict[str, float | None]  # statistics of the whole head
    tiles: list[Tile]


def heads_of(
    number: int,
    layer: Layer,
    plan: Plan,
    request: SummaryRequest,
    tokens: Array | None,
    max_bytes: int,
    steps: Progressed,
) -> Iterator[Head]:
    """Compute the page content for each head of a layer."""
    sizes = layer.call.sizes
    rows = sizes.heads * sizes.q_len
    call, lse = with_lse(layer)
    steps.add(rows)
    summary = summary_of(call, request, tokens, lse, steps.begin(rows))
    reductions = ("max",) if plan.is_exact else ("max", "mean")
    pictures = {
        reduce: pictures_of(call, plan.shape, reduce, lse=lse, progress=steps.begin(rows))
        for reduce in reductions
    }
    exact = _regions_of(number, call, plan, lse)
    for head in range(layer.heads):
        largest = pictures["max"][head]
        mean = pictures["max" if plan.is_exact else "mean"][head]
        planes: dict[str, Array | Halves] = (
            {"weights": halves(largest)}
            if plan.is_exact
            else {"max": levels(largest), "mean": levels(mean)}
        )
        planes |= exact[head]
        is_visible = lse[head] != -np.inf
        picture = packed(planes)
        of_rows = packed(_rows_of(summary, head, sizes.kv_len, plan.is_exact))
        tiles: list[Tile] = []
        if plan.levels:
            room = plan.room_for_tiles(max_bytes, len(picture[0]) + len(of_rows[0]))
            assert summary.top_k is not None
            top = TopKeys(*(each[head] for each in summary.top_k))
            tiles = tiles_of(call.head(head), lse[head], mean, top, plan.levels, room)
            steps.add(sizes.q_len)
        yield Head(
            picture,
            of_rows,
            _thumbnails(largest, mean, plan.lengths),
            _numbers_of(summary, head, is_visible),
            tiles,
        )


def with_lse(layer: Layer) -> tuple[CheckedCall, Array]:
    """Return the call whose weights are shown, and its lse."""
    call = layer.call
    return (call, lse_of(call)) if layer.has_scores else scored(call)


def _regions_of(number: int, call: CheckedCall, plan: Plan, lse: Array) -> list[dict[str, Halves]]:
    """Return the weights of the exact regions of each head, by the name of the region."""
    found: list[dict[str, Halves]] = [{} for _ in range(call.sizes.heads)]
    own = [region for region in plan.regions if region.layer == number]
    for bounds in dict.fromkeys((region.queries, region.keys) for region in own):
        (first, end), (first_key, end_key) = bounds
        region = slice(first, end), slice(first_key, end_key)
        shape = end - first, end_key - first_key
        (picture,) = pictures_of(call, shape, "max", [region], lse)
        name = f"region {first} {end} {first_key} {end_key}"
        for each in own:
            if (each.queries, each.keys) == bounds:
                found[each.head][name] = halves(picture[each.head])
    return found


def _rows_of(summary: Any, head: int, kv_len: int, is_exact: bool) -> dict[str, Array | Halves]:
    rounded = halves if is_exact else short_halves
    keys, weights = summary.top_k.keys[head], summary.top_k.weights[head]
    found: dict[str, Array | Halves] = {
        "top_keys": places(keys, kv_len).T,
        "top_weights": rounded(weights.T),
    }
    for name in (*OF_QUERIES, *OF_KEYS):
        values = getattr(summary, name)
        if values is not None:
            found[name] = rounded(values[head])
    return found


def _thumbnails(largest: Array, mean: Array, lengths: tuple[int, int]) -> tuple[Array, Array]:
    """Pool a picture once more."""
    rows, columns = (edges(size, min(THUMBNAIL, size)) for size in largest.shape)
    # Blocks differ by a row or a column if the lengths are not multiples of the picture's.
    down, across = (
        np.diff(edges(length, size)) for length, size in zip(lengths, mean.shape, strict=True)
    )
    areas = down[:, None] * across
    means = pooled(mean * areas, rows, columns, "sum") / pooled(areas, rows, columns, "sum")
    return levels(pooled(largest, rows, columns, "max")), levels(means)


def _numbers_of(summary: Any, head: int, is_visible: Array) -> dict[str, float | None]:
    """Return the means over queries that see at least one key, and the scores of the head."""
    found: dict[str, float | None] = {}
    for name in OF_QUERIES:
        values = getattr(summary, name)
        if values is not None:
            seen = values[head][is_visible]
            found[name] = _plain(seen.mean(dtype=np.float64)) if seen.size else None
    for name in OF_HEADS:
        values = getattr(summary, name)
        if values is not None:
            found[name] = _plain(values[head])
    return found


def _plain(number: Any) -> float | None:
    """Return a number that JSON supports, or None for NaN and infinity."""
    return float(f"{number:.6g}") if np.isfinite(number) else None
