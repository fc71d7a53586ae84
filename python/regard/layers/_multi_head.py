"""Multi-head attention as a layer with parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, Unpack, overload

import numpy as np

from regard._arguments.keywords import refuses_unknown
from regard._arguments.numbers import flag, window_sides
from regard._arguments.options import LayerOptions, RecordedOptions, names_of, takes_options
from regard._runtime.public import public
from regard.layers._cached import (
    attend_cached,
    attend_packed,
    refuse_in_train_mode,
    refuse_with_starts,
    restored_after_errors,
)
from regard.layers._draws import draw, draws
from regard.layers._gates import HeadGates
from regard.layers._inputs import held_inputs, inputs_of, recording_of
from regard.layers._named_parameters import NamedParameters
from regard.layers._norms import norm_of
from regard.layers._projections import LayerSizes, Projections
from regard.layers._rotation import Rotation
from regard.positional import alibi_slopes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, DTypeLike

    from regard._recording.recording import Recording
    from regard.layers._cached import Cache
    from regard.layers._draws import Rng
    from regard.layers._linear import FloatArray
    from regard.layers._norms import NormResult

_RECORDED = names_of(RecordedOptions)


@public
class MultiHeadAttention(NamedParameters):
    """Multi-head self-attention or cross-attention with projections, with or without a cache.

    The layer projects its inputs, splits the projections into heads, attends in each head, joins
    the heads and projects the result (Vaswani et al. 2017, "Attention Is All You Need", section
    3.2.2)::

        q, k, v = query @ W_query.T, key @ W_key.T, value @ W_value.T    (+ biases)
        output = join(attention(q[head], k[head], v[head]) for each head) @ W_out.T    (+ bias)

    Parameters
    ----------
    d_model : int
        Size of the query vectors and of the output vectors.
    num_heads : int
        Number of query heads.
    num_kv_heads : int, optional
        Number of key and value heads, which must divide `num_heads` (grouped-query attention).
        Equal to `num_heads` by default.
    head_dim : int, optional
        Size of a head. ``d_model / num_heads`` by default.
    d_key, d_value : int, optional
        Sizes of the key vectors and of the value vectors. `d_key` is `d_model` by default, and
        `d_value` is `d_key`.
    qkv_bias, out_bias : bool, optional
        Whether the projections before and after attention add a bias.
    is_causal : bool, optional
        Whether a position attends only to itself and earlier positions.
    window : (left, right), optional
        Number of neighbors that a position attends to on each side; None means no limit.
    rotary : True or mapping, optional
        Rotates queries and keys by their positions, ``i + query_offset`` for a query and ``j`` for
        a key. Either True, or a mapping with the options ``base``, ``rotary_dim``, ``interleaved``,
        ``scaling``, ``length`` and ``inverse_frequencies`` of `regard.positional.rotary`. For a
        Hugging Face model, pass ``{"scaling": config["rope_parameters"]}``.
    alibi : bool, optional
        Whether scores decrease with the distance: see `regard.positional.alibi_slopes`.
    distance_bias : int, optional
        Learns a bias for each head and each distance of a key from its query, as T5 does. The
        number n yields one bias for each distance from ``1 - n`` to ``n - 1``; farther keys have
        the bias of the last distance on their side. The parameter of shape ``(num_heads, 2 n - 1)``
        is 0 at first, and is called ``distance_bias`` in `state_dict`. See the option of this name
        in `regard.scaled_dot_product_attention`.
    head_gates : bool, optional
        Learns a number for each head, 1 at first, that multiplies the output of the head before the
        output projection. The parameter of shape ``(num_heads,)`` is called ``head_gates`` in
        `state_dict`. Calls accept additional gates.
    qk_norm : "rms", "rms_plus_one" or float, optional
        Divides each head of queries and keys by its root mean square and multiplies it by a weight,
        before any rotation (Qwen 3). A number is the eps under the root; ``"rms"`` means 1e-6.
        ``"rms_plus_one"`` multiplies by 1 + weight, as Gemma 3, Qwen3-Next and Qwen3.5 do.
    dropout : float, optional
        Probability, less than 1, of dropping each attention weight in train mode. The other weights
        are divided by ``1 - dropout``. Calls in train mode then need a `dropout_seed`.
    rng : numpy.random.Generator, TorchGenerator, int or None, optional
        Source of the parameters, which are drawn as for four ``torch.nn.Linear`` layers: query,
        key, value and out in this order, each weight before its bias. A `TorchGenerator` draws the
        same parameters as these layers in PyTorch. The norms of `qk_norm` multiply by 1 at first.
    dtype : dtype, optional
        float32 or float64: the dtype of the parameters, to which inputs are converted.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ValueError
        If a number is out of range, `num_kv_heads` does not divide `num_heads`, or `num_heads` does
        not divide `d_model` and `head_dim` is not given.

    See Also
    --------
    SelfAttention : one head, without the output projection.

    Notes
    -----
    Queries, keys and values of the same input are projected in one product, and so are keys and
    values of the same memory.

    The gradient of a loss with respect to the gates measures how much the loss depends on each
    head: the mean of its absolute value over many inputs is the importance of Michel et al. 2019,
    "Are Sixteen Heads Really Better than One?" (https://arxiv.org/abs/1905.10650).

    A layer begins in eval mode. After `train`, each call can be followed by `backward`, which
    returns the gradients of the inputs and adds the gradients of the parameters to `grads`.

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> layer = regard.MultiHeadAttention(64, 8, num_kv_heads=2, is_causal=True, rotary=True, rng=0)
    >>> x = np.random.default_rng(0).standard_normal((2, 10, 64))
    >>> layer(x).shape
    (2, 10, 64)

    Cross-attention to a memory:

    >>> memory = np.ones((2, 30, 64))
    >>> output, weights = regard.MultiHeadAttention(64, 8, rng=0)(x, memory, return_weights=True)
    >>> weights.shape
    (2, 8, 10, 30)
    """

    @refuses_unknown
    def __init__(
        self,
        d_model: SupportsIndex,
        num_heads: SupportsIndex,
        *,
        num_kv_heads: SupportsIndex | None = None,
        head_dim: SupportsIndex | None = None,
        d_key: SupportsIndex | None = None,
        d_value: SupportsIndex | None = None,
        qkv_bias: bool = False,
        out_bias: bool = False,
        is_causal: bool = False,
        window: tuple[int | None, int | None] | None = None,
        rotary: bool | Mapping[str, Any] | None = None,
        alibi: bool = False,
        distance_bias: SupportsIndex | None = None,
        head_gates: bool = False,
        qk_norm: Literal["rms", "rms_plus_one"] | float | None = None,
        dropout: float = 0.0,
        rng: Rng = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        super().__init__(dropout, dtype)
        sizes = LayerSizes.of(d_model, num_heads, num_kv_heads, head_dim, d_key, d_value)
        self._is_causal = flag("is_causal", is_causal)
        self._window = None if window is None else window_sides(window)
        self._rotation = Rotation.of(rotary, sizes.head_dim, self._dtype)
        self._slopes = alibi_slopes(sizes.heads) if flag("alibi", alibi) else None
        norm = norm_of(qk_norm)
        own = draw(
            sizes,
            draws(rng),
            qkv_bias=flag("qkv_bias", qkv_bias),
            out_bias=flag("out_bias", out_bias),
            norm=norm,
            distance_bias=distance_bias,
            head_gates=flag("head_gates", head_gates),
            dtype=self._dtype,
        )
        self._projections = Projections(sizes, own, norm)

    @overload
    def __call__(
        self,
        query: ArrayLike,
        key: ArrayLike | None = ...,
        value: ArrayLike | None = ...,
        mask: ArrayLike | None = ...,
        *,
        cache: Cache | None = ...,
        starts: ArrayLike | None = ...,
        head_gates: ArrayLike | None = ...,
        return_weights: Literal[False] = ...,
        **options: Unpack[LayerOptions],
    ) -> FloatArray: ...
    @overload
    def __call__(
        self,
        query: ArrayLike,
        key: ArrayLike | None = ...,
        value: ArrayLike | None = ...,
        mask: ArrayLike | None = ...,
        *,
        cache: Cache | None = ...,
        starts: ArrayLike | None = ...,
        head_gates: ArrayLike | None = ...,
        return_weights: Literal[True],
        **options: Unpack[LayerOptions],
    ) -> tuple[FloatArray, FloatArray]: ...
    @refuses_unknown
    @takes_options(LayerOptions, reference="as in `regard.scaled_dot_product_attention`")
    def __call__(
        self,
        query: ArrayLike,
        key: ArrayLike | None = None,
        value: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        *,
        cache: Cache | None = None,
        starts: ArrayLike | None = None,
        head_gates: ArrayLike | None = None,
        return_weights: bool = False,
        **options: Any,
    ) -> FloatArray | tuple[FloatArray, FloatArray]:
        """Compute attention, and project the result.

        Parameters
        ----------
        query : array_like
            Shape ``(..., q_len, d_model)``: axes before the last two are batch axes. Real numbers,
            converted to the layer's dtype.
        key : array_like, optional
            Vectors to attend to, shape ``(..., kv_len, d_key)``; `query` by default.
        value : array_like, optional
            Shape ``(..., kv_len, d_value)``; `key` by default.
        mask : array_like of bool or float, SparseMask, or a pair (bool, float) of both, optional
            Bool: True where a query may attend. Float: added to the scaled scores. It broadcasts to
            ``(..., num_heads, q_len, kv_len)``, the shape of the weights. A PyTorch padding mask
            (``key_padding_mask``, True = hidden) becomes ``~padding[:, None, None, :]``.
        cache : KVCache or LayerCache, optional
            Keys and values of this layer from earlier calls. The new keys and values are appended,
            and the queries, which are at the last positions, attend to all keys. A call that fails
            leaves the cache unchanged; with one layer of a `KVCaches`, it undoes the step in all
            layers. In cross-attention, the first call fills the cache from `key`, and later calls
            pass an empty array, ``key[..., :0, :]``.
        starts : array_like of int, shape (sequences + 1,), optional
            The start of each packed sequence in `query`, which then has shape
            ``(tokens, d_model)``, followed by the number of tokens; see
            `regard.scaled_dot_product_attention_ragged`. With a cache, each sequence contains the
            new tokens of an entry, and may be empty; see `regard.KVCache.append_ragged`. A mask and
            the weights have shape ``(tokens, num_heads, longest)``. `key`, `query_offset`,
            `key_lengths` and `left_padding` must be omitted. Train mode does not accept `starts`.
        head_gates : array_like of float or bool, optional
            Multiplies the output of each head before the output projection, as the learned gates
            do: shape ``(num_heads,)``, or ``(..., num_heads)`` for each batch entry, and
            ``(sequences, num_heads)`` with `starts`. 0 removes a head (ablation), and the returned
            weights do not change. In train mode, `backward` returns its gradient too.
        query_offset : int, array_like of int or "end", optional
            Number of keys before the first query, scalar or one per batch entry; see
            `regard.scaled_dot_product_attention`. It must be omitted with a cache, which determines
            it.
        key_lengths : int or array_like of int, optional
            Number of real keys, scalar or one per batch entry. With a cache, number of real new
            keys.
        left_padding : int or array_like of int, optional
            Number of padding keys at the start, scalar or one per batch entry. It must be omitted
            with a cache, whose entries begin with their first token: pad on the right instead.
        dropout_seed : int, optional
            Determines, with the positions, heads and batch entries, which weights are dropped. It
            is required in train mode in a layer with `dropout`, and ignored otherwise. Every call
            and every layer should have a different seed.
        return_weights : bool, optional
            Whether to also return the attention weights, after dropout.
        {options}

        Returns
        -------
        output : numpy.ndarray
            Shape ``(..., q_len, d_model)``, in the layer's dtype.
        weights : numpy.ndarray
            Shape ``(..., num_heads, q_len, kv_len)``; returned if `return_weights`.

        Raises
        ------
        TypeError
            If an argument has the wrong type, or a call that drops weights has no `dropout_seed`.
        ValueError
            If shapes disagree or a number is out of range; if `value` is given without `key`,
            `query_offset` or `left_padding` with a cache, or `key` with a cache in a layer that
            depends on positions (causal, window, rotary, alibi, distance_bias); if `cache` is given
            in train mode.

        Examples
        --------
        The second of two sequences ends after two positions:

        >>> import numpy as np
        >>> import regard
        >>> layer = regard.MultiHeadAttention(4, 2, rng=0)
        >>> x = np.zeros((2, 3, 4))
        >>> layer(x, key_lengths=[3, 2], return_weights=True)[1][:, 0, 0].round(4)
        array([[0.3333, 0.3333, 0.3333],
               [0.5   , 0.5   , 0.    ]], dtype=float32)
        """
        if self.training:
            refuse_in_train_mode(cache, starts, options.get("precision"))
        threads, dropout_seed = options.pop("threads", None), options.pop("dropout_seed", None)
        given = options | self._own_options() | self._dropout_options(dropout_seed)
        sizes, learned = self._projections.sizes, self._projections.own.get("head_gates")
        sources = inputs_of(query, key, value, sizes.inputs, self._dtype)
        gates = HeadGates.of(learned, head_gates, sources, starts, sizes.heads)
        norms: dict[str, NormResult] | None = None
        if self.training:
            sources, norms = held_inputs(sources), {}
        q, k, _ = heads = self._projections.heads(sources, threads, norms)
        shared: dict[str, Any] = {"return_weights": return_weights, "threads": threads}
        if starts is None and cache is None:
            result: FloatArray | tuple[FloatArray, FloatArray] = self._attended(
                sources,
                heads,
                mask,
                given,
                **shared,
                gates=gates,
                norms=norms,
                rotation=self._rotation,
                places=self._turned(q, k, given),
                ends=(3,) if key is None else (1, 3) if value is None else (1, 2, 3),
            )
            return result
        given |= shared | {"mask": mask}
        with restored_after_errors(cache):
            if starts is not None:
                refuse_with_starts(q, given | {"key": key, "value": value})
                attended = attend_packed(cache, *heads, starts, self._rotation, given)
            else:
                if key is not None:
                    self._refuse_cross_attention()
                attended = attend_cached(cache, *heads, self._rotation, given)
            output, *weights = attended if return_weights else (attended,)
            projected = self._projections.out(self._projections.rows(output), gates, threads)
            return (projected, *weights) if return_weights else projected

    @refuses_unknown
    @takes_options(LayerOptions, reference="as in `regard.scaled_dot_product_attention`")
    def record(
        self,
        query: ArrayLike,
        key: ArrayLike | None = None,
        value: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        **options: Any,
    ) -> Recording:
        """Record the queries and keys of a call, without computing attention.

        The parameters are the same as for a call without a cache, of sequences that are not packed.
        `value`, `dropout_seed` and `precision`, which do not change the weights before dropout,
        have no effect.

        Parameters
        ----------
        query, key, value, mask
            As for a call.
        {options}

        Returns
        -------
        Recording
            One layer, with queries and keys after projection, norm and rotation.

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
        >>> layer = regard.MultiHeadAttention(16, 4, num_kv_heads=2, is_causal=True, rng=0)
        >>> layer.record(np.ones((6, 16)))
        Recording(1 layer, query (4, 6, 4) float32, key (2, 6, 4), 576 bytes)
        """
        threads = options.pop("threads", None)
        own = self._own_options() | {x: y for x, y in options.items() if x in _RECORDED}
        sources = inputs_of(query, key, value, self._projections.sizes.inputs, self._dtype)
        q, k, _ = self._projections.heads(sources, threads, None)
        self._turned(q, k, own)
        return recording_of(self, q, k, mask, own)
