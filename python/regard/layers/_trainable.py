"""The base class of layers: their modes, their parameters and the gradients of them."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any, Generic, Self, SupportsFloat, SupportsIndex, TypeVar

import numpy as np

from regard._arguments.arrays import as_native, single_or_double
from regard._arguments.keywords import refuses_unknown
from regard._arguments.numbers import count, real_number
from regard._attention.dense import scaled_dot_product_attention
from regard._show.shows_options import ShowsOptions
from regard.layers._backward import ForwardCall
from regard.layers._inputs import held_mask, held_options, real_array
from regard.layers._names import own_names
from regard.layers._projections import Projections

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, DTypeLike

    from regard.layers._gates import HeadGates
    from regard.layers._linear import FloatArray

Gradients = TypeVar("Gradients")
_MOST_SEED = 2**64 - 1
# Reasons why there are no gradients to compute.
_EVAL = "the layer is in eval() mode: call train() before the forward call"
_NO_CALL = "there was none since train()"
_USED = "the gradients of the last call have been computed already: call the layer again"
_COPIED = "a copy of a layer has none: call the copy"
_LOADED = "the parameters have been replaced since the last call: call the layer again"


class Trainable(ShowsOptions, Generic[Gradients]):
    """A layer that computes gradients in train mode. It begins in eval mode."""

    _projections: Projections

    def __init__(self, dropout: SupportsFloat, dtype: DTypeLike) -> None:
        self._dropout = real_number("dropout", dropout)
        if not 0 <= self._dropout < 1:
            raise ValueError(f"dropout must be at least 0 and less than 1, got {self._dropout}")
        self._dtype = single_or_double("dtype", dtype)
        self._training = False
        self._held: ForwardCall | str = _EVAL  # or the reason why there is none
        self._grads: dict[str, FloatArray] = {}

    def __getstate__(self) -> dict[str, Any]:
        # Plain values, so that a pickle names no module that may move, without the data of a call.
        held = self._held if isinstance(self._held, str) else _COPIED
        return vars(self) | {"_held": held, "_projections": self._projections.state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _projections=Projections(**state["_projections"]))

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

        Examples
        --------
        >>> import regard
        >>> layer = regard.SelfAttention(3, 2, rng=0).train()
        >>> layer.training, layer.eval().training
        (True, False)
        """
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

    def _dropout_options(self, seed: SupportsIndex | None) -> dict[str, Any]:
        """Return the dropout options of an attention call, or no options if it drops nothing."""
        number = None if seed is None else count("dropout_seed", seed, maximum=_MOST_SEED)
        if not self._training or self._dropout == 0:
            return {}
        if number is None:
            raise TypeError(
                "dropout_seed must be an int in train() mode for a layer with dropout="
                f"{self._dropout}, got None: the seed determines which weights are dropped, so "
                "pass another seed in each call"
            )
        return {"dropout_p": self._dropout, "dropout_seed": number}

    def _attended(
        self,
        sources: list[FloatArray],
        heads: tuple[FloatArray, FloatArray, FloatArray],
        mask: Any,
        options: dict[str, Any],
        *,
        return_weights: bool,
        threads: int | None,
        gates: HeadGates | None = None,
        **held: Any,
    ) -> Any:
        """Return the result of a call, and in train mode keep its data, with `held`."""
        more: Any = {"return_weights": return_weights, "return_lse": self.training}
        query, key, value = heads
        attended: Any = scaled_dot_product_attention(
            query, key, value, mask, **options, **more, threads=threads
        )
        is_pair = return_weights or self.training
        output, *results = attended if is_pair else (attended,)
        projections = self._projections
        rows = projections.rows(output)
        result = projections.out(rows, gates, threads)
        if self.training:
            # In place of the data of an earlier call.
            self._held = ForwardCall(
                projections=projections,
                sources=sources,
                heads=heads,
                rows=rows.copy() if result is rows else rows,
                lse=results[-1],
                mask=held_mask(mask),
                options=held_options(options),
                names=self._names(),
                gates=gates,
                **held,
            )
        return (result, results[0]) if return_weights else result

    def _names(self) -> dict[str, str]:
        """Return the names in a state, with the names of their parameters in the projections."""
        return own_names(self._projections.own)

    def _load(self, parameters: Mapping[str, FloatArray]) -> None:
        """Replace the numbers of parameters, and refuse `backward` until the next call."""
        if not isinstance(self._held, str):
            self._held = _LOADED
        for name, array in parameters.items():
            self._projections.own[name][...] = array

    def parameters(self) -> dict[str, FloatArray]:
        """Return the parameters themselves, to be changed in place.

        The arrays stay the same for the life of the layer, and `load_state_dict` writes into them.
        Change them after `backward`, not between a call and its `backward`, which reads them.

        Returns
        -------
        dict of str to numpy.ndarray
            The arrays that calls read, by their names in `state_dict` and `grads`.

        Examples
        --------
        A step of gradient descent toward an output of zeros:

        >>> import numpy as np
        >>> import regard
        >>> layer = regard.MultiHeadAttention(8, 2, rng=0).train()
        >>> x = np.random.default_rng(0).standard_normal((2, 5, 8))
        >>> before = layer(x)
        >>> _ = layer.backward(before)  # the gradient of (output ** 2).sum() / 2
        >>> for name, parameter in layer.parameters().items():
        ...     parameter -= 0.01 * layer.grads[name]
        >>> bool(np.square(layer(x)).sum() < np.square(before).sum())
        True
        """
        own = self._projections.own
        return {name: own[part] for name, part in self._names().items()}

    @refuses_unknown
    def backward(self, grad: ArrayLike, *, threads: int | None = None) -> Gradients:
        """Compute the gradients of the last call in train mode.

        The gradients of the parameters are added to `grads`. A call allows one `backward`. A
        `backward` that fails leaves `grads` unchanged.

        Parameters
        ----------
        grad : array_like, shape (..., q_len, d_model) or (..., seq, d_out)
            The gradient of the loss with respect to the output of the call. Real numbers, converted
            to the layer's dtype.
        threads : int, optional
            Number of threads. The gradients are bitwise the same for any number.

        Returns
        -------
        numpy.ndarray or InputGradients
            The gradient of `query` if the call had no other input, as in ``layer(x)``. Otherwise a
            named tuple (query, key, value, head_gates), with None for missing inputs. The part of a
            missing `value` is in the gradient of `key`, and the part of a missing `key` is in the
            gradient of `query`. The gradients have the shapes of the inputs and the layer's dtype.
            For gradients of `mask` and `sinks`, see `regard.scaled_dot_product_attention_backward`.

        Raises
        ------
        RuntimeError
            If there was no call in train mode, or its gradients have already been computed.
        TypeError
            If `grad` is not an array of real numbers.
        ValueError
            If `grad` does not have the shape of the output.

        Notes
        -----
        A row of `key` or `value` that no query sees has gradient 0 and adds nothing to the
        gradients of parameters, whatever it contains.

        Examples
        --------
        >>> import numpy as np
        >>> import regard
        >>> layer = regard.MultiHeadAttention(8, 2, out_bias=True, rng=0).train()
        >>> x, memory = np.ones((2, 3, 8)), np.ones((2, 5, 8))
        >>> grad_x = layer.backward(np.ones_like(layer(x)))
        >>> grad_x.shape
        (2, 3, 8)
        >>> gradients = layer.backward(np.ones_like(layer(x, memory)))
        >>> gradients.query.shape, gradients.key.shape, gradients.value
        ((2, 3, 8), (2, 5, 8), None)
        >>> layer.grads["out_proj.bias"]  # of both calls: 2 * 6 rows
        array([12., 12., 12., 12., 12., 12., 12., 12.], dtype=float32)
        """
        call = self._held
        if isinstance(call, str):
            raise RuntimeError(f"backward needs a forward call in train() mode, and {call}")
        inputs: Any
        given, shape = real_array("grad", grad), call.output_shape
        if given.shape != shape:
            raise ValueError(f"grad must have the shape of the output, {shape}, got {given.shape}")
        inputs, gradients = call.gradients(as_native(given, self._dtype), threads)
        with np.errstate(over="ignore", invalid="ignore"):
            for name, gradient in gradients.items():
                if name in self._grads:
                    np.add(self._grads[name], gradient, out=gradient)
        # Nothing has changed so far, and one step changes all gradients.
        self._held = _USED
        self._grads.update(gradients)
        result: Gradients = inputs
        return result
