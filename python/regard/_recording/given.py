"""Accept recordings in place of query and key."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from regard._arguments.arrays import is_list_of_arrays
from regard._arguments.numbers import listed
from regard._arguments.options import RecordedOptions, names_of
from regard._recording.layer import RecordedLayer, call_of
from regard._recording.recording import Recording, of_one_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import ArrayLike

    from regard._attention.check import CheckedCall

    # Query, or a recording in place of query and key.
    QueryOrRecording = ArrayLike | Recording | RecordedLayer

_DETERMINED = frozenset(names_of(RecordedOptions))


def is_recorded(query: Any) -> bool:
    """Return whether this is a recording or a layer of one."""
    return isinstance(query, Recording | RecordedLayer)


def recorded_layers(
    query: Recording | RecordedLayer, options: Mapping[str, Any], **others: Any
) -> tuple[RecordedLayer, ...]:
    """Return the layers of a recording, or of its one layer.

    Raises TypeError if the call also sets arguments that the recording determines. `options` are
    the options of the call, and `others` are arguments that must be None.
    """
    given = [name for name, value in others.items() if value is not None]
    given += [name for name in options if name in _DETERMINED]
    if given:
        raise TypeError(
            f"{listed(given)} must be left out with a recording, whose layers have their own keys, "
            "masks and options"
        )
    layers = (query,) if isinstance(query, RecordedLayer) else query.layers
    if not layers:
        raise ValueError("the recording must have at least one layer, got none")
    return layers


def pairs_of_layers(query: Any, key: Any) -> list[tuple[Any, Any]] | None:
    """Return the query and the key of each layer if they are lists, or None if they are arrays."""
    if is_list_of_arrays(query) != is_list_of_arrays(key):
        raise TypeError(
            "query and key must both be arrays, or both be lists of the layers' arrays, got "
            f"{type(query).__name__} and {type(key).__name__}"
        )
    if not is_list_of_arrays(query):
        return None
    if len(query) != len(key):
        raise ValueError(
            "query and key must be lists of the same length, one array for each layer, got "
            f"{len(query)} and {len(key)}"
        )
    return list(zip(query, key, strict=True))


def texts_of(layers: tuple[RecordedLayer, ...]) -> tuple[Any, Any] | None:
    """Return the texts of the queries and of the keys of layers of one text, for pictures.

    An axis whose tokens are unknown, or differ between layers, has None in place of texts. The
    result is None if neither axis has texts.
    """
    sides = []
    for name in ("query_tokens", "key_tokens"):
        found = {
            None if tokens is None else tuple(map(str, tokens.reshape(-1).tolist()))
            for tokens in (getattr(layer, name) for layer in map(of_one_text, layers))
        }
        sides.append(found.pop() if len(found) == 1 else None)
    return None if sides == [None, None] else (sides[0], sides[1])


def calls_of_layers(
    layers: Iterable[RecordedLayer],
    options: Mapping[str, Any],
    equal: Literal["sizes", "lengths"] = "sizes",
) -> list[CheckedCall]:
    """Return the calls of recorded layers, with other options of the call such as threads.

    Raises ValueError, which names the layers to select, unless the layers have equal sizes or
    lengths.
    """
    calls, groups = [], dict[str, list[str]]()
    for layer in layers:
        call = call_of(layer)
        calls.append(replace(call, options={**call.options, **options}))
        sizes = f"q_len {call.sizes.q_len}, kv_len {call.sizes.kv_len}"
        if equal == "sizes":
            batch = f"batch axes {call.sizes.batch}, " if call.sizes.batch else ""
            sizes = f"{batch}{call.sizes.heads} heads, {sizes}"
        groups.setdefault(sizes, []).append(layer.name)
    if len(groups) > 1:
        shown = "; ".join(f"{sizes} in {listed(names)}" for sizes, names in groups.items())
        raise ValueError(
            f"the layers of the recording must have the same {equal}, got {shown}: "
            f"recording.select({next(iter(groups.values()))!r}) chooses layers that agree, and so "
            "does a part of their names"
        )
    return calls
