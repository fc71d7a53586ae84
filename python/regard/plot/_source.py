"""The pictures of weights: of given weights, or of query and key with the options of attention."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import as_stored_arrays
from regard._arguments.foreign import with_arrays
from regard._arguments.hints import warn_if_zero_one
from regard._arguments.numbers import choice, integers, offsets
from regard._arguments.options import WeightOptions, names_of
from regard._attention.check import check_call
from regard._recording.given import calls_of_layers, recorded_layers, texts_of
from regard._recording.layer import RecordedLayer
from regard._recording.recording import Recording, of_one_text
from regard._runtime.progress import check_progress
from regard._show.labels import tokens_of_axes
from regard._show.weights import attention_weights, place_of_head, pooled
from regard._statistics.attention_map import REDUCTIONS, pictures_of
from regard.plot._axes import check_imshow

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike

    from regard._arguments.arrays import Array
    from regard._attention.check import CheckedCall
    from regard._show.labels import TokensArgument
    from regard.plot._part import Part

    Head = tuple[int, ...]
    WeightsArgument = ArrayLike | tuple[ArrayLike, ArrayLike] | Recording | RecordedLayer

_OPTIONS = names_of(WeightOptions)


class Source(ABC):
    """The weights of heads, of shape (*lead, *sizes)."""

    lead: tuple[int, ...]
    sizes: tuple[int, int]
    tokens: TokensArgument = None

    @abstractmethod
    def offset(self, head: Head) -> int | None:
        """Return the number of keys that precede the first query of a head, None if unknown."""

    @abstractmethod
    def picture(self, head: Head | None, part: Part, reduce: str) -> Array:
        """Return the picture of a head, or the pictures of all heads if `head` is None."""

    def labeled(self, part: Part, tokens: TokensArgument, offset: int | None) -> Part:
        """Return a part with its labels. The default of `tokens` are the own tokens."""
        texts = tokens_of_axes(self.tokens if tokens is None else tokens, *self.sizes, offset)
        return part._replace(offset=offset or 0, tokens=texts)


class _Weights(Source):
    """Existing weights (..., q_len, kv_len)."""

    def __init__(self, weights: Array, query_offset: int | None) -> None:
        self._weights, self._offset = weights, query_offset
        self.lead = weights.shape[:-2]
        self.sizes = weights.shape[-2], weights.shape[-1]

    def offset(self, head: Head) -> int | None:
        return self._offset

    def picture(self, head: Head | None, part: Part, reduce: str) -> Array:
        shown = (self._weights if head is None else self._weights[head])[..., *part.region]
        if part.is_exact:
            return shown
        return pooled(shown, part.rows - part.rows[0], part.columns - part.columns[0], reduce)


class _Calls(Source):
    """The weights of calls that are computed for the picture.

    There is one call, or a call for each layer, whose axis precedes the axes of the calls.
    """

    def __init__(
        self,
        calls: list[CheckedCall],
        progress: Any,
        tokens: TokensArgument = None,
        has_layers: bool = False,
    ) -> None:
        self._calls, self._progress, self._has_layers = calls, progress, has_layers
        lead = calls[0].rows[:-1]
        self.lead = (len(calls), *lead) if has_layers else lead
        self.sizes = calls[0].sizes.q_len, calls[0].sizes.kv_len
        self.tokens = tokens

    def offset(self, head: Head) -> int | None:
        call, place = self._at(head)
        return int(call.positions.entry(place[:-1]).query_offset)

    def picture(self, head: Head | None, part: Part, reduce: str) -> Array:
        if head is None:
            pictures = [self._draw(call, part, reduce) for call in self._calls]
            return np.stack(pictures) if self._has_layers else pictures[0]
        call, place = self._at(head)
        if place:
            call = call.part(entries=place[:-1], heads=place[-1])
        return self._draw(call, part, reduce)

    def _at(self, head: Head) -> tuple[CheckedCall, Head]:
        if self._has_layers:
            return self._calls[head[0]], head[1:]
        return self._calls[0], head

    def _draw(self, call: CheckedCall, part: Part, reduce: str) -> Array:
        shape = part.height, part.width
        drawn: list[Array] = pictures_of(
            call, shape, reduce, [part.region], progress=self._progress
        )
        return drawn[0]


def sources_of(
    function: Callable[..., Any],
    arguments: list[Any],
    mask: Any,
    progress: Any,
    reduce: str,
    imshow: dict[str, Any],
) -> list[Source]:
    """Return the weights that the arguments of a function specify.

    The options of attention are removed from `imshow`, whose other keywords are checked.
    """
    options = {name: imshow.pop(name) for name in _OPTIONS if name in imshow}
    check_imshow(function, imshow)
    if mask is not None:
        warn_if_zero_one(mask)
    choice("reduce", reduce, REDUCTIONS)
    check_progress(progress, f"regard.plot.{function.__name__}")
    return [_source_of(function.__name__, each, mask, progress, options) for each in arguments]


def _source_of(
    name: str, argument: Any, mask: Any, progress: Any, options: dict[str, Any]
) -> Source:
    if isinstance(argument, Recording | RecordedLayer):
        layers = recorded_layers(argument, options, mask=mask)
        calls = calls_of_layers(map(of_one_text, layers), options)
        return _Calls(calls, progress, texts_of(layers), isinstance(argument, Recording))
    if isinstance(argument, tuple):
        if len(argument) != 2:
            raise TypeError(
                f"{name}() accepts weights or a pair (query, key), got a tuple of {len(argument)}: "
                "pass the second entry of the result (output, weights, lse) of a call; np.stack "
                "joins the weights of several layers"
            )
        query, key = as_stored_arrays(query=argument[0], key=argument[1])
        if query.shape[:-1] == key.shape[:-1] and query.shape[-1] != key.shape[-1]:
            raise ValueError(
                f"{name}() accepts weights or a pair (query, key), got arrays of shapes "
                f"{query.shape} and {key.shape}: if these are (output, weights), pass the weights"
            )
        return _Calls([check_call(query, key, None, mask, with_arrays(options))], progress)
    given = [option for option in options if option != "query_offset"]
    given += ["mask"] if mask is not None else []
    if given:
        raise TypeError(
            f"{given[0]} must be left out with weights, which it would not change: pass a pair "
            "(query, key) instead of them"
        )
    weights = attention_weights(argument)
    offset = None
    if "query_offset" in options:
        q_len, kv_len = weights.shape[-2:]
        numbers = integers("query_offset", offsets(options["query_offset"], kv_len - q_len))
        if numbers.size != 1:
            raise ValueError(f"query_offset must be one number with weights, got {numbers.size}")
        offset = int(numbers.reshape(())[()])
    return _Weights(weights, offset)


def head_of(head: Any, lead: tuple[int, ...], name: str = "head") -> Head:
    """Return the index that the argument `head` selects in the leading axes."""
    if head is None:
        if np.prod(lead, dtype=np.int64) != 1:
            raise ValueError(
                f"{name} must select one head, since the leading axes are {lead}; "
                "regard.plot.heads draws all of them"
            )
        return (0,) * len(lead)
    return place_of_head(head, lead, name)


def title_of(place: tuple[int, ...], lead: tuple[int, ...]) -> str:
    """Return the index of a head as text, without axes of length 1."""
    *others, head = place or (0,)
    numbers = [number for number, length in zip(others, lead, strict=False) if length > 1]
    return "head " + ", ".join(map(str, [*numbers, head]))
