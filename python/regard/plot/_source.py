"""The source of a picture: weights, or query and key with the options of attention."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from regard._arguments.arrays import as_stored_arrays
from regard._arguments.foreign import with_arrays
from regard._arguments.numbers import integers, offsets
from regard._arguments.options import WeightOptions, names_of
from regard._attention.check import check_call
from regard._recording.given import check_equal, recorded_layers, texts_of
from regard._recording.layer import RecordedLayer, call_of
from regard._recording.recording import Recording, of_one_text
from regard._runtime.progress import check_progress
from regard._show.weights import attention_weights, place_of_head
from regard._statistics.attention_map import pictures_of
from regard.plot._pooling import pooled

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from regard._attention.check import CheckedCall
    from regard._show.tokens import TokensArgument
    from regard.plot._pooling import Part

    Array = NDArray[Any]
    WeightsArgument = ArrayLike | tuple[ArrayLike, ArrayLike] | Recording | RecordedLayer

WEIGHT_OPTIONS = names_of(WeightOptions)


class WeightSource(Protocol):
    """Weights of the heads (lead), which may not be computed yet."""

    lead: tuple[int, ...]
    sizes: tuple[int, int]
    tokens: TokensArgument
    """The recorded tokens, if there are any."""

    def offset(self, head: tuple[int, ...]) -> int | None:
        """Return the number of keys that precede the first query of a head, None if unknown."""

    def picture(self, head: tuple[int, ...] | None, part: Part, reduce: str) -> Array:
        """Return the picture of a head, or the pictures of all heads if `head` is None."""


class _Weights:
    def __init__(self, weights: Array, query_offset: int | None) -> None:
        self._weights, self._offset = weights, query_offset
        self.lead = weights.shape[:-2]
        self.sizes = weights.shape[-2], weights.shape[-1]
        self.tokens: TokensArgument = None

    def offset(self, head: tuple[int, ...]) -> int | None:
        return self._offset

    def picture(self, head: tuple[int, ...] | None, part: Part, reduce: str) -> Array:
        return pooled(self._weights if head is None else self._weights[head], part, reduce)


class _QueryAndKey:
    def __init__(self, call: CheckedCall, progress: Any, tokens: TokensArgument = None) -> None:
        self._call, self._progress, self.tokens = call, progress, tokens
        self.lead = (*call.sizes.batch, call.sizes.heads) if call.has_heads else ()
        self.sizes = call.sizes.q_len, call.sizes.kv_len

    def offset(self, head: tuple[int, ...]) -> int | None:
        return int(self._call.positions.entry(head[:-1]).query_offset)

    def picture(self, head: tuple[int, ...] | None, part: Part, reduce: str) -> Array:
        call = self._call
        if head:
            call = call.part(entries=head[:-1], heads=head[-1])
        size = part.height, part.width
        pictures: list[Array] = pictures_of(
            call.query,
            call.key,
            call.masks.argument,
            call.options,
            shape=size,
            reduce=reduce,
            regions=[part.region],
            progress=self._progress,
        )
        return pictures[0]


class _Layers:
    """The layers of a recording, with one axis for them before the heads."""

    def __init__(self, sources: list[_QueryAndKey], tokens: TokensArgument) -> None:
        self._sources, self.tokens = sources, tokens
        self.lead = (len(sources), *sources[0].lead)
        self.sizes = sources[0].sizes

    def offset(self, head: tuple[int, ...]) -> int | None:
        return self._sources[head[0]].offset(head[1:])

    def picture(self, head: tuple[int, ...] | None, part: Part, reduce: str) -> Array:
        if head is not None:
            return self._sources[head[0]].picture(head[1:], part, reduce)
        return np.stack([source.picture(None, part, reduce) for source in self._sources])


def _recorded(
    recording: Recording | RecordedLayer, progress: Any, options: dict[str, Any]
) -> WeightSource:
    """Return the source of a recording, with options of the call such as threads."""
    layers = recorded_layers(recording, options)
    check_equal(layers, _sizes_of, "sizes")
    tokens = texts_of(layers)
    calls = [call_of(of_one_text(layer)) for layer in layers]
    sources = [
        _QueryAndKey(replace(call, options={**call.options, **options}), progress, tokens)
        for call in calls
    ]
    return sources[0] if isinstance(recording, RecordedLayer) else _Layers(sources, tokens)


def _sizes_of(layer: RecordedLayer) -> str:
    sizes = call_of(layer).sizes
    return f"{sizes.heads} heads, q_len {sizes.q_len}, kv_len {sizes.kv_len}"


def source_of(
    name: str, argument: Any, mask: Any, progress: Any, options: dict[str, Any]
) -> WeightSource:
    """Return the source that the arguments of the named function specify."""
    check_progress(progress, f"regard.plot.{name}")
    if isinstance(argument, Recording | RecordedLayer):
        recorded_layers(argument, options, mask=mask)
        return _recorded(argument, progress, options)
    if isinstance(argument, tuple):
        if len(argument) != 2:
            raise TypeError(
                f"{name}() accepts weights or a pair (query, key), got a tuple of {len(argument)}: "
                "pass the second entry of the result (output, weights, lse) of a call; np.stack "
                "joins the weights of several layers"
            )
        query, key = as_stored_arrays(query=argument[0], key=argument[1])
        return _QueryAndKey(check_call(query, key, None, mask, with_arrays(options)), progress)
    given = [option for option in options if option != "query_offset"]
    given += ["mask"] if mask is not None else []
    if given:
        raise TypeError(
            f"{given[0]} must be left out with weights, which it would not change: pass a pair "
            "(query, key) instead of them"
        )
    return _Weights(attention_weights(argument), _one_offset(options, argument))


def _one_offset(options: dict[str, Any], weights: Any) -> int | None:
    if "query_offset" not in options:
        return None
    if isinstance(options["query_offset"], str):
        q_len, kv_len = np.shape(weights)[-2:]
        return int(offsets(options["query_offset"], kv_len - q_len))
    offset = integers("query_offset", options["query_offset"])
    if offset.size != 1:
        raise ValueError(f"query_offset must be one number with weights, got {offset.size}")
    return int(offset.reshape(())[()])


def head_of(head: Any, lead: tuple[int, ...]) -> tuple[int, ...]:
    """Return the index that the argument `head` selects in the leading axes."""
    if head is None:
        if np.prod(lead, dtype=np.int64) != 1:
            raise ValueError(
                f"head must select one head, since the leading axes are {lead}; "
                "regard.plot.heads draws all of them"
            )
        return (0,) * len(lead)
    return place_of_head(head, lead)
