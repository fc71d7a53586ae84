"""Pictures of attention weights, without storing the weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Unpack, overload

import numpy as np

from regard import _core
from regard._arguments.arrays import shown
from regard._arguments.keywords import check_options
from regard._arguments.numbers import choice, count, iterated, slice_ends
from regard._arguments.options import WeightOptions, names_of, takes_options
from regard._recording.given import calls_of_layers, recorded_layers
from regard._recording.layer import RecordedLayer
from regard._recording.recording import Recording
from regard._runtime.progress import Progressed, check_progress, reporting
from regard._runtime.public import public
from regard._statistics.calls import call_of_weights, lse_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import ArrayLike

    from regard._arguments.arrays import Array
    from regard._attention.check import CheckedCall
    from regard._recording.given import QueryOrRecording
    from regard._runtime.progress import Progress

    Region = tuple[slice, slice]

_NAME = "attention_map"
REDUCTIONS = ("max", "sum", "mean")  # in the order of the compiled module


@overload
def attention_map(
    query: QueryOrRecording,
    key: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    shape: tuple[int, int] = (512, 512),
    reduce: str = "max",
    regions: None = None,
    lse: ArrayLike | None = None,
    progress: Progress = None,
    **options: Unpack[WeightOptions],
) -> Array: ...
@overload
def attention_map(
    query: QueryOrRecording,
    key: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    shape: tuple[int, int] = (512, 512),
    reduce: str = "max",
    regions: Iterable[Region],
    lse: ArrayLike | None = None,
    progress: Progress = None,
    **options: Unpack[WeightOptions],
) -> list[Array]: ...
@public
@takes_options(WeightOptions)
def attention_map(
    query: QueryOrRecording,
    key: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    shape: tuple[int, int] = (512, 512),
    reduce: str = "max",
    regions: Iterable[Region] | None = None,
    lse: ArrayLike | None = None,
    progress: Progress = None,
    **options: Unpack[WeightOptions],
) -> Array | list[Array]:
    """Draw a picture of the weights of scaled-dot-product attention, without storing them.

    Pixel (i, j) of a picture of height h and width w covers the queries from ``i * q_len // h`` to
    ``(i + 1) * q_len // h``, and the keys likewise. Queries run down and keys run right.

    Parameters
    ----------
    query : array_like, shape (..., heads, q_len, head_dim), or Recording or RecordedLayer
        As for `scaled_dot_product_attention`. A recording has its own keys, masks and options; its
        pictures have a first axis for its layers.
    key : array_like, shape (..., kv_heads, kv_len, head_dim)
        Likewise. It must be omitted with a recording, like `mask`, `lse` and most options.
    mask : array_like of bool or float, SparseMask, or a pair (bool, float) of both, optional
        As for `scaled_dot_product_attention`, like all options that are not described here.
    shape : (int, int), default (512, 512)
        The height and the width of a picture. A picture has at most as many rows as queries, and at
        most as many columns as keys. With one row per query and one column per key, it contains the
        weights themselves.
    reduce : {"max", "sum", "mean"}, default "max"
        How the weights of a pixel are reduced. The largest weight reveals single important keys.
        The sum and the mean show the total weight, with hidden keys counted as 0.
    regions : iterable of (slice, slice), optional
        Parts of the weights, as slices of queries and of keys without steps. Each region gets a
        separate picture of at most `shape`. Default: one picture of all weights.
    lse : array_like, shape (..., heads, q_len), optional
        The lse of the forward call with the same arguments, returned with ``return_lse=True``. If
        it is not given, it is computed first. The lse of other arguments yields a meaningless
        picture.
    progress : bool or callable, optional
        True shows a progress bar, which requires the tqdm or rich package. A function is called
        from time to time, in the caller's thread, with the number of completed queries and the
        total number, over all heads and regions. An exception that it raises ends the call.
    {options}

    Returns
    -------
    ndarray or list of ndarray, each of shape (..., heads, height, width)
        Float64 if query or key is float64, else float32. A list if `regions` are given.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ImportError
        If `progress` is True and neither tqdm nor rich is installed.
    ValueError
        If shapes disagree, a number is out of range, or `reduce` is unknown.
    MemoryError
        If a result or the workspace cannot be allocated.

    See Also
    --------
    summarize_attention : computes statistics of the weights.

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> rng = np.random.default_rng(0)
    >>> query, key = rng.standard_normal((2, 4, 1000, 16), dtype=np.float32)
    >>> regard.attention_map(query, key, is_causal=True, shape=(100, 100)).shape
    (4, 100, 100)
    >>> (corner,) = regard.attention_map(
    ...     query, key, is_causal=True, regions=[(slice(0, 3), slice(0, 3))]
    ... )
    >>> corner[0, 0]  # the first query sees the first key
    array([1., 0., 0.], dtype=float32)
    """
    check_options(_NAME, options, names_of(WeightOptions))
    check_progress(progress, _NAME)
    if regions is not None:
        regions = iterated("regions", regions, "an iterable of pairs of slices")
    if not isinstance(query, Recording | RecordedLayer):
        call = call_of_weights(query, key, mask, options)
        pictures: Array | list[Array] = pictures_of(call, shape, reduce, regions, lse, progress)
        return pictures
    layers = recorded_layers(query, options, key=key, mask=mask, lse=lse)
    calls = calls_of_layers(layers, options)
    rows = _rows_of(calls[0], regions)
    with reporting(progress, len(calls) * rows, "query", _NAME) as report:
        steps = Progressed(len(calls) * rows, report)
        of_layers = [
            pictures_of(call, shape, reduce, regions, progress=steps.begin(rows)) for call in calls
        ]
    if isinstance(query, RecordedLayer):
        (pictures,) = of_layers
        return pictures
    if regions is None:
        return np.stack(of_layers)
    return [np.stack(each) for each in zip(*of_layers, strict=True)]


def pictures_of(
    call: CheckedCall,
    shape: tuple[int, int],
    reduce: str,
    regions: Sequence[Region] | None = None,
    lse: ArrayLike | None = None,
    progress: Progress = None,
) -> Any:
    """Return a picture of the weights of a checked call, or of each region, as `attention_map`."""
    height, width = pixels_of(shape)
    choice("reduce", reduce, REDUCTIONS)
    bounds = _bounds(regions, call)
    lse = lse_of(call, lse)
    heads, total = math.prod(call.rows[:-1]), _rows_of(call, regions)
    arguments = call.query, call.key, call.masks.argument, call.options, lse
    pictures = []
    with reporting(progress, total, "query", _NAME) as report:
        steps = Progressed(total, report)
        for rows, keys in bounds:
            q_len, kv_len = rows[1] - rows[0], keys[1] - keys[0]
            pixels = min(height, q_len), min(width, kv_len)
            words = (*pixels, *rows, *keys), REDUCTIONS.index(reduce)
            pictures.append(_core.attention_map(*arguments, *words, steps.begin(heads * q_len)))
    return pictures[0] if regions is None else pictures


def pixels_of(shape: tuple[int, int]) -> tuple[int, int]:
    """Return the argument `shape`, or raise TypeError or ValueError."""
    try:
        height, width = shape
    except (TypeError, ValueError):
        raise TypeError(f"shape must be a pair (height, width), got {shown(shape)}") from None
    return count("shape", height, minimum=1), count("shape", width, minimum=1)


def _rows_of(call: CheckedCall, regions: Sequence[Region] | None) -> int:
    """Return the number of rows of weights in all regions, over all heads."""
    rows = sum(end - first for (first, end), _ in _bounds(regions, call))
    return math.prod(call.rows[:-1]) * rows


def _bounds(
    regions: Sequence[Region] | None, call: CheckedCall
) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the begin and the end of the queries, and of the keys, of each region."""
    q_len, kv_len = call.sizes.q_len, call.sizes.kv_len
    if regions is None:
        return [((0, q_len), (0, kv_len))]
    bounds = []
    for number, region in enumerate(regions):
        name = f"regions[{number}]"
        if not isinstance(region, tuple) or len(region) != 2:
            raise TypeError(f"{name} must be a pair of slices, got {shown(region)}")
        bounds.append((slice_ends(name, region[0], q_len), slice_ends(name, region[1], kv_len)))
    return bounds
