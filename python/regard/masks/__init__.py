"""Build masks, which determine the keys that each query may attend to.

A mask is a bool array that broadcasts to ``(..., heads, q_len, kv_len)``, True where a query may
attend. Masks combine like any bool arrays: ``a & b`` lets a query attend where both masks do,
``a | b`` where either mask does, and ``~a`` where `a` does not.

`causal`, `window`, `segments` and `padding` return such arrays. All other functions
return sparse masks, `Ranges` or `Blocks`, which store only the keys that each query sees. They
combine with the same operators, with each other and with bool arrays.
"""

from regard._runtime.public import publish as _publish
from regard.masks._additive import as_additive
from regard.masks._blocks import Blocks
from regard.masks._check import check
from regard.masks._combine import stack
from regard.masks._documents import documents
from regard.masks._function import from_function
from regard.masks._global_tokens import global_tokens
from regard.masks._neighborhood import neighborhood
from regard.masks._positions import causal, prefix, window
from regard.masks._random_blocks import random_blocks
from regard.masks._ranges import Ranges
from regard.masks._sequences import padding, segments
from regard.masks._sliding import sliding
from regard.masks._sparse import SparseMask
from regard.masks._tree import tree

__all__ = [
    "Blocks",
    "Ranges",
    "SparseMask",
    "as_additive",
    "causal",
    "check",
    "documents",
    "from_function",
    "global_tokens",
    "neighborhood",
    "padding",
    "prefix",
    "random_blocks",
    "segments",
    "sliding",
    "stack",
    "tree",
    "window",
]

_publish(globals())
