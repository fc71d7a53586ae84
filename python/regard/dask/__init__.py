"""Attention over Dask arrays, for queries, keys and values larger than memory."""

from regard._runtime.public import needed
from regard._runtime.public import publish as _publish

if needed("dask.array", "regard.dask", "dask").Array.__module__ != "dask.array.core":
    raise ImportError(
        "regard.dask needs Dask arrays without query planning, which is enabled: set "
        "'array.query-planning' to False in Dask's configuration before dask.array is imported"
    )

from regard.dask._attention import scaled_dot_product_attention
from regard.dask._backward import scaled_dot_product_attention_backward

__all__ = ["scaled_dot_product_attention", "scaled_dot_product_attention_backward"]

_publish(globals())
