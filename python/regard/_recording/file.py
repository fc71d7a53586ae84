"""Files of recordings: arrays as safetensors, and the rest as JSON in the header."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import stored
from regard._arguments.masks import is_sparse
from regard._arguments.numbers import file_path, integers
from regard._recording.layer import RecordedLayer, call_of, place_of
from regard._runtime.saving import check_place, write_tensors
from regard.checkpoints._safetensors import SafetensorsFile
from regard.masks import Blocks, Ranges, Selected

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Array = NDArray[Any]

_KEY, _VERSION = "regard.recording", 1
_SPARSE = {kind.__name__: kind for kind in (Ranges, Selected, Blocks)}


class _Stored:
    """The arrays and the token lists of a file, each once."""

    def __init__(self) -> None:
        self._names: dict[tuple[Any, ...], str] = {}
        self._numbers: dict[tuple[Any, ...], int] = {}
        self.arrays: dict[str, Array] = {}
        self.tokens: list[Any] = []

    def add(self, array: Array, name: str) -> str:
        """Return the name under which an array is stored."""
        found = self._names.setdefault(place_of(array), name)
        self.arrays.setdefault(found, array)
        return found

    def add_tokens(self, tokens: Array) -> int:
        """Return the number of a token list."""
        number = self._numbers.setdefault(place_of(tokens), len(self.tokens))
        if number == len(self.tokens):
            self.tokens.append(tokens.tolist())
        return number


def write(layers: Iterable[RecordedLayer], path: str | os.PathLike[str], overwrite: bool) -> None:
    """Write the layers of a recording to a file, completely or not at all."""
    check_place(path, overwrite)
    kept = _Stored()
    described = [_described(number, layer, kept) for number, layer in enumerate(layers)]
    facts = {"version": _VERSION, "layers": described, "tokens": kept.tokens}
    write_tensors("Recording.save", path, kept.arrays, {_KEY: json.dumps(facts)}, overwrite)


def _described(number: int, layer: RecordedLayer, kept: _Stored) -> dict[str, Any]:
    """Return the JSON description of a layer, whose arrays are kept."""
    call = call_of(layer)

    def name_of(array: Array, field: str) -> str:
        return kept.add(array, f"{number}.{field}")

    if "score_function" in call.options:
        raise ValueError(
            f"layer {layer.name!r} has a score_function, whose address has no meaning in another "
            "process: such layers are not saved"
        )
    options = {
        name: {"array": name_of(value, name)} if isinstance(value, np.ndarray) else value
        for name, value in call.options.items()
    }
    masks = {
        side: _described_mask(mask, f"{side}_mask", name_of)
        for side, mask in (("bool", call.masks.shown), ("float", call.masks.bias))
        if mask is not None
    }
    sides = {"query_tokens": layer.query_tokens, "key_tokens": layer.key_tokens}
    tokens = {side: kept.add_tokens(each) for side, each in sides.items() if each is not None}
    return {
        "name": layer.name,
        "query": name_of(call.query, "query"),
        "key": name_of(call.key, "key"),
        "masks": masks,
        "options": options,
        **tokens,
    }


def _described_mask(mask: Any, field: str, name_of: Any) -> dict[str, Any]:
    if not is_sparse(mask):
        return {"array": name_of(mask, field)}
    rows, planes, block = mask.__getstate__()
    parts = zip(("starts", "spans", "bits"), rows[:3], strict=True)
    return {
        "sparse": type(mask).__name__,
        **{part: name_of(array, f"{field}.{part}") for part, array in parts},
        "numbers": rows[3:6],
        "shape": rows[6],
        "planes": planes,
        "block": block,
    }


def read(path: str | os.PathLike[str]) -> list[RecordedLayer]:
    """Read the layers of a recording from a file."""
    name = file_path(path)
    file = SafetensorsFile(name)
    if _KEY not in file.metadata:
        raise ValueError(f"{name}: is not a recording: Recording.save writes such files")
    known: dict[str, Array] = {}

    def array(stored_as: Any) -> Array:
        """Return an array of the file; arrays that layers share are read once."""
        if stored_as not in known:
            known[stored_as] = file.stored(stored_as)
        return known[stored_as]

    try:
        facts = json.loads(file.metadata[_KEY])
        if facts["version"] != _VERSION:
            raise ValueError(f"version {facts['version']} is unknown, {_VERSION} is known")
        tokens = [_tokens_of(each) for each in facts["tokens"]]
        return [_layer_of(layer, tokens, array) for layer in facts["layers"]]
    except (ImportError, MemoryError, OSError):
        raise
    except Exception as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{name}: is a damaged recording: {reason}") from error


def _tokens_of(given: Any) -> Array:
    tokens: Array = np.array(given, object)
    if not all(isinstance(token, str) for token in tokens.flat) or not tokens.size:
        tokens = integers("tokens", given).astype(np.int64)
    tokens.flags.writeable = False
    return tokens


def _layer_of(facts: dict[str, Any], tokens: list[Array], array: Any) -> RecordedLayer:
    """Return a layer of a file; the constructor checks the content of the file."""
    options: dict[str, Any] = {
        name: array(value["array"]) if isinstance(value, dict) else value
        for name, value in facts["options"].items()
    }
    sides = [side for side in ("bool", "float") if side in facts["masks"]]
    masks = [_mask_of(facts["masks"][side], array) for side in sides]
    own = {side: tokens[facts[side]] for side in ("query_tokens", "key_tokens") if side in facts}
    query, key = (stored(side, array(facts[side])) for side in ("query", "key"))
    mask: Any = (None, *masks)[-1] if len(masks) < 2 else tuple(masks)
    return RecordedLayer(facts["name"], query, key, mask, **own, **options)


def _mask_of(facts: dict[str, Any], array: Any) -> Any:
    if "array" in facts:
        return array(facts["array"])
    starts, spans, bits = (array(facts[part]) for part in ("starts", "spans", "bits"))
    _check_sparse(starts, spans, bits)
    row_queries, first_query, first_key = map(int, facts["numbers"])
    if row_queries < 1 or first_query < 0 or first_key < 0:
        raise ValueError("the numbers of a sparse mask are out of range")
    shape, planes = tuple(map(int, facts["shape"])), tuple(map(int, facts["planes"]))
    if min(shape) < 0 or starts.shape[:-1] != shape[:-2]:
        raise ValueError("the arrays of a sparse mask do not have its shape")
    block = facts["block"]
    mask: Any = object.__new__(_SPARSE[facts["sparse"]])
    rows = starts, spans, bits, row_queries, first_query, first_key, shape
    mask.__setstate__((rows, planes, None if block is None else tuple(map(int, block))))
    return mask


def _check_sparse(starts: Array, spans: Array, bits: Array) -> None:
    """Raise ValueError for arrays that the kernels would misread."""
    has_types = starts.dtype == spans.dtype == np.int64 and bits.dtype == np.uint8
    has_shapes = starts.ndim > 0 and spans.ndim == 2 and spans.shape[1] == 3 and bits.ndim == 3
    if not (has_types and has_shapes):
        raise ValueError("the arrays of a sparse mask have wrong types or axes")
    begin, end = spans[:, 0], spans[:, 1]
    if (np.diff(starts, axis=-1) < 0).any() or (begin < 0).any() or (end < begin).any():
        raise ValueError("the rows of a sparse mask are not in order")
    is_partial = spans[:, 2] >= 0
    if (spans[:, 2] < -1).any() or (end - begin)[is_partial].max(initial=0) > 8 * bits.shape[2]:
        raise ValueError("the blocks of a sparse mask are larger than their bits")
