"""The weights that dropout keeps, in NumPy. The random numbers come from Philox4x32-10 (Salmon et
al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3"), counted by the position of a weight."""

import numpy as np

MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
WEYL = 0x9E3779B9, 0xBB67AE85
WORD = 0xFFFFFFFF


def philox(counter, key):
    """Return the four words of 32 bits for a counter of four and a key of two. The counter's words
    may be arrays, which broadcast."""
    c0, c1, c2, c3 = (
        np.asarray(word).astype(np.int64).astype(np.uint64) & WORD for word in counter
    )
    k0, k1 = key
    for _ in range(10):
        left, right = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = right >> 32 ^ c1 ^ k0, right & WORD, left >> 32 ^ c3 ^ k1, left & WORD
        k0, k1 = k0 + WEYL[0] & WORD, k1 + WEYL[1] & WORD
    return np.broadcast_arrays(c0, c1, c2, c3)


def words(shape, *, seed, query_offset=0, entries=None, origin=(0, 0, 0)):
    """Return the word of each weight, for weights of this shape (batch..., heads, q_len, kv_len).

    `query_offset` broadcasts to the batch. `entries` are the numbers of the batch entries. By
    default, they are counted along the last batch axis first. `origin` is added to entries, heads
    and positions.
    """
    *batch, heads, q_len, kv_len = shape
    if entries is None:
        entries = np.arange(np.prod(batch, dtype=int)).reshape(batch)

    def per_batch(numbers):
        return np.broadcast_to(np.asarray(numbers, np.int64), batch)[..., None, None, None]

    first_entry, first_head, first_position = origin
    key_position = np.arange(kv_len) + first_position
    query_position = np.arange(q_len)[:, None] + per_batch(query_offset) + first_position
    head = np.arange(heads)[:, None, None] + first_head
    entry = per_batch(entries) + first_entry
    four = philox((key_position // 4, query_position, head, entry), (seed & WORD, seed >> 32))
    return np.choose(key_position % 4, four)


def dropout_factors(shape, *, p, seed, precision=np.float64, **places):
    """Return the factor of each weight: 0, or 1 / (1 - p) if its word is at least p 2^32."""
    kept = words(shape, seed=seed, **places) >= p * 2.0**32
    return np.where(kept, precision(1 / (1 - np.longdouble(p))), precision(0))
