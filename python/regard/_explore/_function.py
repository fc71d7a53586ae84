"""The function `explore`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from regard._arguments.foreign import with_arrays
from regard._arguments.hints import warn_if_zero_one
from regard._arguments.keywords import check_options
from regard._arguments.numbers import count
from regard._arguments.options import WeightOptions, names_of, takes_options
from regard._explore._encoding import TOP, packed
from regard._explore._heads import THUMBNAIL, heads_of
from regard._explore._layers import OPTIONS_OF_WEIGHTS, layers_of, layers_of_weights
from regard._explore._page import Explorer
from regard._explore._plan import plan_of
from regard._recording.given import recorded_layers, texts_of
from regard._recording.layer import RecordedLayer, short
from regard._recording.recording import Recording
from regard._runtime.progress import Progressed, check_progress, reporting
from regard._runtime.public import public
from regard._show.colors import DECADES, DIFFERENCE_DECADES
from regard._show.labels import HeadNames, short_names, tokens_of_axes
from regard._statistics.result import FIELDS
from regard._statistics.summary import SummaryRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike

    from regard._explore._layers import Layer
    from regard._explore._plan import Plan
    from regard._recording.given import QueryOrRecording
    from regard._runtime.progress import Progress
    from regard._show.labels import TokensArgument

MOST_TOP_KEYS = 64


@public
@takes_options(WeightOptions)
def explore(
    query: QueryOrRecording | Sequence[ArrayLike] | None = None,
    key: ArrayLike | Sequence[ArrayLike] | None = None,
    mask: ArrayLike | None = None,
    *,
    weights: ArrayLike | Sequence[ArrayLike] | None = None,
    tokens: TokensArgument = None,
    names: Mapping[str, Sequence[str]] | None = None,
    statistics: Iterable[str] | None = None,
    top_k: int = 8,
    first_keys: int = 4,
    local_reach: int = 64,
    detail: int | None = None,
    regions: Iterable[Any] | None = None,
    tile_bytes: int | None = None,
    max_bytes: int = 100_000_000,
    progress: Progress = None,
    **options: Unpack[WeightOptions],
) -> Explorer:
    """Create an HTML page to explore attention in a browser.

    The page shows all heads at once, and any head at any scale; for each query, the keys with the
    largest weights in context; statistics of queries, keys and heads; the occurrences of a token;
    and the difference of two heads. It is one file, which needs no network, server or mouse.

    Parameters
    ----------
    query : array_like, shape (..., heads, q_len, head_dim), list of arrays, or Recording, optional
        As for `scaled_dot_product_attention`. The axes before heads are layers. A list contains one
        array ``(heads, q_len, head_dim)`` per layer; layers may differ in heads and head_dim. A
        recording has its own keys, masks, options, tokens and names.
    key : array_like, shape (..., kv_heads, kv_len, head_dim), or list of arrays, optional
        Likewise. It must be omitted with a recording, like `mask` and most options.
    mask : array_like of bool or float, SparseMask, or a pair (bool, float) of both, optional
        As for `scaled_dot_product_attention`, like all options that are not described here. With a
        list of layers, masks and options apply to every layer.
    weights : array_like, shape (..., heads, q_len, kv_len), or list or tuple of arrays, optional
        Existing weights in place of query and key, such as the weights of a model or of another
        library. A list or tuple contains one array ``(heads, q_len, kv_len)`` per layer, or
        ``(1, heads, q_len, kv_len)``, as in the attentions of transformers models. Rows need not
        add up to 1, as with sinks or after dropout. A weight of 0 counts as hidden. No mask and no
        options may be given except `query_offset` and `threads`.
    tokens : sequence of str, or pair of sequences of str, optional
        The text of each key, which is also the text of the query at that position; or the texts of
        the queries and the texts of the keys.
    names : mapping, optional
        ``{"layers": [...], "heads": [...]}``, or one of the two: a str for each layer, and for each
        head of a layer. By default, layers and heads are numbered.
    statistics : iterable of str, optional
        The fields of `summarize_attention` to show; "top_k" is always shown. "induction" requires
        `tokens` as one sequence. Default: all available fields.
    top_k : int, default 8
        Number of keys per query that are shown with their weights: at most 64.
    first_keys : int, default 4
        Number of keys that count as first keys.
    local_reach : int, default 64
        The largest distance from the query at which a key is local.
    detail : int, optional
        The maximum number of rows and columns of a head's picture. If there are at most this many
        queries and keys, the picture shows each weight; otherwise it shows the largest and the mean
        weight of blocks. Default: 512, or 256 or 128 if there are so many heads that all pictures
        would occupy more than 48 MB.
    regions : iterable, optional
        Parts to show exactly, in addition to the pictures: ``(queries, keys)`` as slices without
        steps, for all heads, or ``(layer, head, queries, keys)``.
    tile_bytes : int, optional
        The maximum size of all tiles: finer pictures of the most important parts of a head, down to
        single weights, which appear when the page is zoomed in. Pages whose pictures show each
        weight have no tiles. Each head gets an equal part. Default: for each head, the size of its
        picture and its statistics, so that tiles at most double a page, limited by `max_bytes`.
    max_bytes : int, default 100_000_000
        The maximum size of the page, by a rough estimate; a larger page raises an error.
    progress : bool or callable, optional
        True shows a progress bar, which requires the tqdm or rich package. A function is called
        from time to time, in the caller's thread, with two numbers: the work done and the total
        work. An exception that it raises ends the call.
    {options}

    Returns
    -------
    Explorer
        ``save("page.html")`` writes the page. A notebook shows the page if it has at most 5 MB, if
        necessary without its tiles.

    Raises
    ------
    TypeError
        If an argument has the wrong type, if neither query and key nor `weights` are given, or
        both, or if `statistics` contains "induction" without `tokens` for the keys.
    ImportError
        If `progress` is True and neither tqdm nor rich is installed.
    ValueError
        If shapes disagree, there is no head, query or key, a weight is not from 0 to 1, the numbers
        of tokens or names differ from the lengths of the axes, or the page would be larger than
        `max_bytes`.
    MemoryError
        If a result or the workspace cannot be allocated.

    See Also
    --------
    summarize_attention, attention_map : return the numbers that the page shows.

    Notes
    -----
    The page rounds numbers. Weights in pictures of blocks are rounded to 254 levels of a
    logarithmic scale from 1e-6 to 1, in steps of 5.6 %. The weights of the top keys, the
    accompanying statistics and single weights in tiles are rounded to 8 significant bits, which is
    0.4 %. In regions, and if a picture has one pixel for each weight, all of these numbers have 11
    significant bits, which is 0.05 %. Numbers less than 4e-9 times the largest number of their kind
    in a head have fewer bits, and positive numbers less than 4e-12 times this number are shown as
    about 4e-12 times it.

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> rng = np.random.default_rng(0)
    >>> query, key = rng.standard_normal((2, 2, 4, 6, 16), dtype=np.float32)
    >>> explorer = regard.explore(
    ...     query, key, is_causal=True, tokens="Dream big and work for it".split()
    ... )
    >>> str(explorer).rpartition(",")[0]
    'Explorer(2 layers, 8 heads, q_len=6, kv_len=6'
    >>> explorer.save("page.html")  # doctest: +SKIP
    """
    check_options("explore", options, names_of(WeightOptions))
    check_progress(progress, "explore")
    top_k = count("top_k", top_k, minimum=1, maximum=MOST_TOP_KEYS)
    names_of_statistics = FIELDS if statistics is None else statistics
    request = SummaryRequest.of(names_of_statistics, top_k, first_keys, local_reach)
    if mask is not None:
        warn_if_zero_one(mask)
    options = with_arrays(options)
    if weights is None:
        if query is None:
            raise TypeError("explore() needs query and key, or weights=")
        layers = layers_of(query, key, mask, options)
    else:
        _refuse_with_weights({"query": query, "key": key, "mask": mask, **options})
        layers = layers_of_weights(weights, options)
    q_len, kv_len = layers[0].call.sizes.q_len, layers[0].call.sizes.kv_len
    if tokens is None and isinstance(query, Recording | RecordedLayer):
        tokens = texts_of(recorded_layers(query, {}))
    layers, head_names = _named(layers, names)
    texts, numbers_of_tokens = _texts(tokens, layers)
    wanted = request.wanted | {"top_k": True}
    if numbers_of_tokens is None and wanted["induction"]:
        if statistics is not None:
            raise TypeError(
                "statistics with 'induction' need tokens: one sequence, the text of each key"
            )
        wanted["induction"] = False
    request = request._replace(wanted=wanted, top_k=min(top_k, kv_len))
    plan = plan_of(layers, request, texts, detail, regions, tile_bytes)
    max_bytes = count("max_bytes", max_bytes, minimum=1)
    plan.check(max_bytes)
    total = (3 if plan.is_exact else 5) * q_len * sum(x.heads for x in layers)
    described: list[dict[str, Any]] = []
    labels = short_names([layer.name for layer in layers])
    blobs: list[tuple[str, bytes]] = []
    thumbnails: list[Any] = []
    with reporting(progress, total, "query", "explore") as report:
        steps = Progressed(total, report)
        for number, layer in enumerate(layers):
            heads = []
            found = heads_of(number, layer, plan, request, numbers_of_tokens, max_bytes, steps)
            for index, head in enumerate(found):
                place = f"{number}.{index}"
                blobs += [(f"map-{place}", head.picture[0]), (f"rows-{place}", head.rows[0])]
                blobs += [(f"tile-{place}.{n}", tile.blob) for n, tile in enumerate(head.tiles)]
                thumbnails += head.thumbnails
                heads.append(
                    {
                        "name": head_names[index] if head_names else str(index),
                        "map": head.picture[1],
                        "rows": head.rows[1],
                        "statistics": head.numbers,
                        "tiles": [[*tile.bounds, *tile.facts] for tile in head.tiles],
                    }
                )
            described.append(
                {
                    "name": layer.name,
                    "label": labels[number],
                    "position": layer.first_position,
                    "heads": heads,
                }
            )
    overview, arrays = packed({"levels": np.stack(thumbnails)})
    facts = {
        "q_len": q_len,
        "kv_len": kv_len,
        "shape": plan.shape,
        "exact": plan.is_exact,
        "decades": DECADES,
        "difference_decades": DIFFERENCE_DECADES,
        "top": TOP,
        "thumbnail": THUMBNAIL,
        "overview": arrays,
        "first_keys": request.first_keys,
        "local_reach": request.local_reach,
        "options": _options_of(layers)
        if isinstance(query, Recording | RecordedLayer)
        else _shown(weights, mask, options),
        "tokens": texts,
        "layers": described,
    }
    return Explorer(facts, [("thumbnails", overview), *blobs])


def plan_of_lengths(
    layers: int,
    heads: int,
    tokens: Sequence[str],
    *,
    detail: int | None = None,
    top_k: int = 8,
) -> Plan:
    """Return the plan of a page with all statistics, before queries and keys exist."""
    none = np.broadcast_to(np.float32(0), (layers, heads, len(tokens), 1))
    texts = {"key": list(tokens)}
    layers_ = layers_of(none, none, None, {})
    return plan_of(layers_, SummaryRequest.of(FIELDS, top_k), texts, detail)


def _named(
    layers: list[Layer], names: Mapping[str, Sequence[str]] | None
) -> tuple[list[Layer], list[str]]:
    """Return the layers with their names, and the names of the heads."""
    given = HeadNames.of(names, len(layers), max(layer.heads for layer in layers))
    if given.layers is not None:
        layers = [
            layer._replace(name=name) for layer, name in zip(layers, given.layers, strict=True)
        ]
    return layers, given.heads or []


def _texts(
    tokens: TokensArgument, layers: list[Layer]
) -> tuple[dict[str, Any] | None, np.ndarray[Any, Any] | None]:
    """Return the tokens in the page's format, and the token number of each key for "induction"."""
    if tokens is None:
        return None, None
    starts = [layer.first_position for layer in layers]
    start, sizes = starts[0], layers[0].call.sizes
    is_one_offset = len(set(starts)) == 1
    texts = tokens_of_axes(tokens, sizes.q_len, sizes.kv_len, start if is_one_offset else None)
    of_positions = texts.query is not None and texts.key is not None
    of_positions = (
        of_positions and texts.query == (texts.key or [])[max(start, 0) : start + sizes.q_len]
    )
    numbers = None
    if of_positions:
        _, numbers = np.unique(np.array(texts.key, object), return_inverse=True)
    return {"key": texts.key, "query": start if of_positions else texts.query}, numbers


def _refuse_with_weights(arguments: Mapping[str, Any]) -> None:
    """Raise TypeError for arguments that would determine weights, which exist already."""
    given = [
        name
        for name, value in arguments.items()
        if name not in OPTIONS_OF_WEIGHTS and value is not None and value is not False
    ]
    if given:
        raise TypeError(f"{given[0]} must be left out with weights, which it would not change")


def _shown(weights: Any, mask: Any, options: Mapping[str, Any]) -> str:
    """Return the attention options in a line: numbers in full, arrays by their shapes."""
    given = {} if mask is None else {"mask": mask}
    given |= {
        name: value for name, value in options.items() if name != "threads" and value is not None
    }
    words = [f"{name}={short(value)}" for name, value in given.items()]
    return ", ".join(words if weights is None else ["given weights", *words])


def _options_of(layers: Sequence[Layer]) -> str:
    """Return the common options of recorded layers in a line, and the names of the others."""
    of_layers = []
    for layer in layers:
        own = {f"{part.dtype} mask": part.shape for part in layer.call.masks.arrays}
        of_layers.append({name: short(value) for name, value in (own | layer.call.options).items()})
    shown_options = []
    for name in dict.fromkeys(name for own in of_layers for name in own if name != "threads"):
        values = {own.get(name) for own in of_layers}
        differ = f"{name} differs between layers"
        shown_options.append(f"{name}={values.pop()}" if len(values) == 1 else differ)
    return ", ".join(shown_options)
