"""What a cache must answer: the rows of each text, and one call with them and a mask.

Nothing is ever evicted here, nothing is shared, and a window is a mask.
"""

import itertools

import numpy as np

import regard
from cache_tokens import normal
from fewer_bits import is_quantized
from reference import assert_same_bits


class Model:
    """The key and value of each text, (kv_heads, length, dim), as they were given."""

    def __init__(self, batch, *sizes, dtype="float32", keep_last=None, keep_first=0, **options):
        self.sizes, self.dtype = sizes, dtype
        self.options = {x: options[x] for x in ("key_means", "value_from_key") if x in options}
        self.kv_heads, self.head_dim, self.value_dim = sizes
        self.keep_last, self.keep_first = keep_last, keep_first
        self.nothing = [np.empty((self.kv_heads, 0, dim)) for dim in sizes[1:]]
        self.texts = [self.nothing] * batch

    @property
    def lengths(self):
        return [key.shape[1] for key, _ in self.texts]

    @property
    def batch(self):
        return len(self.texts)

    def append(self, key, value, lengths=None):
        self._append(
            [key[b, :, :n], value[b, :, :n]]
            for b, n in enumerate([key.shape[2]] * self.batch if lengths is None else lengths)
        )

    def append_ragged(self, key, value, starts):
        self._append(
            [rows[start:end].swapaxes(0, 1) for rows in (key, value)]
            for start, end in itertools.pairwise(starts)
        )

    def _append(self, new):
        self.before = self.lengths
        if self.options.get("value_from_key"):
            new = [[key, key[..., : self.value_dim]] for key, _ in new]
        self.texts = [
            [np.concatenate(parts, axis=1) for parts in zip(text, rows, strict=True)]
            for text, rows in zip(self.texts, new, strict=True)
        ]

    def _choose(self, entry, places):
        self.texts[entry] = [rows[:, places] for rows in self.texts[entry]]

    def truncate(self, lengths):
        for b, length in enumerate(np.broadcast_to(lengths, self.batch)):
            self._choose(b, slice(length))

    def keep(self, entry, positions):
        self._choose(entry, [*range(self.before[entry]), *positions])

    def remove(self, entry, start, stop):
        self._choose(entry, [*range(start), *range(stop, self.lengths[entry])])

    def reorder(self, indices):
        self.texts = [self.texts[i] if i >= 0 else self.nothing for i in indices]

    def drop(self, entries):
        self.reorder([b for b in range(self.batch) if b not in np.atleast_1d(entries)])

    def adopt(self, other, entry=0):
        self.texts.append(other.texts.pop(entry))
        return self.batch - 1

    def fork(self, indices=None):
        fork = object.__new__(Model)
        fork.__dict__.update(self.__dict__)
        fork.reorder(range(self.batch) if indices is None else indices)
        return fork

    def alone(self, entry):
        """Return a cache of one text that was appended at once."""
        cache = regard.KVCache(1, *self.sizes, dtype=self.dtype, **self.options)
        key, value = (rows[None] for rows in self.texts[entry])
        cache.append(key, None if self.options.get("value_from_key") else value)
        return cache

    def rows(self, entry):
        """Return the key and value of a text as a cache returns them."""
        if is_quantized(self.dtype):
            alone = self.alone(entry)
            return [alone.keys[0], alone.values[0]]
        return [rows.astype(self.dtype) for rows in self.texts[entry]]

    def answer(self, entry, query, mask=None, **options):
        """Return output and lse for the queries of one text."""
        kv_len = self.lengths[entry]
        first = options.setdefault("query_offset", kv_len - query.shape[1])
        options = {"is_causal": True, "return_lse": True} | options
        if mask is not None:
            mask = mask[..., :kv_len]
        if self.keep_last is not None:
            positions, keys = first + np.arange(query.shape[1])[:, None], np.arange(kv_len)
            seen = (keys > positions - self.keep_last) | (keys < self.keep_first)
            if mask is None or mask.dtype == bool:
                mask = seen if mask is None else seen & mask
            else:
                mask = seen, mask
        if is_quantized(self.dtype) and kv_len:
            return [part[0] for part in self.alone(entry).attend(query[None], mask, **options)]
        rows = self.texts[entry] if is_quantized(self.dtype) else self.rows(entry)
        kind = query.dtype if is_quantized(self.dtype) else self.dtype
        rows = [part.astype(kind) for part in rows]
        return regard.scaled_dot_product_attention(query, *rows, mask, **options)


def assert_answers(cache, model, query, *, offsets=None, mask=None, **options):
    """Check that each text has the bits that it has alone."""
    assert cache.lengths.tolist() == model.lengths
    if not any(model.lengths):  # it refuses to answer
        return
    given = options if offsets is None else options | {"query_offset": offsets}
    output, lse = cache.attend(query, mask, **given, return_lse=True)
    if isinstance(mask, regard.masks.SparseMask):
        mask = mask.to_dense()
    for b, row in enumerate(query):
        own, part = dict(options), mask
        if offsets is not None:
            own["query_offset"] = int(np.broadcast_to(offsets, len(query))[b])
        if mask is not None and mask.ndim == 4:
            part = np.broadcast_to(mask, (len(query), *mask.shape[1:]))[b]
        assert_same_bits((output[b], lse[b]), tuple(model.answer(b, row, part, **own)))


def last_query(model, seed=1, dtype=np.float32):
    """Return a query for the last token of each text."""
    return normal(seed, model.batch, 2 * model.kv_heads, 1, model.head_dim, dtype=dtype)


def assert_alike(cache, model):
    """Check the answers to the last query, and all stored rows that it may see."""
    assert_answers(cache, model, last_query(model))
    for b, length in enumerate(model.lengths):
        for got, wanted in zip((cache.keys, cache.values), model.rows(b), strict=True):
            shown = np.arange(length)
            if model.keep_last is not None:
                shown = shown[(shown >= length - model.keep_last) | (shown < model.keep_first)]
            assert got.dtype == wanted.dtype
            assert_same_bits(got[b][:, shown], wanted[:, shown])
            assert not got[b][:, length:].any()
