"""Files of recordings: the arrays in the safetensors format, and the rest as JSON in its header."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import stored
from regard._arguments.masks import is_sparse
from regard._arguments.numbers import file_path, integers
from regard._recording.layer import RecordedLayer, call_of, place_of
from regard._runtime.optional import needed
from regard._runtime.saving import check_place, write_whole
from regard.checkpoints._bounded_file import BoundedFile, open_plain
from regard.masks._blocks import Blocks
from regard.masks._ranges import Ranges

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from regard._recording.recording import Recording

    Array = NDArray[Any]

_KEY, _VERSION = "regard.recording", 1
_TYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "BF16": "bfloat16",
    **{f"I{8 * size}": f"int{8 * size}" for size in (1, 2, 4, 8)},
}
_NAMES = {name: kind for kind, name in _TYPES.items()}
_SPARSE = {"Ranges": Ranges, "Blocks": Blocks}
_MOST_HEADER = 100_000_000  # the limit of the safetensors package


class _Arrays:
    """The arrays and the token lists of a file, each once."""

    def __init__(self) -> None:
        self._names: dict[tuple[Any, ...], str] = {}
        self._texts: dict[tuple[Any, ...], int] = {}
        self.arrays: dict[str, Array] = {}
        self.tokens: list[Any] = []

    def add(self, array: Array, name: str) -> str:
        """Return the name under which an array is stored."""
        place = place_of(array)
        if place not in self._names:
            self._names[place] = name
            self.arrays[name] = array
        return self._names[place]

    def add_tokens(self, tokens: Array) -> int:
        """Return the number of a token list."""
        place = place_of(tokens)
        if place not in self._texts:
            self._texts[place] = len(self.tokens)
            self.tokens.append(tokens.tolist())
        return self._texts[place]


def write(recording: Recording, path: str | os.PathLike[str], overwrite: bool) -> None:
    """Write a recording to a file, completely or not at all."""
    check_place(path, overwrite)
    arrays = _Arrays()
    layers = [_described(number, layer, arrays) for number, layer in enumerate(recording)]
    facts = {"version": _VERSION, "layers": layers, "tokens": arrays.tokens}
    header: dict[str, Any] = {"__metadata__": {_KEY: json.dumps(facts)}}
    end = 0
    for name, array in arrays.arrays.items():
        kind = _NAMES[array.dtype.name]
        header[name] = {
            "dtype": kind,
            "shape": array.shape,
            "data_offsets": (end, end + array.nbytes),
        }
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _MOST_HEADER:
        raise ValueError(
            f"the names, options and tokens of the recording need {len(text):,} bytes, and a "
            f"safetensors file has room for {_MOST_HEADER:,}: save parts of it, as select() "
            "returns them"
        )

    def parts() -> Iterator[bytes]:
        yield len(text).to_bytes(8, "little")
        yield text
        for array in arrays.arrays.values():
            # Copies at most one array at a time.
            little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
            yield little.reshape(-1).view(np.uint8).data  # type: ignore[misc]

    write_whole(path, parts(), overwrite)


def _described(number: int, layer: RecordedLayer, arrays: _Arrays) -> dict[str, Any]:
    """Return the JSON description of a layer, and add its arrays to `arrays`."""
    call = call_of(layer)

    def name_of(array: Array, field: str) -> str:
        return arrays.add(array, f"{number}.{field}")

    options: dict[str, Any] = {}
    for name, value in call.options.items():
        if name == "score_function":
            raise ValueError(
                f"layer {layer.name!r} has a score_function, whose address has no meaning in "
                "another process: such layers are not saved"
            )
        options[name] = {"array": name_of(value, name)} if isinstance(value, np.ndarray) else value
    masks = {
        side: _described_mask(mask, f"{side}_mask", name_of)
        for side, mask in (("bool", call.masks.shown), ("float", call.masks.bias))
        if mask is not None
    }
    tokens = {
        side: arrays.add_tokens(each)
        for side, each in (("query_tokens", layer.query_tokens), ("key_tokens", layer.key_tokens))
        if each is not None
    }
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
    return {
        "sparse": type(mask).__name__,
        **{
            part: name_of(array, f"{field}.{part}")
            for part, array in zip(("starts", "spans", "bits"), rows[:3], strict=True)
        },
        "numbers": rows[3:6],
        "shape": rows[6],
        "planes": planes,
        "block": block,
    }


def read(path: str | os.PathLike[str]) -> list[RecordedLayer]:
    """Read the layers of a recording from a file."""
    name = file_path(path)
    safetensors = needed("safetensors", "Recording.load", "models")
    with open_plain(name) as opened:
        file = BoundedFile(opened, name)
        try:
            with safetensors.safe_open(name, framework="numpy"):
                pass  # checks the sizes and the places of all arrays
        except safetensors.SafetensorError as error:
            file.refuse(f"is not a readable safetensors file: {error}")
        length = file.number("Q", "the header's length")
        header = json.loads(file.take(length, "the header"))
        metadata = header.pop("__metadata__", None) or {}
        if _KEY not in metadata:
            file.refuse("is not a recording: Recording.save writes such files")
        known: dict[str, Array] = {}

        def array(stored_as: Any) -> Array:
            """Return an array of the file; arrays that layers share are read once."""
            if stored_as not in known:
                entry = header[stored_as]
                begin, end = entry["data_offsets"]
                dtype = _dtype(entry["dtype"])
                size = (end - begin) // dtype.itemsize
                found = file.array(8 + length + begin, dtype.newbyteorder("<"), size, stored_as)
                known[stored_as] = found.astype(dtype, copy=False).reshape(entry["shape"])
            return known[stored_as]

        try:
            facts = json.loads(metadata[_KEY])
            if facts["version"] != _VERSION:
                raise ValueError(f"version {facts['version']} is unknown, {_VERSION} is known")
            tokens = [_tokens_of(each) for each in facts["tokens"]]
            return [_layer_of(layer, tokens, array) for layer in facts["layers"]]
        except (ImportError, MemoryError, OSError):
            raise
        except Exception as error:
            reason = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{name}: is a damaged recording: {reason}") from error


def _dtype(kind: str) -> np.dtype[Any]:
    if kind == "BF16":
        dtype: np.dtype[Any] = np.dtype(
            needed("ml_dtypes", "a recording in bfloat16", "models").bfloat16
        )
        return dtype
    return np.dtype(_TYPES[kind])


def _tokens_of(given: Any) -> Array:
    tokens: Array = np.array(given, object)
    if not all(isinstance(token, str) for token in tokens.flat) or not tokens.size:
        tokens = integers("tokens", given).astype(np.int64)
    tokens.flags.writeable = False
    return tokens


def _layer_of(facts: dict[str, Any], tokens: list[Array], array: Any) -> RecordedLayer:
    """Return a layer of a file; the constructor checks the content of the file."""
    options: dict[str, Any] = {}
    for name, value in facts["options"].items():
        options[name] = array(value["array"]) if isinstance(value, dict) else value
    masks = [
        _mask_of(facts["masks"][side], array)
        for side in ("bool", "float")
        if side in facts["masks"]
    ]
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
