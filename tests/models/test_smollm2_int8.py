"""Test precision="int8" on the queries, keys and values that SmolLM2 computes for a text."""

import numpy as np
import pytest

import regard
from error_limits import expected

TEXT = (
    "The old library stood at the end of the street, its windows dark. Nobody had read there for "
    "years, but everyone in the town remembered the smell of its books. One morning a letter came "
    "that said who owned the house, and what was to become of it: 1,200 volumes, 34 maps, and a "
    "globe. The mayor read it twice, put on her coat, and went to see for herself. "
)


class Recorder(regard.KVCache):
    """A cache that keeps the arrays that are passed to it."""

    def append_ragged(self, key, value, starts):
        self.key, self.value = (packed.swapaxes(0, 1) for packed in (key, value))
        return super().append_ragged(key, value, starts)

    def attend_ragged(self, query, starts):
        self.query = query.swapaxes(0, 1)
        return super().attend_ragged(query, starts)


@pytest.fixture(scope="module")
def blocks(smollm2_path):
    """Return query, key and value (heads, length, dim) of every block."""
    model = regard.models.load("smollm2")
    tokens = np.array(model.tokenizer.encode(4 * TEXT).ids)
    caches = [Recorder(1, model.num_kv_heads, model.head_dim) for _ in range(model.num_layers)]
    model(tokens[None], caches)
    return [(cache.query, cache.key, cache.value) for cache in caches]


def cosine(a, b):
    return (a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b)


def test_every_head_is_near_float64(blocks, record_property):
    worst = 1.0
    for query, key, value in blocks:
        output = regard.scaled_dot_product_attention(
            query, key, value, is_causal=True, precision="int8"
        )
        exact = expected(query, key, value, is_causal=True).exact.output
        worst = min(worst, *map(cosine, output, exact))
    record_property("worst cosine", float(worst))
    assert worst >= 0.9995
