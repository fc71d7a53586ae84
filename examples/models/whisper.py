"""Whisper: an encoder of sound, and a decoder that attends to it and writes text."""

import numpy as np

import regard
from models.layers import gelu, join_heads, layer_norm, linear, split_heads

EPSILON = 1e-5


class Whisper:
    """A model from CTranslate2's parameters: see `models.ctranslate2_file`.

    >>> model = Whisper(load_ctranslate2(path))
    >>> heard = model.listen(log_mel(sound)[None])
    >>> caches = model.caches()
    >>> logits = model.write(tokens, caches, heard)
    """

    def __init__(self, parameters):
        self.parameters = parameters
        self.heads = int(parameters["encoder/num_heads"])
        self.width = parameters["decoder/embeddings/weight"].shape[1]
        self.listeners = self._layers("encoder")
        self.writers = self._layers("decoder")

    def listen(self, spectrogram):
        """Encode (batch, bands, frames); return keys and values of the sound for each writer."""
        x = gelu(self._convolve("encoder/conv1", spectrogram.swapaxes(1, 2), stride=1))
        x = gelu(self._convolve("encoder/conv2", x, stride=2))
        x = x + self.parameters["encoder/position_encodings/encodings"][: x.shape[1]]
        for layer in self.listeners:
            query, key, value = self._queries_keys_values(layer, x)
            attended = regard.scaled_dot_product_attention(query, key, value)
            x = x + self._linear(f"{layer}/self_attention/linear_1", join_heads(attended))
            x = x + self._feed_forward(layer, x)
        x = self._norm("encoder", x)
        return [self._split(f"{layer}/attention/linear_1", x, 2) for layer in self.writers]

    def caches(self, batch=1, **options):
        """Return an empty cache for each writer; `options` are passed to KVCache."""
        return [
            regard.KVCache(batch, self.heads, self.width // self.heads, **options)
            for _ in self.writers
        ]

    def write(self, tokens, caches, heard):
        """Read `tokens` (batch, new) after the cached ones; score the next token after each."""
        start = len(caches[0])
        embedding = self.parameters["decoder/embeddings/weight"]
        places = self.parameters["decoder/position_encodings/encodings"]
        x = embedding[tokens] + places[start : start + tokens.shape[1]]
        for layer, cache, (key, value) in zip(self.writers, caches, heard, strict=True):
            query, own_key, own_value = self._queries_keys_values(layer, x)
            cache.append(own_key, own_value)
            written = join_heads(cache.attend(query))
            x = x + self._linear(f"{layer}/self_attention/linear_1", written)
            normed = self._norm(f"{layer}/attention", x)
            query = split_heads(self._linear(f"{layer}/attention/linear_0", normed), self.heads)
            looked = join_heads(regard.scaled_dot_product_attention(query, key, value))
            x = x + self._linear(f"{layer}/attention/linear_2", looked)
            x = x + self._feed_forward(layer, x)
        return linear(self._norm("decoder", x), embedding)

    def _layers(self, side):
        names = {
            name.split("/")[1] for name in self.parameters if name.startswith(f"{side}/layer_")
        }
        return [f"{side}/layer_{number}" for number in range(len(names - {"layer_norm"}))]

    def _queries_keys_values(self, layer, x):
        x = self._norm(f"{layer}/self_attention", x)
        return self._split(f"{layer}/self_attention/linear_0", x, 3)

    def _split(self, name, x, parts):
        """Apply a layer that stacks several projections; return the heads of each projection."""
        return [split_heads(y, self.heads) for y in np.split(self._linear(name, x), parts, axis=-1)]

    def _feed_forward(self, layer, x):
        inner = gelu(self._linear(f"{layer}/ffn/linear_0", self._norm(f"{layer}/ffn", x)))
        return self._linear(f"{layer}/ffn/linear_1", inner)

    def _convolve(self, name, x, stride):
        """Convolve along time with 3 taps, as one product with three shifted views side by side."""
        weight = self.parameters[f"{name}/weight"]
        padded = np.pad(x, ((0, 0), (1, 1), (0, 0)))
        views = [padded[:, tap : tap + x.shape[1] : stride] for tap in range(3)]
        taps = weight.swapaxes(1, 2).reshape(weight.shape[0], -1)
        return linear(np.concatenate(views, axis=-1), taps, self.parameters[f"{name}/bias"])

    def _linear(self, name, x):
        return linear(x, self.parameters[f"{name}/weight"], self.parameters[f"{name}/bias"])

    def _norm(self, name, x):
        name = f"{name}/layer_norm"
        gamma, beta = self.parameters[f"{name}/gamma"], self.parameters[f"{name}/beta"]
        return layer_norm(x, gamma, beta, EPSILON)
