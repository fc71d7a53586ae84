"""The options of multi-head attention, and its parameters in the layouts of libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from regard._arguments.numbers import batch_integers, offsets
from regard.layers._names import read_state, write_state
from regard.layers._rotation import Rotation
from regard.layers._trainable import Trainable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike

    from regard.layers._backward import InputGradients
    from regard.layers._linear import FloatArray

    Gradients: TypeAlias = "FloatArray | InputGradients"


class NamedParameters(Trainable["Gradients"]):
    """A layer with the options and parameters of multi-head attention."""

    _is_causal: bool
    _window: tuple[int | None, int | None] | None
    _rotation: Rotation | None
    _slopes: FloatArray | None

    def __getstate__(self) -> dict[str, Any]:
        rotary = None if self._rotation is None else self._rotation.options
        return super().__getstate__() | {"_rotation": rotary}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        head_dim = self._projections.sizes.head_dim
        self._rotation = Rotation.of(state["_rotation"], head_dim, self._dtype)

    def _shown_options(self) -> dict[str, str]:
        sizes, own = self._projections.sizes, self._projections.own
        norm, biases = self._projections.norm, own.get("distance_bias")
        d_model, d_key, d_value = sizes.inputs
        options = {
            "d_model": d_model,
            "num_heads": sizes.heads,
            "num_kv_heads": sizes.kv_heads,
            "head_dim": sizes.head_dim,
            "is_causal": self._is_causal,
            "d_key": d_key if d_key != d_model else None,
            "d_value": d_value if d_value != d_key else None,
            "qkv_bias": "b_query" in own or None,
            "out_bias": "b_out" in own or None,
            "window": self._window,
            "rotary": self._rotation,
            "alibi": self._slopes is not None or None,
            "distance_bias": None if biases is None else biases.shape[1] // 2 + 1,
            "head_gates": "head_gates" in own or None,
            "qk_norm": None if norm is None else norm.shown,
            "dropout": self._dropout or None,
        }
        shown = {name: f"{value!r}" for name, value in options.items() if value is not None}
        return shown | {"dtype": f"{self._dtype}"}

    def _own_options(self) -> dict[str, Any]:
        """Return the options of attention that the constructor determined."""
        own: dict[str, Any] = {"is_causal": self._is_causal}
        if self._window is not None:
            own["window"] = self._window
        if self._slopes is not None:
            own["alibi_slopes"] = self._slopes
        if "distance_bias" in self._projections.own:
            own["distance_bias"] = self._projections.own["distance_bias"]
        return own

    def _turned(self, q: FloatArray, k: FloatArray, options: Mapping[str, Any]) -> Any:
        """Rotate queries and keys in place, and return their positions, or None."""
        if self._rotation is None:
            return None
        offset, lengths = options.get("query_offset", 0), options.get("key_lengths")
        batch, q_len, kv_len = q.shape[:-3], q.shape[-2], k.shape[-2]
        if isinstance(offset, str):
            ends = batch_integers("key_lengths", kv_len if lengths is None else lengths, batch)
            offset = offsets(offset, ends - q_len)
        first = batch_integers("query_offset", offset, batch)
        places = first[..., None] + np.arange(q_len), np.arange(kv_len)
        self._rotation.turn((q, places[0]), (k, places[1]), cached=False)
        return places

    def _refuse_cross_attention(self) -> None:
        """Raise ValueError for a key with a cache in a layer that depends on positions."""
        shown = self._shown_options()
        positional = ("is_causal", "window", "rotary", "alibi", "distance_bias")
        used = [name for name in positional if shown.get(name, "False") != "False"]
        if used:
            raise ValueError(
                "key must be left out with a cache in a layer that depends on positions, got key "
                f"in a layer with {', '.join(used)}"
            )

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
