"""A decoder of the Llama family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsFloat, SupportsIndex

import numpy as np

from regard._arguments.numbers import count, integers, iterated, token_counts
from regard._attention.dense import scaled_dot_product_attention
from regard._cache import KVCaches
from regard._recording.layer import RecordedLayer
from regard._recording.recording import Recording
from regard._runtime.progress import check_progress, reporting
from regard._runtime.public import needed
from regard.layers._cached import restored_after_errors
from regard.layers._linear import project
from regard.layers._norms import rms_norm
from regard.layers._rotation import Rotation
from regard.models._functions import generator, sample, swiglu
from regard.models._gguf_tokenizer import SPACE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from regard._runtime.progress import Progress, Report
    from regard.models._parameters import Array, Parameters, Sizes

_CHUNK = 256  # tokens of a prompt to read at a time: enough for fast matrix products


class Model:
    """A language model of the Llama family, as `load` returns it (experimental).

    Attributes
    ----------
    name : str
        The name of the model.
    num_layers, num_heads, num_kv_heads, head_dim : int
        The sizes of its attention.
    windows : tuple of int or None
        The number of tokens that a token of each layer sees, itself included; None means all.
    context_length : int or None
        The number of tokens for which the model was trained, if its files say so.
    end_tokens : frozenset of int
        The tokens that end a text.
    num_parameters : int
        The number of weights in its files.
    tokenizer : tokenizers.Tokenizer
        Converts text to tokens and back.

    Examples
    --------
    >>> import regard
    >>> model = regard.models.load("model.gguf")  # doctest: +SKIP
    >>> caches = model.caches()  # doctest: +SKIP
    >>> x = model([model.tokenizer.encode("Once upon a time").ids], caches)  # doctest: +SKIP
    >>> model.logits(x[:, -1]).argmax()  # doctest: +SKIP
    28
    """

    def __init__(self, sizes: Sizes, parameters: Parameters, tokenizer: Any) -> None:
        self.name, self.tokenizer = sizes.name, tokenizer
        self.num_layers, self.num_heads, self.num_kv_heads = sizes[1:4]
        self.head_dim, self.windows = sizes.head_dim, sizes.windows
        self.context_length, self.end_tokens = sizes.context_length, sizes.end_tokens
        self.num_parameters = parameters.size
        self._epsilon, self._parameters = sizes.epsilon, parameters
        self._rotation = Rotation(sizes.rotary, sizes.head_dim, np.dtype(np.float32))
        self._layers: list[Mapping[str, Any]] | None = None

    def read(self) -> None:
        """Read all parameters into memory."""
        _ = self._parameters.whole
        self._layers = [self._parameters.layer(number) for number in range(self.num_layers)]

    def __repr__(self) -> str:
        """Show the name and the sizes."""
        names = "num_layers", "num_heads", "num_kv_heads", "head_dim"
        return f"Model({self.name!r}, {', '.join(f'{x}={getattr(self, x)}' for x in names)})"

    def caches(self, batch: int = 1, **options: Any) -> KVCaches:
        """Return empty caches for the keys and values of all layers.

        Parameters
        ----------
        batch : int, optional
            Number of texts.
        **options
            Options of `regard.KVCaches`, such as ``dtype`` and ``page_size``. In a model with
            windows, ``keep_last=model.windows`` frees the tokens that a layer no longer sees.
        """
        return KVCaches(self.num_layers, batch, self.num_kv_heads, self.head_dim, **options)

    def __call__(
        self, tokens: ArrayLike, caches: Sequence[Any], starts: ArrayLike | None = None
    ) -> Array:
        """Read the new tokens of texts after the tokens in their caches.

        Parameters
        ----------
        tokens : array_like of int, shape (batch, new)
            The new tokens; with `starts`, packed tokens of shape ``(tokens,)``.
        caches : KVCaches
            The caches of the texts, to which keys and values are appended.
        starts : array_like of int, shape (batch + 1,), optional
            The start of each text in packed tokens, as for `regard.KVCache.append_ragged`.

        Returns
        -------
        numpy.ndarray of float32, shape (batch, new, width) or (tokens, width)
            The results of the last norm, from which `logits` predicts the next tokens.

        Raises
        ------
        TypeError
            If `tokens` or `starts` are not integers.
        ValueError
            If a token is unknown, or the shapes or the number of caches do not fit. A call that
            fails leaves the caches unchanged.
        """
        numbers = integers("tokens", tokens)
        if numbers.ndim != (2 if starts is None else 1):
            wanted = "(batch, new)" if starts is None else "(tokens,) with starts"
            raise ValueError(f"tokens must have shape {wanted}, got {numbers.shape}")
        if len(caches) != self.num_layers:
            raise ValueError(
                f"caches must have one cache for each of {self.num_layers} layers, got "
                f"{len(caches)}"
            )
        batch = len(caches[0].lengths)
        if starts is None:
            if len(numbers) != batch:
                raise ValueError(
                    f"tokens must have the batch axis of caches, {batch}, got {len(numbers)}"
                )
            starts = np.arange(batch + 1) * numbers.shape[1]
        counts = token_counts(starts, "tokens", numbers.size, batch)
        with restored_after_errors(caches[0]):
            x = self._forward(numbers.ravel(), caches, counts, cached=True)
        return x.reshape(*numbers.shape, x.shape[-1])

    def logits(self, x: ArrayLike) -> Array:
        """Score every token of the vocabulary as the next token.

        Parameters
        ----------
        x : array_like, shape (..., width)
            Results of a call, usually of the last token of each text.

        Returns
        -------
        numpy.ndarray of float32, shape (..., vocabulary)
            The logits, from which `sample` draws.
        """
        return project(np.asarray(x, np.float32), self._parameters.whole[2], None, None)

    def generate(
        self,
        prompt: str | ArrayLike,
        max_tokens: SupportsIndex = 256,
        *,
        temperature: SupportsFloat = 0.0,
        top_k: SupportsIndex | None = None,
        top_p: SupportsFloat | None = None,
        rng: Any = None,
        **cache_options: Any,
    ) -> Iterator[str]:
        """Continue a text.

        Parameters
        ----------
        prompt : str or array_like of int
            The beginning of the text, or its tokens.
        max_tokens : int, optional
            Largest number of tokens to generate. One of `end_tokens` ends the text earlier.
        temperature, top_k, top_p, rng
            As for `sample`. By default, every token is the most likely one.
        **cache_options
            Options of `regard.KVCaches`, such as ``dtype`` and ``keep_last``.

        Yields
        ------
        str
            A part of the continuation, as soon as its characters are complete.

        Raises
        ------
        TypeError
            If an argument has the wrong type.
        ValueError
            If the prompt has no tokens or unknown tokens, or a number is out of range.
        """
        if isinstance(prompt, str):
            tokens = self.tokenizer.encode(prompt).ids
        else:
            tokens = integers("prompt", prompt).ravel().tolist()
        if not tokens:
            raise ValueError("prompt must have at least one token, got none")
        most = count("max_tokens", max_tokens)
        sampling: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        sample([0.0], **sampling, rng=0)  # raises an error for numbers out of range
        sampling["rng"] = generator(rng)
        caches = self.caches(**cache_options)
        return self.decode_stream(self._continued(tokens, most, caches, sampling), tokens)

    def _continued(
        self, tokens: list[int], most: int, caches: KVCaches, sampling: Mapping[str, Any]
    ) -> Iterator[int]:
        for start in range(0, len(tokens), _CHUNK):
            x = self([tokens[start : start + _CHUNK]], caches)
        for number in range(most):
            token = sample(self.logits(x[0, -1]), **sampling)
            if token in self.end_tokens:
                return
            yield token
            if number + 1 < most:
                x = self([[token]], caches)

    def decode_stream(self, tokens: Iterable[int], after: Sequence[int] = ()) -> Iterator[str]:
        """Yield the text of tokens as they arrive, each character when it is complete.

        Parameters
        ----------
        tokens : iterable of int
            The tokens.
        after : sequence of int, optional
            The tokens before them, whose text is not yielded.

        Yields
        ------
        str
            The text of one or more tokens.
        """
        decoders = needed("tokenizers.decoders", "a model", "models")
        stream = decoders.DecodeStream(list(after), skip_special_tokens=True)
        for token in tokens:
            text = stream.step(self.tokenizer, token)
            if text:
                yield text

    def tokens(self, text: str) -> tuple[list[int], list[str]]:
        """Return the tokens of a text, and the text of each token.

        A token for a part of a character gets the whole character. A token without text gets its
        name.
        """
        encoding = self.tokenizer.encode(text)
        # The space that SentencePiece puts before a text would get the text's first character.
        texts = [
            " " if name == SPACE else text[first:end] if end > first else name
            for (first, end), name in zip(encoding.offsets, encoding.tokens, strict=True)
        ]
        return encoding.ids, texts

    def record(
        self, text: str, *, layers: Iterable[SupportsIndex] | None = None, progress: Progress = None
    ) -> Recording:
        """Read a text, and record the queries and keys of its attention.

        Parameters
        ----------
        text : str
            The text.
        layers : iterable of int, optional
            The numbers of the layers to record; all by default. Later layers are not computed.
        progress : bool or callable, optional
            As for `regard.explore`; it counts layers.

        Returns
        -------
        Recording
            A layer of the recording for each of `layers`, in ascending order, with its number as
            its name. The texts of the tokens are its tokens.

        Raises
        ------
        ValueError
            If the text has no tokens, or the model has no such layer.

        Examples
        --------
        >>> import regard
        >>> model = regard.models.load("model.gguf", in_memory=False)  # doctest: +SKIP
        >>> recording = model.record("The cat sat on the mat.", layers=[0, 5])  # doctest: +SKIP
        >>> recording.explore().save("page.html")  # doctest: +SKIP
        """
        check_progress(progress, "record")
        numbers, texts = self.tokens(text)
        if not numbers:
            raise ValueError("text must have at least one token, got none")
        every = range(self.num_layers)
        given = every if layers is None else iterated("layers", layers, "an iterable of int")
        wanted = {count("layers", layer, maximum=every[-1]) for layer in given}
        if not wanted:
            raise ValueError("layers must name at least one layer, got none")
        end = max(wanted) + 1
        with reporting(progress, end, "layer", "record") as report:
            readers = [_Reader(str(n), texts if n in wanted else None) for n in range(end)]
            seen = readers if report is None else _counted(readers, report)
            self._forward(np.array(numbers), seen, np.array([len(numbers)]), cached=False)
        return Recording(reader.layer for reader in readers if reader.layer is not None)

    def _forward(
        self, numbers: NDArray[Any], caches: Iterable[Any], counts: NDArray[Any], *, cached: bool
    ) -> Array:
        """Return the results of the last norm, after as many layers as there are caches."""
        embedding, final_norm, _ = self._parameters.whole
        known = self._parameters.tokens
        for number in (numbers.max(initial=0), numbers.min(initial=0)):
            if not 0 <= number < known:
                raise ValueError(
                    f"tokens must be from 0 to {known - 1}, the tokens of the model, got {number}: "
                    "if the tokenizer made it, they belong to different models"
                )
        x: Any = embedding[numbers].astype(np.float32, copy=False)
        starts = np.concatenate([[0], counts.cumsum()])
        places = None
        for layer, cache in enumerate(caches):
            if places is None:  # the layers of a step have the same lengths before it
                places = np.repeat(cache.lengths - starts[:-1], counts) + np.arange(len(x))
            own = self._layers[layer] if self._layers else self._parameters.layer(layer)
            normed = rms_norm(x, own["norm"], self._epsilon)
            query = self._heads(normed, own, "query", self.num_heads)
            key = self._heads(normed, own, "key", self.num_kv_heads)
            value = self._heads(normed, own, "value", self.num_kv_heads)
            turned = (heads.swapaxes(0, 1) for heads in (query, key))
            self._rotation.turn(*((heads, places) for heads in turned), cached=cached)
            cache.append_ragged(key, value, starts)
            window = self.windows[layer]
            options = {} if window is None else {"window": (window - 1, 0)}
            attended = cache.attend_ragged(query, starts, **options).reshape(len(x), -1)
            attended = attended.astype(np.float32, copy=False)  # of a cache of float64
            x = x + project(attended, own["output"], None, None)
            normed = rms_norm(x, own["feed_norm"], self._epsilon)
            gate, up = (project(normed, own[name], None, None) for name in ("gate", "up"))
            x = x + project(swiglu(gate, up), own["down"], None, None)
        return rms_norm(x, final_norm, self._epsilon)

    def _heads(self, x: Array, own: Mapping[str, Any], name: str, heads: int) -> Array:
        """Project to (tokens, heads, head_dim)."""
        rows = project(x, own[name], own.get(f"{name}_bias"), None)
        split = rows.reshape(len(x), heads, self.head_dim)
        norm = own.get(f"{name}_norm")
        return split if norm is None else rms_norm(split, norm, self._epsilon)


class _Reader:
    """Takes the place of a layer's cache to record the queries and keys of a text."""

    lengths = np.zeros(1, np.int64)

    def __init__(self, name: str, tokens: list[str] | None) -> None:
        self._name, self._tokens = name, tokens
        self.layer: RecordedLayer | None = None

    def append_ragged(self, key: Array, value: Array, _: Any) -> None:
        self._key, self._value = key.swapaxes(0, 1), value.swapaxes(0, 1)

    def attend_ragged(self, query: Array, _: Any, **window: Any) -> Array:
        arrays, options = (query.swapaxes(0, 1), self._key), {"is_causal": True, **window}
        if self._tokens is not None:
            tokens: Any = np.array(self._tokens, object)
            given: Any = {"query_tokens": tokens, "key_tokens": tokens, **options}
            self.layer = RecordedLayer(self._name, *arrays, **given)
        attended: Array = scaled_dot_product_attention(*arrays, self._value, **options)
        del self._key, self._value
        return attended.swapaxes(0, 1)


def _counted(readers: list[_Reader], report: Report) -> Iterator[_Reader]:
    for number, reader in enumerate(readers):
        yield reader
        report(number + 1, len(readers))
