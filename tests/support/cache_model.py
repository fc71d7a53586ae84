"""What a cache must store and compute: lists of tokens, and the oracle over all that a query may
see.

Nothing is ever evicted here; a window is a mask.
"""

import itertools

import numpy as np

import reference
from fewer_bits import back, held_rows, is_quantized, meeting


def normal(seed, *shape, dtype=np.float64):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def tokens(seed, batch, new, *, kv_heads=2, head_dim=8, value_dim=5, dtype=np.float64):
    """Return key and value of some new tokens."""
    shape = (batch, kv_heads, new)
    return normal(seed, *shape, head_dim, dtype=dtype), normal(
        seed + 10**6, *shape, value_dim, dtype=dtype
    )


def packed_tokens(seed, counts, **sizes):
    """Return keys, values and starts of some new tokens of each entry."""
    starts = [0, *itertools.accumulate(counts)]
    key, value = tokens(seed, 1, starts[-1], **sizes)
    return key[0].swapaxes(0, 1), value[0].swapaxes(0, 1), starts


def visible(q_len, kv_len, offset, keep_last, keep_first):
    """Return which keys a cache's window shows, apart from causality."""
    positions, keys = np.arange(q_len)[:, None] + offset, np.arange(kv_len)
    if keep_last is None:
        return np.ones((q_len, kv_len), bool)
    return (keys > positions - keep_last) | (keys < keep_first)


class Model:
    """The tokens of each entry, as the cache stores them: fewer bits as float64, keys rotated."""

    def __init__(self, batch, kv_heads, head_dim, value_dim, dtype, keep_last=None, keep_first=0):
        self.dtype, self.keep_last, self.keep_first = dtype, keep_last, keep_first
        self.head_dim, self.value_dim = head_dim, value_dim
        held = np.float64 if is_quantized(dtype) else dtype
        self.nothing = [np.empty((kv_heads, 0, dim), held) for dim in (head_dim, value_dim)]
        self.keys, self.values = ([nothing] * batch for nothing in self.nothing)

    @property
    def lengths(self):
        return [key.shape[1] for key in self.keys]

    def append(self, key, value, lengths=None):
        counts = [key.shape[2]] * len(self.keys) if lengths is None else lengths
        self.before = self.lengths
        for b, count in enumerate(counts):
            new = [array[b, :, :count] for array in (key, value)]
            if is_quantized(self.dtype):
                new = held_rows(self.dtype, *new)
            new = [array.astype(self.keys[b].dtype) for array in new]
            self.keys[b] = np.concatenate([self.keys[b], new[0]], axis=1)
            self.values[b] = np.concatenate([self.values[b], new[1]], axis=1)

    def append_ragged(self, key, value, starts):
        self.before = self.lengths
        for b, (start, end) in enumerate(itertools.pairwise(starts)):
            alone = self.entry(b)
            alone.append(*(array[None, start:end].swapaxes(1, 2) for array in (key, value)))
            self.keys[b], self.values[b] = alone.keys[0], alone.values[0]

    def entry(self, b):
        """Return one entry by itself."""
        alone = self.fork()
        alone.keys, alone.values = [self.keys[b]], [self.values[b]]
        return alone

    def truncate(self, lengths):
        if isinstance(lengths, int):
            lengths = [lengths] * len(self.keys)
        self.keys = [key[:, :length] for key, length in zip(self.keys, lengths, strict=True)]
        self.values = [v[:, :length] for v, length in zip(self.values, lengths, strict=True)]

    def reorder(self, indices):
        """Select entries; -1 is an empty entry."""
        self.keys = [self.keys[i] if i >= 0 else self.nothing[0] for i in indices]
        self.values = [self.values[i] if i >= 0 else self.nothing[1] for i in indices]

    def drop(self, entries):
        self.reorder([b for b in range(len(self.keys)) if b not in np.atleast_1d(entries)])

    def adopt(self, other, entry=0):
        for own, theirs in ((self.keys, other.keys), (self.values, other.values)):
            own.append(theirs.pop(entry))
        return len(self.keys) - 1

    def keep(self, entry, positions):
        """Keep these tokens, and the tokens before the last append."""
        rows = [*range(self.before[entry]), *positions]
        self.keys[entry], self.values[entry] = (
            self.keys[entry][:, rows],
            self.values[entry][:, rows],
        )

    def fork(self, indices=None):
        fork = self._fork()
        if indices is not None:
            fork.reorder(indices)
        return fork

    def _fork(self):
        fork = object.__new__(Model)
        fork.__dict__.update(self.__dict__)
        fork.keys, fork.values = list(self.keys), list(self.values)
        return fork

    def expected(self, b, query, mask=None, **options):
        """Return the oracle's result for one entry."""
        kv_len = self.keys[b].shape[1]
        offset = options.setdefault("query_offset", kv_len - query.shape[1])
        options.setdefault("is_causal", True)
        seen = visible(query.shape[1], kv_len, offset, self.keep_last, self.keep_first)
        if mask is None:
            mask = seen
        else:
            mask = np.broadcast_to(mask[..., :kv_len], (*mask.shape[:-2], *seen.shape))
            mask = mask & seen if mask.dtype == bool else np.where(seen, mask, -np.inf)
        arrays = query, self.keys[b], self.values[b]
        if is_quantized(self.dtype):  # rounded to the query's type
            arrays = (
                meeting(query, self.dtype),
                *(array.astype(query.dtype) for array in arrays[1:]),
            )
        return reference.expected(*arrays, mask, **options)

    def held(self):
        """Return all keys and values as a cache returns them: 0 beyond each entry's length."""
        found = []
        for rows in (self.keys, self.values):
            whole = np.zeros(
                (len(rows), rows[0].shape[0], max(self.lengths, default=0), rows[0].shape[2])
            )
            for b, own in enumerate(rows):
                turns = rows is self.keys and is_quantized(self.dtype)
                own = back(self.dtype, own) if turns else own
                whole[b, :, : own.shape[1]] = own
            found.append(whole)
        return found


def assert_answers(cache, model, query, *, offsets=None, mask=None, **options):
    """Check the results of the cache against the oracle, entry by entry."""
    assert cache.lengths.tolist() == model.lengths
    if not max(model.lengths):  # it refuses to answer
        return
    given = options if offsets is None else options | {"query_offset": offsets}
    given = given if mask is None else given | {"mask": mask}
    output, lse = cache.attend(query, **given, return_lse=True)
    batch = len(query)
    for b, row in enumerate(query):
        own, part = dict(options), mask
        if offsets is not None:
            own["query_offset"] = int(np.broadcast_to(offsets, batch)[b])
        if mask is not None and mask.ndim == 4:
            part = np.broadcast_to(mask, (batch, *mask.shape[1:]))[b]
        want = model.expected(b, row, part, **own)
        reference.assert_matches(want, output=output[b], lse=lse[b])


def told(cache):
    """Return everything visible of a cache, as bytes."""
    parts = [cache.keys, cache.values, cache.lengths]
    if len(cache):
        batch, kv_heads, _, head_dim = parts[0].shape
        parts += cache.attend(normal(3, batch, kv_heads, 1, head_dim), return_lse=True)
    return [part.tobytes() for part in parts] + [repr(cache)]
