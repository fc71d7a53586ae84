"""STAND-IN until regard has a KVCache: then delete this file and import that."""

import numpy as np

import regard

try:
    from regard import KVCache
except ImportError:

    class KVCache:
        """Keys and values in one array each, which grow by copying."""

        def __init__(
            self,
            batch,
            kv_heads,
            head_dim,
            value_dim=None,
            *,
            dtype=np.float32,
            window=None,
            **other,
        ):
            if dtype in ("int8", "int4") or any(option is not None for option in other.values()):
                raise NotImplementedError("the stand-in for KVCache stores plain arrays only")
            self.window = None if window is None else (window - 1, 0)
            self.keys = np.empty((batch, kv_heads, 0, head_dim), dtype)
            self.values = np.empty((batch, kv_heads, 0, value_dim or head_dim), dtype)

        def __len__(self):
            return self.keys.shape[-2]

        @property
        def lengths(self):
            """How many tokens each entry has seen."""
            return np.full(self.keys.shape[0], len(self))

        @property
        def nbytes(self):
            """Bytes that the cache holds."""
            return self.keys.nbytes + self.values.nbytes

        def append(self, key, value):
            """Store the keys and values of new positions."""
            self.keys = np.concatenate([self.keys, key.astype(self.keys.dtype)], axis=-2)
            self.values = np.concatenate([self.values, value.astype(self.values.dtype)], axis=-2)

        def attend(self, query):
            """Attend from the last positions, each to what precedes it."""
            return regard.scaled_dot_product_attention(
                query,
                self.keys,
                self.values,
                is_causal=True,
                window=self.window,
                query_offset=len(self) - query.shape[-2],
            )
