"""Attention over Dask arrays: for queries, keys and values that no machine holds at once."""

from regard._packages import needed

needed("dask.array", "regard.dask", "dask")

from regard.dask._attention import scaled_dot_product_attention  # noqa: E402
from regard.dask._backward import scaled_dot_product_attention_backward  # noqa: E402

__all__ = ["scaled_dot_product_attention", "scaled_dot_product_attention_backward"]
