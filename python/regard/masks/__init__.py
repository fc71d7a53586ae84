"""Build masks, which determine the keys that each query may attend to.

A mask is a bool array that broadcasts to ``(..., heads, q_len, kv_len)``, True where a query may
attend. Masks combine like any bool arrays: ``a & b`` lets a query attend where both masks do,
``a | b`` where either mask does, and ``~a`` where `a` does not.

`causal`, `window`, `segments` and `padding` return such arrays. All other functions
return sparse masks, `Ranges`, `Selected` or `Blocks`, which store only the keys that each query
sees. They combine with the same operators, with each other and with bool arrays.
"""

from regard._runtime.public import publish as _publish
from regard.masks._blocks import Blocks
from regard.masks._check import as_additive, check
from regard.masks._positions import causal, prefix, window
from regard.masks._ranges import Ranges
from regard.masks._rules import from_function, random_blocks
from regard.masks._selected import Selected
from regard.masks._sequences import documents, padding, segments
from regard.masks._sliding import global_tokens, sliding
from regard.masks._sparse import SparseMask, stack
from regard.masks._structures import neighborhood, tree

__all__ = [
    "Blocks",
    "Ranges",
    "Selected",
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
