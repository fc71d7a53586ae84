"""One recorded attention call."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, Unpack

import numpy as np

from regard._arguments.arrays import as_array, broadcasts_to, bytes_of
from regard._arguments.foreign import with_arrays
from regard._arguments.keywords import check_options
from regard._arguments.masks import is_sparse
from regard._arguments.numbers import integers, text, window_sides
from regard._arguments.option_table import OPTIONS
from regard._arguments.options import RecordedOptions, names_of, takes_options
from regard._arguments.score_function import ScoreFunction
from regard._attention.check import check_call
from regard._runtime.public import public

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import ArrayLike, NDArray

    from regard._attention.check import CheckedCall, Entry

    Array = NDArray[Any]

_OPTIONS = names_of(RecordedOptions)
_FIELDS = ("name", "_call", "query_tokens", "key_tokens")


@public
@takes_options(RecordedOptions)
class RecordedLayer:
    """The immutable queries, keys, mask and options of one attention call.

    `Recording` contains such layers. The attributes are arguments of regard's calls:
    ``regard.attention_map(layer.query, layer.key, layer.mask, **layer.options)``.

    Parameters
    ----------
    name : str
        The name of the layer, such as ``"model.layers.3.self_attn"``.
    query : array_like, shape (..., heads, q_len, head_dim)
        As for `scaled_dot_product_attention`. Arrays are not copied.
    key : array_like, shape (..., kv_heads, kv_len, head_dim)
        Likewise.
    mask : array_like of bool or float, SparseMask, or a pair (bool, float) of both, optional
        Likewise.
    query_tokens : array_like of int or str, shape (..., q_len), optional
        The token of each query, as a number or as text, for all batch entries or for each entry.
    key_tokens : array_like of int or str, shape (..., kv_len), optional
        The token of each key.
    {options}

    Attributes
    ----------
    name : str
        The name of the layer.
    query, key : numpy.ndarray
        The arrays, which are read-only.
    mask : ndarray, SparseMask, a pair of both, or None
        The mask.
    options : mapping
        The options that differ from their defaults.
    query_tokens, key_tokens : ndarray of int64 or of str objects, or None
        The tokens.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ValueError
        If shapes disagree or a number is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> query, key = np.ones((2, 4, 5, 8))
    >>> regard.RecordedLayer("first", query, key, is_causal=True)
    RecordedLayer('first', query (4, 5, 8) float64, key (4, 5, 8), is_causal=True, 2.56 kB)
    """

    __slots__ = ("_call", "key_tokens", "name", "query_tokens")

    name: str
    query_tokens: Array | None
    key_tokens: Array | None
    _call: CheckedCall

    def __init__(
        self,
        name: str,
        query: ArrayLike,
        key: ArrayLike,
        mask: ArrayLike | None = None,
        *,
        query_tokens: ArrayLike | None = None,
        key_tokens: ArrayLike | None = None,
        **options: Unpack[RecordedOptions],
    ) -> None:
        check_options("RecordedLayer", options, _OPTIONS)
        name = text("name", name)
        given: Any = with_arrays(options)
        call = check_call(query, key, None, mask, dict(_lasting(given)))
        if not call.has_heads:
            raise ValueError(
                "query must have a heads axis, (..., heads, q_len, head_dim), got shape "
                f"{call.query.shape}"
            )
        batch, lengths = call.sizes.batch, (call.sizes.q_len, call.sizes.kv_len)
        tokens = (
            None if given is None else as_tokens(which, given, (*batch, length))
            for which, given, length in zip(
                ("query_tokens", "key_tokens"), (query_tokens, key_tokens), lengths, strict=True
            )
        )
        self._set(name, call, *tokens)

    @classmethod
    def of(
        cls,
        name: str,
        call: CheckedCall,
        query_tokens: Array | None = None,
        key_tokens: Array | None = None,
    ) -> RecordedLayer:
        """Return the layer of a call that has been checked, and that has heads."""
        layer: RecordedLayer = object.__new__(cls)
        layer._set(name, call, query_tokens, key_tokens)
        return layer

    def _set(
        self, name: str, call: CheckedCall, query_tokens: Array | None, key_tokens: Array | None
    ) -> None:
        for array in (query_tokens, key_tokens):
            if array is not None:
                array.flags.writeable = False
        fields = name, call, query_tokens, key_tokens
        for field, value in zip(_FIELDS, fields, strict=True):
            object.__setattr__(self, field, value)

    @property
    def query(self) -> Array:
        """The queries."""
        return _frozen(self._call.query)

    @property
    def key(self) -> Array:
        """The keys."""
        return _frozen(self._call.key)

    @property
    def mask(self) -> Any:
        """The mask, as an argument of attention calls."""
        return self._call.masks.map(
            lambda part: part if is_sparse(part) else _frozen(part)
        ).argument

    @property
    def options(self) -> Mapping[str, Any]:
        """The options that differ from their defaults."""
        return MappingProxyType(self._call.options)

    @property
    def nbytes(self) -> int:
        """The memory of the arrays, in bytes."""
        return nbytes_of([self])

    def arrays(self) -> Iterator[Any]:
        """Iterate over the arrays and the sparse masks."""
        yield from (self._call.query, self._call.key, *self._call.masks.arrays)
        yield from (each for each in self._call.options.values() if isinstance(each, np.ndarray))
        yield from (each for each in (self.query_tokens, self.key_tokens) if each is not None)

    def entry(self, place: Entry) -> RecordedLayer:
        """Return the layer of one batch entry, which has no batch axes."""
        batch = self._call.sizes.batch
        tokens = (
            None if each is None else np.broadcast_to(each, (*batch, each.shape[-1]))[place].view()
            for each in (self.query_tokens, self.key_tokens)
        )
        call = self._call.entry(place)
        call = replace(call, options=dict(_lasting(call.options)))
        return RecordedLayer.of(self.name, call, *tokens)

    def with_tokens(self, query_tokens: Array | None, key_tokens: Array | None) -> RecordedLayer:
        """Return the layer with other tokens, which have been checked; None if they do not fit."""
        sizes = self._call.sizes
        fitting = (
            tokens
            if tokens is not None and broadcasts_to(tokens.shape, (*sizes.batch, length))
            else None
            for tokens, length in ((query_tokens, sizes.q_len), (key_tokens, sizes.kv_len))
        )
        return RecordedLayer.of(self.name, self._call, *fitting)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"a RecordedLayer is immutable: create a new layer to set {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a RecordedLayer is immutable: {name} cannot be deleted")

    def __getstate__(self) -> tuple[Any, ...]:
        call = self._call
        arrays = call.query, call.key, call.masks.argument, call.options
        return self.name, *arrays, self.query_tokens, self.key_tokens

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        name, *arrays, options, query_tokens, key_tokens = state
        query, key, mask = arrays
        self._set(name, check_call(query, key, None, mask, options), query_tokens, key_tokens)

    def __repr__(self) -> str:
        call = self._call
        facts = [f"query {call.query.shape} {call.query.dtype}", f"key {call.key.shape}"]
        facts += [f"mask {part.shape} {part.dtype}" for part in call.masks.arrays]
        facts += [f"{name}={short(value)}" for name, value in call.options.items()]
        return f"RecordedLayer({self.name!r}, {', '.join(facts)}, {bytes_of(self.nbytes)})"


def call_of(layer: RecordedLayer) -> CheckedCall:
    """Return the checked call of a layer, which has heads."""
    return layer._call


def as_tokens(name: str, value: ArrayLike, shape: tuple[int, ...]) -> Array:
    """Return tokens as an array of int64 or of str objects, or raise TypeError or ValueError."""
    array = as_array(name, value)
    if array.dtype.kind in "UT":
        array = array.astype(object)
    is_text = array.dtype.kind == "O" and array.size and all(isinstance(x, str) for x in array.flat)
    if not is_text:
        array = integers(name, value, "an array of integers or of texts").astype(
            np.int64, copy=False
        )
    if array.flags.writeable:  # layers share the arrays that cannot change
        array = array.copy()
    if not array.ndim or array.shape[-1] != shape[-1] or not broadcasts_to(array.shape, shape):
        raise ValueError(
            f"{name} must have one token for each position, in the shape {shape} or {shape[-1:]}, "
            f"got shape {array.shape}"
        )
    return array


def short(value: Any) -> str:
    """Return an option or a mask in a line: numbers in full, arrays by their shapes."""
    if isinstance(value, tuple) and any(isinstance(each, np.ndarray) for each in value):
        return f"({', '.join(map(short, value))})"
    if isinstance(value, np.ndarray | list):
        return f"array of shape {np.shape(value)}"
    # Its address differs between processes.
    return "ScoreFunction" if isinstance(value, ScoreFunction) else repr(value)


def _lasting(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the options that differ from their defaults, as numbers or as arrays."""
    for name, value in options.items():
        if name == "window":
            value = None if value is None else window_sides(value)
        elif isinstance(value, list | tuple | np.generic | np.ndarray):
            array = np.asarray(value)
            value = _frozen(array) if array.ndim else array.item()
        default = OPTIONS[name].default
        is_default = type(value) is type(default) and bool(value == default)
        if value is not None and not is_default:
            yield name, value


def nbytes_of(layers: Iterable[RecordedLayer]) -> int:
    """Return the memory of the arrays of some layers. Arrays that they share count once."""
    sizes = {place_of(array): array.nbytes for layer in layers for array in layer.arrays()}
    return sum(sizes.values())


def place_of(array: Any) -> tuple[Any, ...]:
    """Return a key that identifies the memory of an array, or the object of a sparse mask."""
    if is_sparse(array):
        return (id(array),)
    pointer = array.__array_interface__["data"][0]
    return pointer, array.shape, array.strides, array.dtype.name


def _frozen(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view
