"""Self-attention of one head as a layer with parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypeAlias, overload

import numpy as np

from regard._arguments import count, flag, mapping
from regard._arrays import as_mask, broadcasts_to, single_or_double
from regard._attention import scaled_dot_product_attention
from regard._translations import translates_keywords
from regard.layers._draws import draws
from regard.layers._inputs import vectors
from regard.layers._linear import project
from regard.layers._state import check_arrays, check_names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from regard.layers._draws import Rng
    from regard.layers._linear import FloatArray

    Init: TypeAlias = Literal["linear", "uniform", "normal"]

_INITS = ("linear", "uniform", "normal")
_NAMES = ("query", "key", "value")
_SHORT = {"W_q": "W_query", "W_k": "W_key", "W_v": "W_value"}


class SelfAttention:
    """Scaled dot-product attention of a sequence to itself, in one head.

    The layer projects ``x`` to queries, keys and values and attends::

        query, key, value = x @ W_query, x @ W_key, x @ W_value
        output = softmax(query @ key.T / sqrt(d_out) + mask) @ value

    Parameters
    ----------
    d_in : int
        Size of the vectors that the layer takes.
    d_out : int
        Size of the context vectors that it returns.
    qkv_bias : bool, optional
        Whether the three projections add a bias. Needs ``init="linear"``.
    init : {"linear", "uniform", "normal"}, optional
        How the parameters are drawn. ``"linear"`` is ``torch.nn.Linear``: weights of shape
        ``(d_out, d_in)``, used as ``x @ weight.T``, uniform within ``1 / sqrt(d_in)`` of 0, and
        biases likewise. ``"uniform"`` is ``torch.rand``, uniform on [0, 1), and ``"normal"`` is
        ``torch.randn``: weights of shape ``(d_in, d_out)``, used as ``x @ weight``.
    rng : numpy.random.Generator, TorchGenerator, int or None, optional
        What the parameters are drawn from: query, key and value in this order, each weight before
        its bias. An int or None makes ``numpy.random.default_rng(rng)``. A
        `TorchGenerator` gives the parameters of the same layer in PyTorch.
    dtype : dtype, optional
        float32 or float64: the dtype of the parameters, to which ``x`` is converted.

    Attributes
    ----------
    W_query, W_key, W_value : numpy.ndarray
        The weights.
    b_query, b_key, b_value : numpy.ndarray or None
        The biases, of shape ``(d_out,)``; None without `qkv_bias`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or `dtype` is neither float32 nor float64.
    ValueError
        If `d_in` or `d_out` is less than 1, `init` is unknown, `rng` is a negative int, or
        `qkv_bias` is combined with an `init` other than ``"linear"``.

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

    W_query: FloatArray
    W_key: FloatArray
    W_value: FloatArray
    b_query: FloatArray | None
    b_key: FloatArray | None
    b_value: FloatArray | None

    @translates_keywords
    def __init__(
        self,
        d_in: SupportsIndex,
        d_out: SupportsIndex,
        *,
        qkv_bias: bool = False,
        init: Init = "linear",
        rng: Rng = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        self._d_in = count("d_in", d_in, minimum=1)
        self._d_out = count("d_out", d_out, minimum=1)
        self._qkv_bias = flag("qkv_bias", qkv_bias)
        if init not in _INITS:
            raise ValueError(f"init must be 'linear', 'uniform' or 'normal', got {init!r}")
        if qkv_bias and init != "linear":
            raise ValueError(f"qkv_bias needs init='linear', got init={init!r}")
        self._init = init
        self._dtype = single_or_double("dtype", dtype)
        draw = self._drawing(rng)
        for name in _NAMES:
            weight, bias = draw()
            setattr(self, f"W_{name}", weight)
            setattr(self, f"b_{name}", bias)

    def __repr__(self) -> str:
        return (
            f"SelfAttention(d_in={self._d_in}, d_out={self._d_out}, qkv_bias={self._qkv_bias}, "
            f"init={self._init!r}, dtype={self._dtype})"
        )

    @overload
    def __call__(
        self,
        x: ArrayLike,
        mask: ArrayLike | None = ...,
        *,
        is_causal: bool = ...,
        return_weights: Literal[False] = ...,
        threads: int | None = ...,
    ) -> FloatArray: ...
    @overload
    def __call__(
        self,
        x: ArrayLike,
        mask: ArrayLike | None = ...,
        *,
        is_causal: bool = ...,
        return_weights: Literal[True],
        threads: int | None = ...,
    ) -> tuple[FloatArray, FloatArray]: ...
    @translates_keywords
    def __call__(
        self,
        x: ArrayLike,
        mask: ArrayLike | None = None,
        *,
        is_causal: bool = False,
        return_weights: bool = False,
        threads: int | None = None,
    ) -> FloatArray | tuple[FloatArray, FloatArray]:
        """Compute the context vectors of sequences.

        Parameters
        ----------
        x : array_like
            Shape ``(..., seq, d_in)``: axes before the last two are batch axes. Real numbers,
            converted to the layer's dtype.
        mask : array_like of bool or float, optional
            Bool: True where a query may attend. Float: added to the scaled scores. It broadcasts to
            ``(..., seq, seq)``, the shape of the weights, which has no axis for heads.
        is_causal : bool, optional
            Whether a position attends only to itself and those before it.
        return_weights : bool, optional
            Whether to return the attention weights too.
        threads : int, optional
            Number of threads.

        Returns
        -------
        output : numpy.ndarray
            The context vectors, of shape ``(..., seq, d_out)``.
        weights : numpy.ndarray
            Only with `return_weights`: of shape ``(..., seq, seq)``.

        Raises
        ------
        TypeError
            If `x` is not real or `mask` is neither bool nor float.
        ValueError
            If `x` or `mask` has a wrong shape.

        Examples
        --------
        The second sequence of two ends after two positions:

        >>> import numpy as np
        >>> import regard
        >>> layer = regard.SelfAttention(3, 2, rng=0)
        >>> mask = np.arange(3) < np.array([3, 2])[:, None, None]
        >>> layer(np.zeros((2, 3, 3)), mask, return_weights=True)[1][:, 0].round(4)
        array([[0.3333, 0.3333, 0.3333],
               [0.5   , 0.5   , 0.    ]], dtype=float32)
        """
        inputs = vectors("x", x, self._d_in, self._dtype)
        allowed = _with_heads(as_mask(mask), (*inputs.shape[:-1], inputs.shape[-2]))
        # Axes before the last two are batch axes here; attention reads the last of them as heads.
        query, key, value = (
            self._project(inputs, name, threads)[..., None, :, :] for name in _NAMES
        )
        if not return_weights:
            output = scaled_dot_product_attention(
                query, key, value, allowed, is_causal=is_causal, threads=threads
            )
            return output[..., 0, :, :]
        output, weights = scaled_dot_product_attention(
            query, key, value, allowed, is_causal=is_causal, return_weights=True, threads=threads
        )
        return output[..., 0, :, :], weights[..., 0, :, :]

    def state_dict(self) -> dict[str, FloatArray]:
        """Copy the parameters, named and shaped as PyTorch's ``state_dict`` has them.

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
        return {key: getattr(self, attribute).copy() for key, attribute in self._keys().items()}

    def load_state_dict(self, state: Mapping[str, ArrayLike]) -> None:
        """Copy parameters into the layer: all of them, or none if anything is wrong.

        Parameters
        ----------
        state : mapping of str to array_like
            Floating-point arrays, converted to the layer's dtype, as `state_dict` returns them or
            as PyTorch saves them. The short names ``W_q``, ``W_k`` and ``W_v`` stand for
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
        attributes = self._keys()
        given: dict[str, ArrayLike] = {}
        for name, value in mapping("state", state).items():
            key = _long_name(name)
            if key in attributes and key in given:
                raise ValueError(f"state must have {key} once, got {name} as well")
            given[key if key in attributes else str(name)] = value
        check_names(attributes, given)
        shapes = {key: self._shape(attribute) for key, attribute in attributes.items()}
        for key, array in check_arrays(shapes, given, self._dtype).items():
            setattr(self, attributes[key], array)

    def _drawing(self, rng: Rng) -> Callable[[], tuple[FloatArray, FloatArray | None]]:
        source = draws(rng)
        d_in, d_out, dtype = self._d_in, self._d_out, self._dtype
        if self._init == "linear":
            return lambda: source.linear(d_in, d_out, self._qkv_bias, dtype)
        plain = source.rand if self._init == "uniform" else source.randn
        return lambda: (plain(d_in, d_out, dtype=dtype), None)

    def _keys(self) -> dict[str, str]:
        """Return the keys of a state in PyTorch's order, each with the attribute that it names."""
        if self._init != "linear":
            return {f"W_{name}": f"W_{name}" for name in _NAMES}
        parts = {"weight": "W", "bias": "b"} if self._qkv_bias else {"weight": "W"}
        return {
            f"W_{name}.{part}": f"{letter}_{name}"
            for name in _NAMES
            for part, letter in parts.items()
        }

    def _shape(self, attribute: str) -> tuple[int, ...]:
        if attribute.startswith("b_"):
            return (self._d_out,)
        if self._init == "linear":
            return (self._d_out, self._d_in)
        return (self._d_in, self._d_out)

    def _project(self, inputs: FloatArray, name: str, threads: int | None) -> FloatArray:
        weight = getattr(self, f"W_{name}")
        weight_out_in = weight if self._init == "linear" else weight.T
        return project(inputs, weight_out_in, getattr(self, f"b_{name}"), threads)


def _with_heads(mask: NDArray[Any] | None, shape: tuple[int, ...]) -> NDArray[Any] | None:
    """Add an axis for the heads to a mask that broadcasts to `shape`."""
    if mask is None:
        return None
    if not broadcasts_to(mask.shape, shape):
        raise ValueError(f"mask must broadcast to {shape}, got shape {mask.shape}")
    return mask[..., None, :, :] if mask.ndim > 2 else mask


def _long_name(name: str) -> str:
    head, dot, part = str(name).partition(".")
    return _SHORT.get(head, head) + dot + part
