"""A BERT encoder: every token sees the whole sentence; sentences of a batch have their lengths."""

import numpy as np

import regard
from models.layers import gelu, join_heads, layer_norm, linear, split_heads


class Bert:
    """A model out of Hugging Face's ``config.json`` and ``model.safetensors``."""

    def __init__(self, parameters, config):
        self.parameters = parameters
        self.blocks = config["num_hidden_layers"]
        self.heads = config["num_attention_heads"]
        self.epsilon = config["layer_norm_eps"]

    def __call__(self, tokens, lengths):
        """Encode `tokens` (batch, length), of which `lengths` (batch,) are no padding."""
        words = self.parameters["embeddings.word_embeddings.weight"][tokens]
        places = self.parameters["embeddings.position_embeddings.weight"][: tokens.shape[1]]
        first_segment = self.parameters["embeddings.token_type_embeddings.weight"][0]
        x = self._norm("embeddings", words + places + first_segment)
        for block in range(self.blocks):
            name = f"encoder.layer.{block}"
            x = self._norm(f"{name}.attention.output", x + self._attention(name, x, lengths))
            x = self._norm(f"{name}.output", x + self._feed_forward(name, x))
        return x

    def _attention(self, name, x, lengths):
        query, key, value = (
            split_heads(self._linear(f"{name}.attention.self.{part}", x), self.heads)
            for part in ("query", "key", "value")
        )
        attended = regard.scaled_dot_product_attention(query, key, value, key_lengths=lengths)
        return self._linear(f"{name}.attention.output.dense", join_heads(attended))

    def _feed_forward(self, name, x):
        inner = gelu(self._linear(f"{name}.intermediate.dense", x))
        return self._linear(f"{name}.output.dense", inner)

    def _linear(self, name, x):
        return linear(x, self.parameters[f"{name}.weight"], self.parameters[f"{name}.bias"])

    def _norm(self, name, x):
        weight = self.parameters[f"{name}.LayerNorm.weight"]
        return layer_norm(x, weight, self.parameters[f"{name}.LayerNorm.bias"], self.epsilon)


def sentence_embeddings(encoded, lengths):
    """Return each sentence's mean token, without its padding, at length 1."""
    real = np.arange(encoded.shape[1]) < lengths[:, None]
    mean = encoded.mean(1, where=real[..., None])
    return mean / np.linalg.norm(mean, axis=-1, keepdims=True)
