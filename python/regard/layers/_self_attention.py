"""Self-attention in one head as a layer with parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypeAlias, Unpack, overload

import numpy as np

from regard._arguments.arrays import as_native, broadcasts_to, check_shape
from regard._arguments.keywords import refuses_unknown
from regard._arguments.masks import as_mask, is_sparse
from regard._arguments.numbers import choice, count, flag, mapping
from regard._arguments.options import SelfAttentionOptions, takes_options
from regard._runtime.public import public
from regard.layers._draws import draws
from regard.layers._inputs import real_array, recording_of, vectors
from regard.layers._names import check_arrays, check_names
from regard.layers._projections import INPUTS, LayerSizes, Projections
from regard.layers._trainable import Trainable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, DTypeLike

    from regard._recording.recording import Recording
    from regard.layers._draws import Rng
    from regard.layers._linear import FloatArray

    Init: TypeAlias = Literal["linear", "uniform", "normal"]

_SHORT = {"W_q": "W_query", "W_k": "W_key", "W_v": "W_value"}
_INITS = {"linear": "linear", "uniform": "rand", "normal": "randn"}  # methods of generators


class _Parameter:
    """An attribute that reads a parameter of a layer's projections, or copies numbers into it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, layer: Any, owner: type) -> Any:
        if layer is None:
            return self
        return layer._projections.own.get(self._name)

    def __set__(self, layer: Any, parameter: Any) -> None:
        own: dict[str, Any] = layer._projections.own
        if self._name not in own:
            if parameter is None:
                return
            raise ValueError(
                f"{self._name} must stay None in a layer without biases: create one with "
                "qkv_bias=True"
            )
        given = real_array(self._name, parameter)
        check_shape(self._name, given, own[self._name].shape, "the parameter")
        layer._load({self._name: as_native(given, layer._dtype)})


@public
class SelfAttention(Trainable["FloatArray"]):
    """Scaled dot-product attention of a sequence to itself, in one head.

    The layer projects ``x`` to queries, keys and values and attends::

        query, key, value = x @ W_query, x @ W_key, x @ W_value
        output = softmax(query @ key.T / sqrt(d_out) + mask) @ value

    Parameters
    ----------
    d_in : int
        Size of the input vectors.
    d_out : int
        Size of the returned context vectors.
    qkv_bias : bool, optional
        Whether the three projections add a bias. Needs ``init="linear"``.
    init : {"linear", "uniform", "normal"}, optional
        Distribution of the parameters. With ``"linear"``, as in ``torch.nn.Linear``, weights and
        biases are uniform within ``1 / sqrt(d_in)`` of 0, and weights have shape ``(d_out, d_in)``
        and are used as ``x @ weight.T``. With ``"uniform"``, as in ``torch.rand``, weights are
        uniform on [0, 1). With ``"normal"``, as in ``torch.randn``, weights are normally
        distributed. In both cases, they have shape ``(d_in, d_out)`` and are used as
        ``x @ weight``.
    dropout : float, optional
        Probability, less than 1, of dropping each attention weight in train mode. The other weights
        are divided by ``1 - dropout``. Calls in train mode then need a `dropout_seed`.
    rng : numpy.random.Generator, TorchGenerator, int or None, optional
        Source of the parameters, which are drawn for query, key and value in this order, each
        weight before its bias. An int or None means ``numpy.random.default_rng(rng)``. A
        `TorchGenerator` draws the same parameters as this layer in PyTorch.
    dtype : dtype, optional
        float32 or float64: the dtype of the parameters, to which ``x`` is converted.

    Attributes
    ----------
    W_query, W_key, W_value : numpy.ndarray
        The weights. Setting an attribute copies an array into the parameter.
    b_query, b_key, b_value : numpy.ndarray or None
        The biases, of shape ``(d_out,)``; None without `qkv_bias`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or `dtype` is neither float32 nor float64.
    ValueError
        If `d_in` or `d_out` is less than 1, `init` is unknown, `dropout` is not a probability less
        than 1, `rng` is a negative int, or `qkv_bias` is combined with an `init` other than
        ``"linear"``.

    Notes
    -----
    A layer begins in eval mode. After `train`, each call can be followed by `backward`, which
    returns the gradient of ``x`` and adds the gradients of the parameters to `grads`.

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> layer = regard.SelfAttention(3, 2, rng=regard.TorchGenerator(789))
    >>> layer
    SelfAttention(d_in=3, d_out=2, qkv_bias=False, init='linear', dtype=float32)
    >>> layer([[0.43, 0.15, 0.89], [0.55, 0.87, 0.66]]).shape
    (2, 2)
    >>> output, weights = layer(np.ones((5, 4, 3)), is_causal=True, return_weights=True)
    >>> output.shape, weights.shape
    ((5, 4, 2), (5, 4, 4))
    """

    W_query = _Parameter()
    W_key = _Parameter()
    W_value = _Parameter()
    b_query = _Parameter()
    b_key = _Parameter()
    b_value = _Parameter()

    @refuses_unknown
    def __init__(
        self,
        d_in: SupportsIndex,
        d_out: SupportsIndex,
        *,
        qkv_bias: bool = False,
        init: Init = "linear",
        dropout: float = 0.0,
        rng: Rng = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        super().__init__(dropout, dtype)
        size = count("d_in", d_in, minimum=1), count("d_out", d_out, minimum=1)
        has_biases = flag("qkv_bias", qkv_bias)
        self._init = choice("init", init, tuple(_INITS))
        if has_biases and init != "linear":
            raise ValueError(f"qkv_bias needs init='linear', got init={init!r}")
        source, own = draws(rng), {}
        for name in INPUTS:
            bias = None
            if init == "linear":
                weight, bias = source.linear(*size, has_biases, self._dtype)
            else:
                weight = getattr(source, _INITS[init])(*size, dtype=self._dtype)
            own[f"W_{name}"] = weight
            if bias is not None:
                own[f"b_{name}"] = bias
        sizes = LayerSizes((size[0],) * 3, 1, 1, size[1])
        self._projections = Projections(sizes, own, None, is_out_in=init == "linear")

    def _shown_options(self) -> dict[str, str]:
        sizes, dropout = self._projections.sizes, {"dropout": f"{self._dropout}"}
        return {
            "d_in": f"{sizes.inputs[0]}",
            "d_out": f"{sizes.head_dim}",
            "qkv_bias": f"{'b_query' in self._projections.own}",
            "init": f"{self._init!r}",
            **(dropout if self._dropout else {}),
            "dtype": f"{self._dtype}",
        }

    @overload
    def __call__(
        self,
        x: ArrayLike,
        mask: ArrayLike | None = ...,
        *,
        return_weights: Literal[False] = ...,
        **options: Unpack[SelfAttentionOptions],
    ) -> FloatArray: ...
    @overload
    def __call__(
        self,
        x: ArrayLike,
        mask: ArrayLike | None = ...,
        *,
        return_weights: Literal[True],
        **options: Unpack[SelfAttentionOptions],
    ) -> tuple[FloatArray, FloatArray]: ...
    @refuses_unknown
    @takes_options(SelfAttentionOptions)
    def __call__(
        self,
        x: ArrayLike,
        mask: ArrayLike | None = None,
        *,
        return_weights: bool = False,
        **options: Any,
    ) -> FloatArray | tuple[FloatArray, FloatArray]:
        """Compute the context vectors of sequences.

        Parameters
        ----------
        x : array_like
            Shape ``(..., seq, d_in)``: axes before the last two are batch axes. Real numbers,
            converted to the layer's dtype.
        mask : array_like of bool or float, or SparseMask, optional
            Bool: True where a query may attend. Float: added to the scaled scores. It broadcasts to
            ``(..., seq, seq)``, the shape of the weights, which has no heads axis.
        is_causal : bool, optional
            Whether a position attends only to itself and earlier positions.
        dropout_seed : int, optional
            Determines, with the positions and batch entries, which weights are dropped. It is
            required in train mode in a layer with `dropout`, and ignored otherwise. Every call and
            every layer should have a different seed.
        return_weights : bool, optional
            Whether to also return the attention weights, after dropout.
        {options}

        Returns
        -------
        output : numpy.ndarray
            Context vectors of shape ``(..., seq, d_out)``.
        weights : numpy.ndarray
            Shape ``(..., seq, seq)``; returned if `return_weights`.

        Raises
        ------
        TypeError
            If `x` is not real, `mask` is neither bool nor float, or a call that drops weights has
            no `dropout_seed`.
        ValueError
            If `x` or `mask` has a wrong shape, or `dropout_seed` is out of range.

        Examples
        --------
        The second of two sequences ends after two positions:

        >>> import numpy as np
        >>> import regard
        >>> layer = regard.SelfAttention(3, 2, rng=0)
        >>> mask = np.arange(3) < np.array([3, 2])[:, None, None]
        >>> layer(np.zeros((2, 3, 3)), mask, return_weights=True)[1][:, 0].round(4)
        array([[0.3333, 0.3333, 0.3333],
               [0.5   , 0.5   , 0.    ]], dtype=float32)
        """
        options |= self._dropout_options(options.pop("dropout_seed", None))
        inputs, allowed = self._inputs(x, mask)
        if self.training:
            inputs = inputs.copy()
        threads = options.pop("threads", None)
        # Axes before the last two are batch axes here; attention reads the last batch axis as
        # heads.
        heads = self._projections.heads([inputs] * 3, threads)
        result = self._attended(
            [inputs] * 3,
            heads,
            allowed,
            options,
            return_weights=return_weights,
            threads=threads,
        )
        return (result[0], result[1][..., 0, :, :]) if return_weights else result

    @refuses_unknown
    @takes_options(SelfAttentionOptions)
    def record(self, x: ArrayLike, mask: ArrayLike | None = None, **options: Any) -> Recording:
        """Record the queries and keys of a call, without computing attention.

        Parameters
        ----------
        x, mask
            As for a call.
        {options}

        Returns
        -------
        Recording
            One layer of one head.

        Raises
        ------
        TypeError, ValueError
            As for a call.

        Examples
        --------
        >>> import numpy as np
        >>> import regard
        >>> regard.SelfAttention(3, 2, rng=0).record(np.ones((4, 3)), is_causal=True)
        Recording(1 layer, query (1, 4, 2) float32, key (1, 4, 2), 64 bytes)
        """
        options.pop("dropout_seed", None)
        inputs, allowed = self._inputs(x, mask)
        query, key, _ = self._projections.heads([inputs] * 3, options.pop("threads", None))
        return recording_of(self, query, key, allowed, options)

    def state_dict(self) -> dict[str, FloatArray]:
        """Copy the parameters, with the names and shapes of a PyTorch ``state_dict``.

        Returns
        -------
        dict of str to numpy.ndarray
            ``"W_query.weight"`` and, with a bias, ``"W_query.bias"`` for ``init="linear"``;
            ``"W_query"`` otherwise; the same for key and value.

        Examples
        --------
        >>> import regard
        >>> list(regard.SelfAttention(3, 2, init="uniform", rng=0).state_dict())
        ['W_query', 'W_key', 'W_value']
        """
        return {key: parameter.copy() for key, parameter in self.parameters().items()}

    def load_state_dict(self, state: Mapping[str, ArrayLike]) -> None:
        """Copy parameters into the layer: all of them, or none if anything is wrong.

        They are written into the arrays of `parameters`. A `backward` for an earlier call then
        raises an error.

        Parameters
        ----------
        state : mapping of str to array_like
            Floating-point arrays, converted to the layer's dtype, as `state_dict` returns them or
            as PyTorch saves them. The short names ``W_q``, ``W_k`` and ``W_v`` are accepted for
            ``W_query``, ``W_key`` and ``W_value``.

        Raises
        ------
        TypeError
            If `state` is not a mapping or an array is not floating-point.
        ValueError
            If keys are missing or unexpected, or an array has the wrong shape.

        Examples
        --------
        >>> import regard
        >>> layer = regard.SelfAttention(3, 2, rng=0)
        >>> layer.load_state_dict(regard.SelfAttention(3, 2, rng=1).state_dict())
        """
        attributes, own = self._names(), self._projections.own
        given: dict[str, ArrayLike] = {}
        for name, value in mapping("state", state).items():
            key = _long_name(name)
            if key in attributes and key in given:
                raise ValueError(f"state must have {key} once, got {name} as well")
            given[key if key in attributes else str(name)] = value
        check_names(attributes, given)
        shapes = {key: own[attribute].shape for key, attribute in attributes.items()}
        arrays = check_arrays(shapes, given, self._dtype)
        self._load({attributes[key]: array for key, array in arrays.items()})

    def _names(self) -> dict[str, str]:
        own = self._projections.own
        return super()._names() if self._init == "linear" else {name: name for name in own}

    def _inputs(self, x: ArrayLike, mask: ArrayLike | None) -> tuple[FloatArray, Any]:
        """Return the input of a call, and its mask with a heads axis."""
        inputs = vectors("x", x, self._projections.sizes.inputs[0], self._dtype)
        shape, allowed = (*inputs.shape[:-1], inputs.shape[-2]), as_mask(mask)
        if allowed is None:
            return inputs, None
        # A sparse mask may have fewer keys, and does not broadcast over them.
        kv_len = allowed.shape[-1] if is_sparse(allowed) else shape[-1]
        if kv_len > shape[-1] or not broadcasts_to(allowed.shape, (*shape[:-1], kv_len)):
            raise ValueError(f"mask must broadcast to {shape}, got shape {allowed.shape}")
        return inputs, allowed[..., None, :, :] if allowed.ndim > 2 else allowed


def _long_name(name: str) -> str:
    head, dot, part = str(name).partition(".")
    return _SHORT.get(head, head) + dot + part
