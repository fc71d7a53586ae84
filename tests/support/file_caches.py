"""Caches in files, and models of their contents."""

import numpy as np

import regard
from cache_model import Model, assert_answers, normal, tokens

RECORDS, FIRST_PAGE = 512, 4096 + 2 * 32768
HEAD = 16 + 3 * 8  # number, checksum, [batch, columns, place]


def make(path, batch=2, **options):
    """Return a cache in pages of 16 tokens, and its model."""
    cache = regard.KVCache(batch, 2, 8, 5, path=path, page_size=16, **options)
    return cache, Model(batch, 2, 8, 5, np.dtype(options.get("dtype", "float32")))


def append(step, new, *pairs, lengths=None):
    for cache, model in pairs:
        batch = len(model.keys)
        cache.append(*tokens(step, batch, new), lengths)
        model.append(*tokens(step, batch, new), lengths)


def assert_right(*pairs):
    for cache, model in pairs:
        query = normal(0, len(model.keys), 4, 2, 8).astype(np.float32)
        assert_answers(cache, model, query, offsets=cache.lengths - 2)
