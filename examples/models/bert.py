"""A BERT encoder: every token sees its whole sentence; sentences differ in length."""

import numpy as np

import regard
from models.layers import gelu, layer_norm, linear


class Bert:
    """A model from Hugging Face's ``config.json`` and ``model.safetensors``."""

    def __init__(self, parameters, config):
        self.parameters = parameters
        self.epsilon = config["layer_norm_eps"]
        self.attention = []
        for block in range(config["num_hidden_layers"]):
            layer = regard.MultiHeadAttention(
                config["hidden_size"], config["num_attention_heads"], qkv_bias=True, out_bias=True
            )
            layer.load_state_dict(parameters, f"encoder.layer.{block}.attention")
            self.attention.append(layer)

    def __call__(self, tokens, lengths):
        """Encode `tokens` (batch, length), whose first `lengths` (batch,) are not padding."""
        words = self.parameters["embeddings.word_embeddings.weight"][tokens]
        places = self.parameters["embeddings.position_embeddings.weight"][: tokens.shape[1]]
        first_segment = self.parameters["embeddings.token_type_embeddings.weight"][0]
        x = self._norm("embeddings", words + places + first_segment)
        for block, attention in enumerate(self.attention):
            name = f"encoder.layer.{block}"
            attended = attention(x, key_lengths=lengths)
            x = self._norm(f"{name}.attention.output", x + attended)
            x = self._norm(f"{name}.output", x + self._feed_forward(name, x))
        return x

    def _feed_forward(self, name, x):
        inner = gelu(self._linear(f"{name}.intermediate.dense", x))
        return self._linear(f"{name}.output.dense", inner)

    def _linear(self, name, x):
        return linear(x, self.parameters[f"{name}.weight"], self.parameters[f"{name}.bias"])

    def _norm(self, name, x):
        weight = self.parameters[f"{name}.LayerNorm.weight"]
        return layer_norm(x, weight, self.parameters[f"{name}.LayerNorm.bias"], self.epsilon)


def sentence_embeddings(encoded, lengths):
    """Return the mean of each sentence's tokens, without padding, scaled to length 1."""
    real = np.arange(encoded.shape[1]) < lengths[:, None]
    mean = encoded.mean(1, where=real[..., None])
    return mean / np.linalg.norm(mean, axis=-1, keepdims=True)
