"""A recording: the attention calls of a model, in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np

from regard._arguments.arrays import bytes_of
from regard._arguments.numbers import count
from regard._recording.file import read, write
from regard._recording.layer import RecordedLayer, call_of, nbytes_of
from regard._recording.selection import number_in, places_in
from regard._runtime.public import public

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

    from regard._recording.selection import Layers

    Array = NDArray[Any]


@public
class Recording(Sequence[RecordedLayer]):
    """The queries, keys, masks and options of attention calls. A recording is immutable.

    It is a sequence of `RecordedLayer`: ``recording[3]`` and ``recording["encoder.0"]`` are layers,
    and ``recording[3:6]`` is a shorter recording. `regard.explore`, `regard.summarize_attention`
    and the functions of `regard.plot` accept a recording in place of query and key. Each layer
    keeps its own mask and options.

    `regard.transformers.record` and `regard.torch.record` record models, and
    `MultiHeadAttention.record` and `SelfAttention.record` record layers.

    Parameters
    ----------
    layers : iterable of RecordedLayer
        The layers, in order. Layers of several recordings may be joined.

    Raises
    ------
    TypeError
        If `layers` is not an iterable of `RecordedLayer`.

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> rng = np.random.default_rng(0)
    >>> layers = [regard.MultiHeadAttention(16, 4, is_causal=True, rng=i) for i in range(2)]
    >>> x = rng.standard_normal((6, 16))
    >>> recording = regard.Recording(layer.record(x)[0] for layer in layers)
    >>> recording
    Recording(2 layers, query (4, 6, 4) float32, key (4, 6, 4), 1.54 kB)
    >>> recording.summarize().entropy.shape  # layers, heads, queries
    (2, 4, 6)
    """

    __slots__ = ("_layers",)

    _layers: tuple[RecordedLayer, ...]

    def __init__(self, layers: Iterable[RecordedLayer]) -> None:
        if not isinstance(layers, Iterable):
            raise TypeError(
                f"layers must be an iterable of RecordedLayer, got {type(layers).__name__}"
            )
        given = tuple(layers)
        for number, layer in enumerate(given):
            if not isinstance(layer, RecordedLayer):
                raise TypeError(
                    f"layers[{number}] must be a RecordedLayer, got {type(layer).__name__}"
                )
        self._layers = given

    @property
    def layers(self) -> tuple[RecordedLayer, ...]:
        """The layers, in order."""
        return self._layers

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the layers."""
        return tuple(layer.name for layer in self._layers)

    @property
    def tokens(self) -> Array | None:
        """The tokens of the keys if they are the same in all layers, else None."""
        return _common(layer.key_tokens for layer in self._layers)

    @property
    def nbytes(self) -> int:
        """The memory of the arrays, in bytes. Layers may share arrays, which count once."""
        return nbytes_of(self._layers)

    def __len__(self) -> int:
        return len(self._layers)

    @overload
    def __getitem__(self, layer: SupportsIndex | str) -> RecordedLayer: ...
    @overload
    def __getitem__(self, layer: slice) -> Recording: ...
    def __getitem__(self, layer: SupportsIndex | str | slice) -> RecordedLayer | Recording:
        if isinstance(layer, slice):
            return Recording(self._layers[layer])
        if not isinstance(layer, str):
            # Loops over a sequence end at an IndexError.
            return self._layers[layer]
        found = [each for each in self._layers if each.name == layer]
        if len(found) != 1:
            has = f"{len(found)} layers have" if found else "no layer has"
            raise KeyError(f"{has} the name {layer!r}: names lists all of them")
        return found[0]

    def select(self, layers: Layers) -> Recording:
        """Return a recording of some of the layers, in the same order.

        Parameters
        ----------
        layers : int, slice, str, or iterable of int and str
            Numbers, names, and parts of names between dots: ``"encoder"`` selects
            ``"model.encoder.0.self_attn"``, and ``"encoder_attn"`` the cross-attention of all
            layers of BART.

        Returns
        -------
        Recording
            A recording that shares the arrays.

        Raises
        ------
        TypeError
            If `layers` has another type.
        ValueError
            If a number is out of range, or a name selects no layer.
        """
        return Recording(self._layers[place] for place in places_in(layers, self.names))

    def entry(self, place: SupportsIndex | tuple[SupportsIndex, ...] = 0) -> Recording:
        """Return the recording of one batch entry, such as one of several texts.

        Parameters
        ----------
        place : int or tuple of int, default 0
            The index of the batch axes.

        Returns
        -------
        Recording
            A recording that shares the arrays, and whose layers have no batch axes.

        Raises
        ------
        TypeError
            If `place` has another type.
        ValueError
            If `place` is out of range, or a layer has a different number of batch axes.
        """
        index = place if isinstance(place, tuple) else (place,)
        return Recording(layer.entry(_checked(index, layer)) for layer in self._layers)

    def summarize(self, **arguments: Any) -> Any:
        """Compute statistics of the weights of all layers, as `regard.summarize_attention` does.

        Parameters
        ----------
        **arguments
            `statistics`, `top_k`, `first_keys`, `local_reach`, `tokens`, `progress` and `threads`
            of `regard.summarize_attention`. Recorded tokens are the default of `tokens`.

        Returns
        -------
        AttentionSummary
            The arrays have a first axis for the layers: ``(layer, ..., head, ...)``.

        Raises
        ------
        TypeError, ValueError
            As `regard.summarize_attention`; also ValueError if the shapes of the layers differ:
            `select` chooses layers with equal shapes.
        """
        import regard

        return regard.summarize_attention(self, **arguments)

    def map(self, layer: SupportsIndex | str, head: SupportsIndex, **arguments: Any) -> Any:
        """Draw a picture of the weights of one head, as `regard.attention_map` does.

        Parameters
        ----------
        layer : int or str
            The number or the name of the layer.
        head : int
            The number of the query head.
        **arguments
            `shape`, `reduce`, `regions`, `progress` and `threads` of `regard.attention_map`.

        Returns
        -------
        ndarray or list of ndarray, each of shape (height, width)
            As `regard.attention_map` returns them.

        Raises
        ------
        KeyError
            If no layer, or more than one, has the name.
        TypeError, ValueError
            As `regard.attention_map`; also ValueError if a number is out of range, or if there are
            several batch entries: `entry` chooses one.
        """
        import regard

        chosen = self[layer if isinstance(layer, str) else number_in(layer, len(self))]
        call = call_of(of_one_text(chosen))
        number = count("head", head, minimum=-call.sizes.heads, maximum=call.sizes.heads - 1)
        place = number % call.sizes.heads
        part = RecordedLayer.of(chosen.name, call.part(heads=slice(place, place + 1)))
        pictures: Any = regard.attention_map(part, **arguments)
        return [each[0] for each in pictures] if isinstance(pictures, list) else pictures[0]

    def explore(self, **arguments: Any) -> Any:
        """Create an HTML page to explore all layers and heads, as `regard.explore` does.

        Parameters
        ----------
        **arguments
            The keywords of `regard.explore`, except mask and the options of attention. By default,
            `tokens` are the recorded tokens.

        Returns
        -------
        Explorer
            ``save("page.html")`` writes the page.

        Raises
        ------
        TypeError, ValueError
            As `regard.explore`; also ValueError if the lengths of the layers differ (`select`
            chooses some layers), or if there are several batch entries (`entry` chooses one).
        """
        import regard

        return regard.explore(self, **arguments)

    def rollout(self, **arguments: Any) -> Any:
        """Follow attention through all layers, as `regard.rollout` does.

        Parameters
        ----------
        **arguments
            `queries`, `residual`, `head_weights` and `threads` of `regard.rollout`.

        Returns
        -------
        ndarray, shape (..., queries, n)
            As `regard.rollout` returns it.

        Raises
        ------
        TypeError, ValueError
            As `regard.rollout`.
        """
        import regard

        return regard.rollout(self, **arguments)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the recording to a safetensors file, completely or not at all.

        Parameters
        ----------
        path : str or path
            The file to write, such as ``"text.safetensors"``.
        overwrite : bool, default False
            Whether to replace an existing file.

        Raises
        ------
        FileExistsError
            If the file exists and `overwrite` is False.
        ImportError
            If the safetensors package is missing; ``pip install ".[models]"`` installs it.
        OSError
            If the folder does not exist or the file cannot be written, as on a full disk. An
            existing file remains unchanged.
        TypeError
            If `path` is not a path, or `overwrite` is not a bool.
        ValueError
            If a layer has a score function, whose address has no meaning in another process, or
            `path` is a device.
        """
        write(self._layers, path, overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Recording:
        """Read a recording that `save` wrote.

        Parameters
        ----------
        path : str or path
            The file.

        Returns
        -------
        Recording
            Its arrays have the same bits as the arrays that were saved.

        Raises
        ------
        ImportError
            If the safetensors package is missing, or ml_dtypes for bfloat16;
            ``pip install ".[models]"`` installs both.
        OSError
            If the file cannot be read.
        TypeError
            If `path` is not a path.
        ValueError
            If the file is not a recording, or is damaged. The message names the file.
        """
        return cls(read(path))

    def __repr__(self) -> str:
        shapes = {
            (call_of(x).query.shape, call_of(x).query.dtype, call_of(x).key.shape)
            for x in self._layers
        }
        facts = [f"{len(self)} layer" + "s" * (len(self) != 1)]
        if len(shapes) == 1:
            ((query, dtype, key),) = shapes
            facts += [f"query {query} {dtype}", f"key {key}"]
        elif shapes:
            facts.append(f"{len(shapes)} different shapes")
        return f"Recording({', '.join(facts)}, {bytes_of(self.nbytes)})"


def of_one_text(layer: RecordedLayer) -> RecordedLayer:
    """Return a layer without batch axes, or raise ValueError if there are several entries."""
    batch = call_of(layer).sizes.batch
    if np.prod(batch, dtype=np.int64) != 1:
        raise ValueError(
            f"the recording must have one batch entry, got batch axes {batch} in layer "
            f"{layer.name!r}: recording.entry(i) chooses one"
        )
    return layer.entry((0,) * len(batch)) if batch else layer


def _checked(index: tuple[Any, ...], layer: RecordedLayer) -> tuple[int, ...]:
    """Return an index of the batch axes of a layer, or raise TypeError or ValueError."""
    batch = call_of(layer).sizes.batch
    if len(index) != len(batch):
        raise ValueError(
            f"the index of an entry must have one number for each batch axis of layer "
            f"{layer.name!r}, {batch}, got {len(index)}"
        )
    return tuple(
        count("the index of an entry", each, minimum=-size, maximum=size - 1) % size
        for each, size in zip(index, batch, strict=True)
    )


def _common(tokens: Iterable[Array | None]) -> Array | None:
    """Return the tokens that are the same in all layers, or None."""
    first, *others = list(tokens) or [None]
    if first is None or any(x is None or not np.array_equal(x, first) for x in others):
        return None
    return first
