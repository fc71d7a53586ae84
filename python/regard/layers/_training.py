"""The base class of layers with gradients: their modes, and the gradients of parameters."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any, Self, SupportsFloat, SupportsIndex

import numpy as np

from regard._arguments.arrays import as_array, as_native, is_floating
from regard._arguments.numbers import count, real_number
from regard._show.shows_options import ShowsOptions
from regard.layers._projections import Projections

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from regard.layers._backward import ForwardCall
    from regard.layers._linear import FloatArray

_MOST_SEED = 2**64 - 1
# Reasons why there are no gradients to compute.
_EVAL = "the layer is in eval() mode: call train() before the forward call"
_NO_CALL = "there was none since train()"
_USED = "the gradients of the last call have been computed already: call the layer again"
_COPIED = "a copy of a layer has none: call the copy"
_LOADED = "load_state_dict() has changed the parameters since the last call: call the layer again"


class Trainable(ShowsOptions):
    """A layer that computes gradients in train mode. It begins in eval mode."""

    _projections: Projections

    def __init__(self) -> None:
        self._training = False
        self._held: ForwardCall | str = _EVAL  # or the reason why there is none
        self._grads: dict[str, FloatArray] = {}
        self._weight_dtype: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Plain values, so that a pickle names no module that may move, without the data of a call.
        held = self._held if isinstance(self._held, str) else _COPIED
        return vars(self) | {"_held": held, "_projections": self._projections.state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _projections=Projections.of_state(state["_projections"]))

    def __copy__(self) -> Self:
        """Return a deep copy: two layers cannot train the same parameters."""
        return deepcopy(self)

    @property
    def training(self) -> bool:
        """Whether the layer is in train mode, in which `backward` can follow a call."""
        return self._training

    @property
    def grads(self) -> dict[str, FloatArray]:
        """The gradients of the parameters by their names in `state_dict`.

        `backward` adds to them, and `zero_grads` removes them. The dictionary is empty before the
        first `backward` and after `zero_grads`. Each array has the shape and dtype of its parameter
        and may be changed in place, for example to limit its norm.
        """
        return self._grads

    def train(self) -> Self:
        """Enter train mode, in which calls apply dropout and keep data for `backward`.

        A call keeps copies of its inputs, the projected queries, keys and values, and the output of
        attention. This memory grows with the lengths, not with their product. The next call
        replaces the data, and `backward` and `eval` release it.

        Returns
        -------
        layer
            The layer itself.

        Raises
        ------
        ValueError
            If the layer has a `weight_dtype`: rounding would lose the small steps of training.

        Examples
        --------
        >>> import regard
        >>> layer = regard.SelfAttention(3, 2, rng=0).train()
        >>> layer.training, layer.eval().training
        (True, False)
        """
        self._refuse_narrow("train")
        if not self._training:
            self._held = _NO_CALL
            self._training = True
        return self

    def eval(self) -> Self:
        """Enter eval mode, the mode of a new layer, and release the data of the last call.

        `grads` stay. Calls apply no dropout and keep no data.

        Returns
        -------
        layer
            The layer itself.

        Examples
        --------
        >>> import regard
        >>> regard.SelfAttention(3, 2, rng=0).train().eval().training
        False
        """
        self._training = False
        self._held = _EVAL
        return self

    def zero_grads(self) -> None:
        """Remove all gradients from `grads`.

        Examples
        --------
        >>> import numpy as np
        >>> import regard
        >>> layer = regard.SelfAttention(3, 2, rng=0).train()
        >>> _ = layer.backward(np.ones_like(layer(np.eye(3))))
        >>> sorted(layer.grads)
        ['W_key.weight', 'W_query.weight', 'W_value.weight']
        >>> layer.zero_grads()
        >>> layer.grads
        {}
        """
        self._grads.clear()

    def _refuse_narrow(self, method: str) -> None:
        if self._weight_dtype is not None:
            raise ValueError(
                f"{method} needs a layer whose weight_dtype is None, got {self._weight_dtype!r}"
            )

    def _hold(self, call: ForwardCall) -> None:
        """Keep the data for `backward`, in place of the data of an earlier call."""
        self._held = call

    def _drop_held(self) -> None:
        """Refuse `backward` until the next call, because the parameters are about to change."""
        if not isinstance(self._held, str):
            self._held = _LOADED

    def _backward(self, grad: ArrayLike, dtype: np.dtype[Any], threads: int | None) -> Any:
        """Return the input gradients of the last call, and add parameter gradients to `grads`."""
        call = self._held
        if isinstance(call, str):
            raise RuntimeError(f"backward needs a forward call in train() mode, and {call}")
        inputs, gradients = call.gradients(_gradient(grad, call.output_shape, dtype), threads)
        with np.errstate(over="ignore", invalid="ignore"):
            for name, gradient in gradients.items():
                if name in self._grads:
                    np.add(self._grads[name], gradient, out=gradient)
        # Nothing has changed so far, and one step changes all gradients.
        self._held = _USED
        self._grads.update(gradients)
        return inputs


def _gradient(grad: ArrayLike, shape: tuple[int, ...], dtype: np.dtype[Any]) -> FloatArray:
    """Return `grad` in a layer's dtype, or raise TypeError or ValueError."""
    array = as_array("grad", grad)
    if array.dtype.kind not in "iub" and not is_floating(array.dtype):
        raise TypeError(f"grad must be an array of real numbers, got {array.dtype}")
    if array.shape != shape:
        raise ValueError(f"grad must have the shape of the output, {shape}, got {array.shape}")
    return as_native(array, dtype)


def dropout_probability(dropout: SupportsFloat) -> float:
    """Return a probability less than 1, or raise TypeError or ValueError."""
    probability = real_number("dropout", dropout)
    if not 0 <= probability < 1:
        raise ValueError(f"dropout must be at least 0 and less than 1, got {probability}")
    return probability


def dropout_options(
    layer: Trainable, probability: float, seed: SupportsIndex | None
) -> dict[str, Any]:
    """Return the dropout options of an attention call, or no options if it drops nothing."""
    number = None if seed is None else count("dropout_seed", seed, maximum=_MOST_SEED)
    if not layer.training or probability == 0:
        return {}
    if number is None:
        raise TypeError(
            f"dropout_seed must be an int in train() mode for a layer with dropout={probability}, "
            "got None: the seed determines which weights are dropped, so pass another seed in each "
            "call"
        )
    return {"dropout_p": probability, "dropout_seed": number}
