"""A Llama language model: rotary positions, grouped heads, gated feed-forward, caches."""

import numpy as np

import regard
from models.layers import join_heads, linear, rms_norm, silu, split_heads


class Llama:
    """A model from a GGUF file of architecture ``llama``.

    >>> model = Llama(*regard.checkpoints.load_gguf(path, weight_dtype="int8"))
    >>> caches = model.caches()
    >>> logits = model.logits(model(tokens, caches)[:, -1])
    """

    def __init__(self, parameters, metadata):
        self.parameters = parameters
        self.blocks = metadata["llama.block_count"]
        self.heads = metadata["llama.attention.head_count"]
        self.kv_heads = metadata["llama.attention.head_count_kv"]
        self.head_dim = metadata["llama.embedding_length"] // self.heads
        self.epsilon = metadata["llama.attention.layer_norm_rms_epsilon"]
        self.rotary_base = metadata["llama.rope.freq_base"]
        self.rotary_dim = metadata["llama.rope.dimension_count"]

    def caches(self, batch=1, **options):
        """Return an empty cache for each block; `options` are those of KVCache."""
        return [
            regard.KVCache(batch, self.kv_heads, self.head_dim, **options)
            for _ in range(self.blocks)
        ]

    def __call__(self, tokens, caches):
        """Read `tokens` (batch, new) after those in `caches`; return (batch, new, width)."""
        x = self.parameters["token_embd.weight"][tokens].astype(np.float32, copy=False)
        positions = caches[0].lengths[:, None] + np.arange(x.shape[1])
        turns = regard.positional.rotary_cache(
            positions, self.rotary_dim, base=self.rotary_base, dtype=x.dtype
        )
        for block, cache in enumerate(caches):
            x = x + self._attention(x, block, cache, turns)
            x = x + self._feed_forward(x, block)
        return rms_norm(x, self.parameters["output_norm.weight"], self.epsilon)

    def logits(self, x):
        """Score every token of the vocabulary as the next one after each row of `x`."""
        embedding = self.parameters["token_embd.weight"]
        return linear(x, self.parameters.get("output.weight", embedding))

    def _attention(self, x, block, cache, turns):
        weight = self._weights(block)
        x = rms_norm(x, weight("attn_norm"), self.epsilon)
        query = split_heads(linear(x, weight("attn_q")), self.heads)
        key = split_heads(linear(x, weight("attn_k")), self.kv_heads)
        value = split_heads(linear(x, weight("attn_v")), self.kv_heads)
        # GGUF orders the rows of the projections so that neighboring columns are rotated.
        query = regard.positional.rotary(query, cache=turns, interleaved=True)
        key = regard.positional.rotary(key, cache=turns, interleaved=True)
        cache.append(key, value)
        return linear(join_heads(cache.attend(query)), weight("attn_output"))

    def _feed_forward(self, x, block):
        weight = self._weights(block)
        x = rms_norm(x, weight("ffn_norm"), self.epsilon)
        gated = silu(linear(x, weight("ffn_gate"))) * linear(x, weight("ffn_up"))
        return linear(gated, weight("ffn_down"))

    def _weights(self, block):
        return lambda name: self.parameters[f"blk.{block}.{name}.weight"]
