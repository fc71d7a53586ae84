"""A Llama language model: rotary positions, grouped heads, gated feed-forward, caches."""

import numpy as np

import regard
from models.layers import linear
from regard.layers import rms_norm, swiglu


class Llama:
    """A model from a GGUF file of architecture ``llama``.

    >>> model = Llama(*regard.checkpoints.load_gguf(path, weight_dtype="int8"))
    >>> caches = model.caches()
    >>> logits = model.logits(model(tokens, caches)[:, -1])
    """

    def __init__(self, parameters, metadata):
        self.parameters, self.metadata = parameters, metadata
        self.blocks = metadata["llama.block_count"]
        self.heads = metadata["llama.attention.head_count"]
        self.kv_heads = metadata["llama.attention.head_count_kv"]
        self.head_dim = metadata["llama.embedding_length"] // self.heads
        self.epsilon = metadata["llama.attention.layer_norm_rms_epsilon"]
        self.rotary_base = metadata["llama.rope.freq_base"]
        self.rotary_dim = metadata["llama.rope.dimension_count"]

    @classmethod
    def read(cls, path, weights="float32"):
        """Read a file; `weights` is the type of the weights, such as "int8"."""
        weight_dtype = None if weights == "float32" else weights
        return cls(*regard.checkpoints.load_gguf(path, weight_dtype=weight_dtype))

    def caches(self, batch=1, **options):
        """Return empty caches for all blocks; `options` are passed to KVCaches."""
        return regard.KVCaches(self.blocks, batch, self.kv_heads, self.head_dim, **options)

    def __call__(self, tokens, caches, starts=None):
        """Read the texts' new tokens after the cached ones; return a row of x for each.

        The tokens are (batch, new) or, with `starts` as for KVCache.append_ragged, packed.
        """
        tokens = np.asarray(tokens)
        if starts is None:
            starts = np.arange(len(tokens) + 1) * tokens.shape[1]
        embedding = self.parameters["token_embd.weight"]
        x = embedding[tokens.ravel()].astype(np.float32, copy=False)
        before = np.repeat(caches[0].lengths - starts[:-1], np.diff(starts))
        positions = before + np.arange(len(x))
        turns = regard.positional.rotary_cache(
            positions, self.rotary_dim, base=self.rotary_base, dtype=x.dtype
        )
        for block, cache in enumerate(caches):
            x = x + self._attention(x, block, cache, turns, starts)
            x = x + self._feed_forward(x, block)
        x = rms_norm(x, self.parameters["output_norm.weight"], self.epsilon)
        return x.reshape(*tokens.shape, -1)

    def logits(self, x):
        """Score every token of the vocabulary as the next one after each row of `x`."""
        embedding = self.parameters["token_embd.weight"]
        return linear(x, self.parameters.get("output.weight", embedding))

    def _attention(self, x, block, cache, turns, starts):
        weight = self._weights(block)
        x = rms_norm(x, weight("attn_norm"), self.epsilon)
        # GGUF orders the rows of the projections so that neighboring columns are rotated.
        query, key = (
            regard.positional.rotary(heads.swapaxes(0, 1), cache=turns, interleaved=True)
            for heads in (self._heads(x, weight("attn_q")), self._heads(x, weight("attn_k")))
        )
        cache.append_ragged(key.swapaxes(0, 1), self._heads(x, weight("attn_v")), starts)
        output = cache.attend_ragged(query.swapaxes(0, 1), starts)
        return linear(output.reshape(len(x), -1), weight("attn_output"))

    def _heads(self, x, weight):
        """Project to (tokens, heads, head_dim)."""
        return linear(x, weight).reshape(len(x), -1, self.head_dim)

    def _feed_forward(self, x, block):
        weight = self._weights(block)
        x = rms_norm(x, weight("ffn_norm"), self.epsilon)
        gated = swiglu(linear(x, weight("ffn_gate")), linear(x, weight("ffn_up")))
        return linear(gated, weight("ffn_down"))

    def _weights(self, block):
        return lambda name: self.parameters[f"blk.{block}.{name}.weight"]
