"""The parameters of multi-head attention in the layouts of libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from regard.layers._names import own_names, read_state, write_state
from regard.layers._trainable import Trainable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike

    from regard.layers._backward import InputGradients
    from regard.layers._linear import FloatArray

    Gradients: TypeAlias = "FloatArray | InputGradients"


class NamedParameters(Trainable["Gradients"]):
    """A layer that reads and writes its parameters in the layouts of libraries."""

    def _names(self) -> dict[str, str]:
        return own_names(self._projections.own)

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
            Copies of the parameters, in the layer's dtype.

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
        return write_state(self._projections.own, names, prefix, self._projections.norm_offset)

    def load_state_dict(self, state: Mapping[str, ArrayLike], prefix: str = "") -> None:
        """Copy parameters into the layer: all of them, or none if anything is wrong.

        They are written into the arrays of `parameters`. A `backward` for an earlier call then
        raises an error.

        Parameters
        ----------
        state : mapping of str to array_like
            Floating-point arrays or PyTorch tensors, converted to the layer's dtype. Every layout
            of `state_dict` is recognized. Other entries of models are ignored: GPT-2's ``bias``
            (its causal mask), BERT's ``output.LayerNorm``, Llama's ``rotary_emb.inv_freq``, the
            norms and feed-forward part of a GGUF block, a ``mask``. The key bias, which Whisper
            lacks, is 0, and the head gates, which only ``"regard"`` has, are 1. Llama models in
            GGUF files store their rows in the order of ``rotary={"interleaved": True}``. The norms
            of GGUF files contain the sum 1 + weight, from which a layer with
            ``qk_norm="rms_plus_one"`` subtracts 1.
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
            no name is known (the message lists the known layouts), or the state belongs to a model
            whose norms need another `qk_norm`.

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
        offset = self._projections.norm_offset
        self._load(read_state(state, prefix, shapes, self._dtype, offset))
