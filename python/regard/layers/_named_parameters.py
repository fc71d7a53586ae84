"""The parameters of multi-head attention by their names, and the gradients of its calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard._arguments.keywords import refuses_unknown
from regard.layers._names import own_names, read_state, write_state
from regard.layers._training import Trainable

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import ArrayLike

    from regard._weights.quantized import QuantizedWeight
    from regard.layers._backward import InputGradients
    from regard.layers._linear import FloatArray


class NamedParameters(Trainable):
    """A layer that reads and writes its parameters in the layouts of libraries."""

    _dtype: np.dtype[Any]

    def parameters(self) -> dict[str, FloatArray]:
        """Return the parameters themselves, to be changed in place.

        The arrays stay the same for the life of the layer, and `load_state_dict` writes into them.
        Change them after `backward`, not between a call and its `backward`, which reads them.

        Returns
        -------
        dict of str to numpy.ndarray
            The arrays that calls read, by their names in `state_dict` and `grads`.

        Raises
        ------
        ValueError
            If the layer has a `weight_dtype`: the stored weights are rounded, and only
            `load_state_dict` can write them.

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
        self._refuse_narrow("parameters")
        names = own_names(self._projections.own)
        return {name: self._projections.own[part] for name, part in names.items()}

    @refuses_unknown
    def backward(
        self, grad: ArrayLike, *, threads: int | None = None
    ) -> FloatArray | InputGradients:
        """Compute the gradients of the last call in train mode.

        The gradients of the parameters are added to `grads`. A call allows one `backward`. A
        `backward` that fails leaves `grads` unchanged.

        Parameters
        ----------
        grad : array_like, shape (..., q_len, d_model)
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
        gradients: FloatArray | InputGradients = self._backward(grad, self._dtype, threads)
        return gradients

    def state_dict(self, names: str = "regard", prefix: str = "") -> dict[str, FloatArray]:
        """Copy the parameters, with the names and the layout of a chosen library.

        Parameters
        ----------
        names : str, optional
            ``"regard"`` (``W_query``, ``W_key``, ``W_value``, ``out_proj``, ``q_norm``,
            ``k_norm``, ``distance_bias``, ``head_gates``), ``"torch"``
            (``nn.MultiheadAttention``: ``in_proj_weight``, or ``q_proj_weight`` and so on if inputs
            differ in size), or a Hugging Face layout:
            ``"llama"`` (``q_proj`` .. ``o_proj``; also Qwen, Mistral), ``"bert"``
            (``self.query`` .. ``output.dense``), ``"gpt2"`` (``c_attn``, ``c_proj``, transposed),
            ``"bart"`` (``q_proj`` .. ``out_proj``; also OPT, CLIP), ``"whisper"`` (the same
            without a key bias), or ``"gguf"`` (``attn_q`` .. ``attn_output``, or ``attn_qkv``).
        prefix : str, optional
            A prefix for every name, joined to it by a dot.

        Returns
        -------
        dict of str to numpy.ndarray
            Copies of the parameters, in the layer's dtype even if it has a `weight_dtype`.

        Raises
        ------
        ValueError
            If `names` is unknown, or the layout has no place for a parameter of the layer.

        Examples
        --------
        >>> import regard
        >>> layer = regard.MultiHeadAttention(8, 4, num_kv_heads=2, rng=0)
        >>> {name: array.shape for name, array in layer.state_dict("llama", "attn").items()}
        ... # doctest: +NORMALIZE_WHITESPACE
        {'attn.q_proj.weight': (8, 8), 'attn.k_proj.weight': (4, 8),
         'attn.v_proj.weight': (4, 8), 'attn.o_proj.weight': (8, 8)}
        """
        own, offset = self._projections.widened(), self._projections.norm_offset
        return write_state(own, names, prefix, offset)

    def load_state_dict(
        self, state: Mapping[str, ArrayLike | QuantizedWeight], prefix: str = ""
    ) -> None:
        """Copy parameters into the layer: all of them, or none if anything is wrong.

        They are written into the arrays of `parameters`. A `backward` for an earlier call then
        raises an error.

        Parameters
        ----------
        state : mapping of str to array_like
            Floating-point arrays or PyTorch tensors, converted to the layer's dtype, or weights of
            type `QuantizedWeight`. Every layout of `state_dict` is recognized. Other entries of
            models are ignored: GPT-2's ``bias`` (its causal mask), BERT's ``output.LayerNorm``,
            Llama's ``rotary_emb.inv_freq``, the norms and feed-forward part of a GGUF block, a
            ``mask``. The key bias, which Whisper lacks, is 0, and the head gates, which only
            ``"regard"`` has, are 1. Llama models in GGUF files store their rows in the order of
            ``rotary={"interleaved": True}``. The norms of GGUF files contain the sum 1 + weight,
            from which a layer with ``qk_norm="rms_plus_one"`` subtracts 1.
        prefix : str, optional
            The layer to read from a model's state: ``"model.layers.3.self_attn"``,
            ``"encoder.layer.0.attention"`` (BERT), ``"h.0.attn"`` (GPT-2),
            ``"model.decoder.layers.0.encoder_attn"`` (Whisper), ``"blk.0"`` (GGUF). Other names are
            ignored.

        Raises
        ------
        TypeError
            If `state` is not a mapping, an array is not floating-point, or a tensor is on the meta
            device or has 8 bits.
        ValueError
            If names are missing or unexpected (the message lists them), arrays have wrong shapes,
            no name is known (the message lists the known layouts), the state belongs to a model
            whose norms need another `qk_norm`, or a weight cannot be stored in the layer's
            `weight_dtype`, because it is too large for float16 or bfloat16, or not finite with
            ``"int8"``.

        See Also
        --------
        regard.checkpoints.load_safetensors : reads a state, or one layer of it, from a file.

        Examples
        --------
        >>> import regard
        >>> layer = regard.MultiHeadAttention(8, 2, qkv_bias=True, out_bias=True, rng=0)
        >>> other = regard.MultiHeadAttention(8, 2, qkv_bias=True, out_bias=True, rng=1)
        >>> layer.load_state_dict(other.state_dict("gpt2", "h.0.attn"), "h.0.attn")
        """
        own = self._projections.own
        shapes = {name: array.shape for name, array in own.items()}
        read = read_state(state, prefix, shapes, self._dtype, self._projections.norm_offset)
        self._drop_held()
        self._projections.overwrite(read)
