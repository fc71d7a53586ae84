"""The parameters of self-attention in one head: their names and states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard._arguments.numbers import mapping
from regard.layers._state import can_hold, check_arrays, check_names, overwrite
from regard.layers._training import Trainable

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import ArrayLike

    from regard.layers._linear import FloatArray

NAMES = ("query", "key", "value")
_SHORT = {"W_q": "W_query", "W_k": "W_key", "W_v": "W_value"}


class SelfAttentionParameters(Trainable):
    """What `SelfAttention` does with its parameters beside calls."""

    W_query: FloatArray
    W_key: FloatArray
    W_value: FloatArray
    b_query: FloatArray | None
    b_key: FloatArray | None
    b_value: FloatArray | None
    _d_in: int
    _d_out: int
    _qkv_bias: bool
    _init: str
    _dtype: np.dtype[Any]

    def parameters(self) -> dict[str, FloatArray]:
        """Return the parameters themselves, to be changed in place.

        They are the arrays of the attributes; `load_state_dict` writes into them. Change them after
        `backward`, not between a call and its `backward`, which reads them.

        Returns
        -------
        dict of str to numpy.ndarray
            The arrays that calls read, by the names that `state_dict` and `grads` have.

        Examples
        --------
        A step of gradient descent towards an output of zeros:

        >>> import numpy as np
        >>> import regard
        >>> layer = regard.SelfAttention(3, 2, rng=0).train()
        >>> before = layer(np.eye(3))
        >>> _ = layer.backward(before)  # the gradient of (output ** 2).sum() / 2
        >>> for name, parameter in layer.parameters().items():
        ...     parameter -= 0.1 * layer.grads[name]
        >>> bool(np.square(layer(np.eye(3))).sum() < np.square(before).sum())
        True
        """
        return {key: getattr(self, attribute) for key, attribute in self._keys().items()}

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
        return {key: parameter.copy() for key, parameter in self.parameters().items()}

    def load_state_dict(self, state: Mapping[str, ArrayLike]) -> None:
        """Copy parameters into the layer: all of them, or none if anything is wrong.

        They are written into the arrays of `parameters`. A `backward` for an earlier call is
        refused afterwards.

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
        arrays = check_arrays(shapes, given, self._dtype)
        own = self.parameters()
        self._drop_held()
        if all(map(can_hold, own.values(), arrays.values())):
            overwrite(own.values(), arrays.values())
        else:  # an attribute has been set to something else
            vars(self).update({attributes[key]: array for key, array in arrays.items()})

    def _keys(self) -> dict[str, str]:
        """Return the keys of a state in PyTorch's order, each with the attribute that it names."""
        if self._init != "linear":
            return {f"W_{name}": f"W_{name}" for name in NAMES}
        parts = {"weight": "W", "bias": "b"} if self._qkv_bias else {"weight": "W"}
        return {
            f"W_{name}.{part}": f"{letter}_{name}"
            for name in NAMES
            for part, letter in parts.items()
        }

    def _shape(self, attribute: str) -> tuple[int, ...]:
        if attribute.startswith("b_"):
            return (self._d_out,)
        if self._init == "linear":
            return (self._d_out, self._d_in)
        return (self._d_in, self._d_out)


def _long_name(name: str) -> str:
    head, dot, part = str(name).partition(".")
    return _SHORT.get(head, head) + dot + part
