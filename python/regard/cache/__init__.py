"""Keys and values that stay while a text grows."""

from regard.cache._cache import KVCache

__all__ = ["KVCache"]
