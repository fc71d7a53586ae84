"""Caches in pages of a file beside what they should be, and every step of what is done to them."""

import functools
import importlib

import numpy as np

import regard
from cache_model import Model, assert_answers, normal, tokens

HEADER, RECORDS = 4096, 512
HEAD = 16 + 3 * 8  # number, checksum, [batch, columns, first page]


def make(path, batch=2, **options):
    """A cache and what it should be."""
    cache = regard.KVCache(batch, 2, 8, 5, path=path, page_size=16, **options)
    return cache, Model(batch, 2, 8, 5, cache._content.geometry.dtype)


def append(step, new, *pairs, lengths=None):
    for cache, model in pairs:
        batch = len(model.keys)
        cache.append(*tokens(step, batch, new), lengths)
        model.append(*tokens(step, batch, new), lengths)


def assert_right(*pairs):
    for cache, model in pairs:
        query = normal(0, len(model.keys), 4, 2, 8).astype(np.float32)
        assert_answers(cache, model, query)


class Death(BaseException):
    pass


STEPS = ["rows.Rows.put", "rows.Rows.put_at", "file_pool.FilePool._put"]
STEPS += ["file_table.FileTable.commit", "_pool.Pool.give_back", "_file_pool.FilePool._extend"]
STEPS += ["pool.Pool.take", "_pool.Pool.share", "_page_state.PageState.with_lengths"]
STEPS += ["page_state.PageState.with_table"]


def watched(monkeypatch, look):
    """Look before and after each thing that is done to a file."""
    for step in STEPS:
        module, name, method = step.split(".")
        owner = getattr(importlib.import_module(f"regard._cache.{module}"), name)

        def wrapped(*arguments, call):
            look()
            result = call(*arguments)
            look()
            return result

        call = getattr(owner, method)
        monkeypatch.setattr(owner, method, functools.partialmethod(wrapped, call=call))
